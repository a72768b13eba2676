"""Recurrent cells by name, and the state that they carry from one token to the next."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

Carry = Array | tuple[Array, Array]
State = TypeVar("State")


class Kind(NamedTuple):
    """A kind of cell.

    Attributes:
        build: `(width of the input, H, rngs=) -> cell`, with
            `cell(carry, inputs [..., D]) -> carry, output [..., H]`.
        begin: the carry that a vector `[..., H]` begins.
        output: what the cell said when it left this carry, `[..., H]`.
    """

    build: Callable[..., nnx.GRUCell | nnx.OptimizedLSTMCell]
    begin: Callable[[Array], Carry]
    output: Callable[[Carry], Array]


CELLS = {
    "gru": Kind(nnx.GRUCell, begin=lambda vector: vector, output=lambda carry: carry),
    "lstm": Kind(
        nnx.OptimizedLSTMCell, begin=lambda vector: (vector, vector), output=lambda carry: carry[1]
    ),
}


def hold(reads: Array | None, after: State, before: State) -> State:
    """The state after a token in the rows `[...]` that read it, and the state before in the others.

    Without `reads` every row does.
    """
    if reads is None:
        return after

    def choose(after: Array, before: Array) -> Array:
        rows = reads.reshape(*reads.shape, *[1] * (after.ndim - reads.ndim))
        return jnp.where(rows, after, before)

    return jax.tree.map(choose, after, before)


def time_first(array: Array | None, axis: int) -> Array | None:
    """The array as `jax.lax.scan` reads it, its axis of time in front."""
    return None if array is None else jnp.moveaxis(array, axis, 0)
