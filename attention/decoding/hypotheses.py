"""States of the W hypotheses of each row: the step for B rows, lifted by `vmap`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attention.decoding.output import Prediction
from attention.decoding.strategy import NextTokens
from attention.primitives.cache import Constant

Predict = Callable[[Any, Any], tuple[Prediction, Any]]
"""`(state, tokens [B]) -> (prediction, state)`."""


def is_constant(part: object) -> bool:
    """Return whether a part of a state is inside `Constant`."""
    return isinstance(part, Constant)


def constant_leaves(state: object) -> list[bool]:
    """Return which leaves of a state are inside `Constant`."""
    parts = jax.tree.leaves(state, is_leaf=is_constant)
    return [is_constant(part) for part in parts for _ in jax.tree.leaves(part)]


def check_state(state: object, rows: int, num_steps: int) -> None:
    """Check that leaves have the batch in front, and that caches can hold the tokens to come.

    Args:
        state: a state, or its shapes.
        rows: B.
        num_steps: number of tokens; passed to `check_capacity` of each part that has it.

    Raises:
        ValueError: a leaf of another shape, outside `Constant`; a cache that is too small.
    """
    leaves = jax.tree.leaves_with_path(state)
    for (path, leaf), constant in zip(leaves, constant_leaves(state), strict=True):
        if not constant and jnp.shape(leaf)[:1] != (rows,):
            raise ValueError(
                f"state{jax.tree_util.keystr(path)} needs the batch of {rows} rows in front, got "
                f"shape {jnp.shape(leaf)}; what all rows share belongs into Constant"
            )
    for part in _parts(state, "check_capacity"):
        if hasattr(part, "check_capacity"):
            part.check_capacity(num_steps)


def repeat_state(state: object, num_beams: int) -> list[Array]:
    """Return the leaves of a state, `[W, B, *]`; those inside `Constant` are not repeated."""
    return [
        leaf if constant else jnp.stack([leaf] * num_beams)
        for leaf, constant in zip(jax.tree.leaves(state), constant_leaves(state), strict=True)
    ]


def vmap_hypotheses(predict: Predict, like: object) -> Predict:
    """Lift a step for B rows to W hypotheses of each, with the states of their parents.

    Args:
        predict: the step.
        like: shapes of its state.

    Returns:
        `(leaves, NextTokens) -> (prediction with logits [W, B, V], leaves)`.
    """
    structure, constants = jax.tree.structure(like), constant_leaves(like)
    axes = [None if constant else 0 for constant in constants]

    def one(leaves: list[Array], tokens: Array) -> tuple[Array, object, list[Array]]:
        prediction, state = predict(jax.tree.unflatten(structure, leaves), tokens)
        new = [  # a step cannot change a constant
            old if constant else leaf
            for old, leaf, constant in zip(leaves, jax.tree.leaves(state), constants, strict=True)
        ]
        return prediction.logits, prediction.observed, new

    vmapped = jax.vmap(one, in_axes=(axes, 1), out_axes=(0, 1, axes))

    def predict_all(leaves: list[Array], last: NextTokens) -> tuple[Prediction, list[Array]]:
        leaves = _gather_state(jax.tree.unflatten(structure, leaves), last.parents)
        logits, observed, leaves = vmapped(leaves, last.tokens)
        return Prediction(logits, observed), leaves

    return predict_all


def gather_hypotheses(leaf: Array, parents: Array, axis: int = 1) -> Array:
    """Select hypotheses of each row.

    Args:
        leaf: `[B, W, *]`, or `[W, B, *]`.
        parents: `[B, X]`.
        axis: of W.

    Returns:
        `[B, X, *]`, or `[X, B, *]`.
    """
    take = jax.vmap(lambda own, parents: jnp.take(own, parents, axis=0), (1 - axis, 0), 1 - axis)
    return take(leaf, parents)


def _gather_state(state: object, parents: Array) -> list[Array]:
    """Return the leaves `[W, B, *]` of the parent of each hypothesis."""

    def gather(leaf: Array) -> Array:
        return gather_hypotheses(leaf, parents, axis=0)

    found = []
    for part in _parts(state, "gather_rows"):
        if is_constant(part):
            found += jax.tree.leaves(part)
        elif hasattr(part, "gather_rows"):
            found += jax.tree.leaves(part.gather_rows(gather))
        else:
            found.append(gather(part))
    return found


def _parts(state: object, method: str) -> list[Any]:
    """Return the constants, the parts that have a method, and the other leaves."""
    return jax.tree.leaves(state, is_leaf=lambda x: is_constant(x) or hasattr(x, method))
