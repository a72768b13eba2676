"""States of the W hypotheses of each row: the step for B rows, lifted by `vmap`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attention.decoding.output import Prediction
from attention.decoding.strategy import Selected
from attention.primitives.constant import Constant

Predict = Callable[[Any, Any], tuple[Prediction, Any]]
"""`(state, tokens [B]) -> (prediction, state)`."""


def constant_leaves(state: object) -> list[bool]:
    """Return which leaves of a state are inside `Constant`."""

    def is_constant(part: object) -> bool:
        return isinstance(part, Constant)

    parts = jax.tree.leaves(state, is_leaf=is_constant)
    return [is_constant(part) for part in parts for _ in jax.tree.leaves(part)]


def check_state(state: object, rows: int, num_steps: int) -> None:
    """Check that leaves have the batch in front, and that caches hold the tokens to come.

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

    def is_part(part: object) -> bool:
        return isinstance(part, Constant) or hasattr(part, "check_capacity")

    for part in jax.tree.leaves(state, is_leaf=is_part):
        if hasattr(part, "check_capacity"):
            part.check_capacity(num_steps)


def repeat_state(state: object, num_beams: int) -> list[Array]:
    """Return the leaves of a state, `[W, B, *]`; those inside `Constant` are not repeated."""
    return [
        leaf if constant else jnp.stack([leaf] * num_beams)
        for leaf, constant in zip(jax.tree.leaves(state), constant_leaves(state), strict=True)
    ]


def for_each_hypothesis(predict: Predict, like: object) -> Predict:
    """Lift a step for B rows to W hypotheses of each, whose states follow their parents.

    Args:
        predict: the step.
        like: shapes of its state.

    Returns:
        `(leaves, Selected) -> (prediction with logits [W, B, V], leaves)`.
    """
    structure, constants = jax.tree.structure(like), constant_leaves(like)
    axes = [None if constant else 0 for constant in constants]

    def one(leaves: list[Array], tokens: Array) -> tuple[Array, object, list[Array]]:
        prediction, state = predict(jax.tree.unflatten(structure, leaves), tokens)
        new = [  # of a constant, the array that the step was given
            old if constant else leaf
            for old, leaf, constant in zip(leaves, jax.tree.leaves(state), constants, strict=True)
        ]
        return prediction.logits, prediction.observed, new

    lifted = jax.vmap(one, in_axes=(axes, 1), out_axes=(0, 1, axes))

    def predict_all(leaves: list[Array], last: Selected) -> tuple[Prediction, list[Array]]:
        state = jax.tree.unflatten(structure, leaves)
        logits, observed, leaves = lifted(_gather(state, last.parents), last.tokens)
        return Prediction(logits, observed), leaves

    return predict_all


def _gather(state: object, parents: Array) -> list[Array]:
    """Return the leaves `[W, B, *]` of the parent of each hypothesis."""

    def choose(leaf: Array) -> Array:
        return follow(leaf, parents, leading=True)

    def is_part(part: object) -> bool:
        return isinstance(part, Constant) or hasattr(part, "gather_rows")

    found = []
    for part in jax.tree.leaves(state, is_leaf=is_part):
        if isinstance(part, Constant):
            found += jax.tree.leaves(part)
        elif hasattr(part, "gather_rows"):
            found += jax.tree.leaves(part.gather_rows(choose))
        else:
            found.append(choose(part))
    return found


def follow(leaf: Array, parents: Array, *, leading: bool = False) -> Array:
    """Select hypotheses of each row.

    Args:
        leaf: `[B, W, *]`.
        parents: `[B, X]`.
        leading: whether the leaf is `[W, B, *]`.

    Returns:
        `[B, X, *]`, or `[X, B, *]`.
    """
    axis = 1 if leading else 0

    def one_row(own: Array, parents: Array) -> Array:
        return jnp.take(own, parents, axis=0)

    return jax.vmap(one_row, in_axes=(axis, 0), out_axes=axis)(leaf, parents)
