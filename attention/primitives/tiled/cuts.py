"""How arrays are cut into the parts of tiles, and put together again.

The arrays of a sweep have an axis of examples, one of heads, and are cut along some of the rest:

    "whole"   [B, K, ...]          all of it, for every tile of a head
    "row"     [B, T, K, ...]       one part for each row of tiles; [B, K, T, ...] if heads_first
    "column"  [B, K, ..., S]       one part for each column of tiles
    "pair"    [B, K, T, ..., S]    one part for each tile

Where B or K is 1, all examples or heads share the entry, and what comes back to it is their sum.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.tiled.tiling import Tiling

Along = Literal["whole", "row", "column", "pair"]


class Output(NamedTuple):
    """A result of a sweep: how it is cut, its shape in whole tiles, its dtype."""

    along: Along
    shape: tuple[int, ...]
    dtype: jnp.dtype


class Chunk(NamedTuple):
    """Which chunk of examples, which chunk of heads."""

    examples: Array | int
    heads: Array | int


class Place(NamedTuple):
    """Where a tile stands."""

    chunk: Chunk
    row: Array | int
    column: Array | int


def _bounds(
    shape: Sequence[int], along: Along, tiling: Tiling, place: Place
) -> tuple[list[Array | int], list[int]]:
    """Where the part of a tile starts in an array, and its size."""
    starts: list[Array | int] = [jnp.int32(0)] * len(shape)
    sizes = list(shape)

    def cut(axis: int, number: Array | int, size: int) -> None:
        starts[axis], sizes[axis] = jnp.int32(number) * size, size

    for number, size, axis in zip(place.chunk, tiling.chunk, _leading(along, tiling), strict=True):
        if shape[axis] > 1:
            cut(axis, number, size)
    if along in ("row", "pair"):
        cut(3 - sum(_leading(along, tiling)), place.row, tiling.row_size)
    if along in ("column", "pair"):
        cut(len(shape) - 1, place.column, tiling.column_size)
    return starts, sizes


def _leading(along: Along, tiling: Tiling) -> tuple[int, int]:
    """The axes of examples and heads; 0 and 2 leave 1 for the rows, and 0 and 1 leave 2."""
    return (0, 2) if along == "row" and not tiling.heads_first else (0, 1)


def shared_by(shape: Sequence[int], along: Along, tiling: Tiling) -> tuple[int, ...]:
    """Which of 0, the examples, and 1, the heads, share one entry."""
    return tuple(n for n, axis in enumerate(_leading(along, tiling)) if shape[axis] == 1)


def part_of(leaf: Array, along: Along, tiling: Tiling, place: Place) -> Array:
    """The part of an array at a place, examples and heads in front unless they share it."""
    part = jax.lax.dynamic_slice(leaf, *_bounds(leaf.shape, along, tiling, place))
    part = jnp.moveaxis(part, _leading(along, tiling), (0, 1))
    return jnp.squeeze(part, shared_by(leaf.shape, along, tiling))


def added(total: Array, part: Array, along: Along, tiling: Tiling, place: Place) -> Array:
    """An array to which the part of a place, examples and heads in front, was added."""
    starts, sizes = _bounds(total.shape, along, tiling, place)
    shared = shared_by(total.shape, along, tiling)
    part = jnp.sum(part, axis=shared, keepdims=True, dtype=total.dtype)
    part = jnp.moveaxis(part, (0, 1), _leading(along, tiling))
    own = tuple(total.shape[axis] for axis in _leading(along, tiling))
    if along == "row" and own == (tiling.examples, tiling.heads):
        return jax.lax.dynamic_update_slice(total, part, starts)  # complete, and written once
    part = part + jax.lax.dynamic_slice(total, starts, sizes)
    return jax.lax.dynamic_update_slice(total, part, starts)


def tile_shape(output: Output, tiling: Tiling) -> jax.ShapeDtypeStruct:
    """Of the part that one tile of one head contributes."""
    _, sizes = _bounds(output.shape, output.along, tiling, Place(Chunk(0, 0), 0, 0))
    leading = _leading(output.along, tiling)
    tile = [size for axis, size in enumerate(sizes) if axis not in leading]
    return jax.ShapeDtypeStruct(tuple(tile), output.dtype)
