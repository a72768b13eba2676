"""One step for all the hypotheses of a beam: the step, lifted by `vmap`.

The step itself reads B tokens and knows of no beam; what it closes over (parameters, the
memory of an encoder, its mask) is shared by the W hypotheses of a row and never repeated.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attention.decoding.loop import Predict
from attention.decoding.memory import are_memory


class Chosen(NamedTuple):
    """The last tokens `[B, W]`, and which hypotheses of the row they extend, `[B, W]`."""

    tokens: Array
    parents: Array


def batch_axes(state: object, state_axes: object, batch_size: int) -> list[int | None]:
    """Where leaves have their batch axis, if each hypothesis has its own; None if they share them.

    Args:
        state: of a step for B rows, or its shapes.
        state_axes: the same as `in_axes` of `jax.vmap`. Scalars have none in any case.
        batch_size: B.

    Raises:
        ValueError: a leaf whose batch axis is not B long, or an axis below 0.
    """
    if any(axis < 0 for axis in jax.tree.leaves(state_axes)):
        raise ValueError(f"state_axes count from the front, from 0 on, got {state_axes}")
    axes = jax.tree.map(
        lambda axis, part: [axis] * len(jax.tree.leaves(part)),
        state_axes,
        state,
        is_leaf=lambda axis: axis is None,
    )
    axes = jax.tree.leaves(axes, is_leaf=lambda axis: axis is None)
    found = []
    leaves = jax.tree.leaves_with_path(state)
    for (path, leaf), axis, is_memory in zip(leaves, axes, are_memory(state), strict=True):
        shared = axis is None or is_memory or not leaf.ndim
        if not shared and leaf.shape[axis : axis + 1] != (batch_size,):
            raise ValueError(
                f"state{jax.tree_util.keystr(path)} must have the batch of {batch_size} at axis "
                f"{axis}, got shape {leaf.shape}; state_axes says where it is, None for nowhere"
            )
        found.append(None if shared else axis)
    return found


def spread(state: object, axes: list[int | None], beam: int) -> list[Array]:
    """The leaves of a state, repeated for each of W hypotheses.

    W is their first axis, so that `vmap` moves none of them; those without a batch axis stay.
    """
    return [
        leaf if axis is None else jnp.stack([leaf] * beam)
        for leaf, axis in zip(jax.tree.leaves(state), axes, strict=True)
    ]


def for_each(
    predict: Predict, structure: jax.tree_util.PyTreeDef, axes: list[int | None]
) -> Predict:
    """Lifts `predict` for B rows to B rows of W hypotheses, whose states follow their parents.

    Args:
        predict: `(state, tokens [B]) -> (logits [B, V], observed, state)`.
        structure: of the state.
        axes: of the leaves, as `batch_axes` finds them.

    Returns:
        `(leaves, Chosen) -> (logits [W, B, V], observed [B, W, *], leaves)`, where the logits stand
        as they were made, for they are many.
    """

    def flat(leaves: list[Array], tokens: Array) -> tuple[Array, object, list[Array]]:
        logits, observed, state = predict(jax.tree.unflatten(structure, leaves), tokens)
        return logits, observed, jax.tree.leaves(state)

    first = [None if axis is None else 0 for axis in axes]
    lifted = jax.vmap(flat, in_axes=(first, 1), out_axes=(0, 1, first))

    def predict_all(leaves: list[Array], last: Chosen) -> tuple[Array, object, list[Array]]:
        state = jax.tree.unflatten(structure, leaves)
        return lifted(_of_parents(state, axes, last.parents), last.tokens)

    return predict_all


def _of_parents(state: object, axes: list[int | None], parents: Array) -> list[Array]:
    """The leaves of the state of its parent for each hypothesis."""

    def moves_itself(part: object) -> bool:  # as a cache does, which knows what it holds
        return hasattr(part, "gather_rows")

    def choose(leaf: Array, axis: int) -> Array:
        return follow(leaf, parents, rows=axis + 1, leading=True)

    found, rest = [], iter(axes)
    for part in jax.tree.leaves(state, is_leaf=moves_itself):
        leaves = jax.tree.leaves(part)
        own = [next(rest) for _ in leaves]
        if moves_itself(part) and len({*own}) == 1 and own[0] is not None:
            found += jax.tree.leaves(part.gather_rows(partial(choose, axis=own[0])))
        else:
            found += [
                leaf if axis is None else choose(leaf, axis)
                for leaf, axis in zip(leaves, own, strict=True)
            ]
    return found


def follow(leaf: Array, parents: Array, *, rows: int = 0, leading: bool = False) -> Array:
    """Takes for each hypothesis what belongs to its parent.

    Args:
        leaf: an array with an axis of B and one of W.
        parents: `[B, W']`.
        rows: the axis of B.
        leading: whether the axis of W is the first; else it follows that of B.

    Returns:
        The same with W' in place of W.
    """
    axis = 0 if leading else rows  # once the axis of B is mapped over

    def row(own: Array, parents: Array) -> Array:
        return jnp.take(own, parents, axis=axis)

    return jax.vmap(row, in_axes=(rows, 0), out_axes=rows)(leaf, parents)
