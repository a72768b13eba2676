"""The loop over tiles: chunks of examples and heads, rows of tiles, and the columns to visit."""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.tiled.cuts import Along, Chunk, Output, Place, added, part_of, shared_by
from attention.primitives.tiled.tiling import Tiling
from attention.primitives.touched import Touched

Tree = Any


class Fold(NamedTuple):
    """What to do with the tiles of a row, of one example and head.

    `begin` makes a carry; `step` maps (carry, tiles, whether they may hold forbidden pairs) to the
    next carry and to parts of the outputs that are not cut along rows; `finish` maps the last carry
    to parts of those that are.
    """

    begin: Callable[[], Tree]
    step: Callable[[Tree, list[Array], bool], tuple[Tree, list[Array]]]
    finish: Callable[[Tree], list[Array]]


def sweep(
    fold: Fold,
    leaves: Sequence[Array],
    along: Sequence[Along],
    outputs: Sequence[Output],
    visits: Touched | None,
    tiling: Tiling,
) -> list[Array]:
    """Runs a fold over every row of tiles, for all examples and heads.

    The tiles that `visits`, `[B, K, rows, columns]` where B and K may be 1, allows no pair of are
    never computed; None allows all.
    """
    one_tile = tiling.rows == tiling.columns == 1
    order = None if visits is None or one_tile else _order(visits, tiling)
    is_row = [output.along == "row" for output in outputs]

    def add(totals: list[Array], parts: list[Array], rows: bool, place: Place) -> list[Array]:
        waiting = iter(parts)
        return [
            added(total, next(waiting), output.along, tiling, place) if row == rows else total
            for total, output, row in zip(totals, outputs, is_row, strict=True)
        ]

    def fold_row(chunk: Chunk, row: Array, totals: list[Array]) -> list[Array]:
        still = [
            None if cut in ("column", "pair") else part_of(leaf, cut, tiling, Place(chunk, row, 0))
            for leaf, cut in zip(leaves, along, strict=True)
        ]

        def visit(masked: bool, turn: Array, state: tuple[Tree, list[Array]]) -> Tree:
            carry, totals = state
            place = Place(chunk, row, turn if order is None else order.column(chunk, row, turn))
            tiles = [
                part_of(leaf, cut, tiling, place) if part is None else part
                for leaf, cut, part in zip(leaves, along, still, strict=True)
            ]
            shared = [
                shared_by(leaf.shape, cut, tiling) for leaf, cut in zip(leaves, along, strict=True)
            ]
            step = _over_chunk(partial(fold.step, masked=masked), shared, tiling)
            carry, parts = step(carry, tiles)
            return carry, add(totals, parts, False, place)

        carry = jax.tree.map(
            lambda array: jnp.broadcast_to(array, (*tiling.chunk, *array.shape)), fold.begin()
        )
        state = carry, totals
        if one_tile:
            state = visit(visits is not None, 0, state)
        elif order is None:
            state = jax.lax.fori_loop(0, tiling.columns, partial(visit, False), state)
        else:
            num_all, num_some = order.counts(chunk, row)
            state = jax.lax.fori_loop(0, num_all, partial(visit, False), state)
            state = jax.lax.fori_loop(num_all, num_some, partial(visit, True), state)
        carry, totals = state
        if not any(is_row):
            return totals
        finish = jax.vmap(jax.vmap(fold.finish))
        return add(totals, finish(carry), True, Place(chunk, row, 0))

    def fold_chunk(number: Array, totals: list[Array]) -> list[Array]:
        chunk = Chunk(number // tiling.chunks[1], number % tiling.chunks[1])
        return jax.lax.fori_loop(0, tiling.rows, partial(fold_row, chunk), totals)

    totals = [jnp.zeros(output.shape, output.dtype) for output in outputs]
    return jax.lax.fori_loop(0, prod(tiling.chunks), fold_chunk, totals)


class _Order(NamedTuple):
    """The columns to visit, those that hold only allowed pairs first; and how many of each kind.

    `columns` is `[chunks, chunks, rows, columns]`, the counts lack the last axis.
    """

    columns: Array
    num_all: Array
    num_some: Array

    def _entry(self, chunk: Chunk) -> tuple[Array | int, ...]:
        sizes = self.columns.shape[:2]
        return tuple(0 if size == 1 else n for size, n in zip(sizes, chunk, strict=True))

    def column(self, chunk: Chunk, row: Array, turn: Array) -> Array:
        return self.columns[(*self._entry(chunk), row, turn)]

    def counts(self, chunk: Chunk, row: Array) -> tuple[Array, Array]:
        at = (*self._entry(chunk), row)
        return self.num_all[at], self.num_some[at]


def _order(visits: Touched, tiling: Tiling) -> _Order:
    some, every = visits.some, visits.some & visits.every
    for axis, size in enumerate(tiling.chunk):  # a tile is visited if any of its chunk needs it
        size = min(size, some.shape[axis])
        shape = (*some.shape[:axis], -1, size, *some.shape[axis + 1 :])
        some, every = some.reshape(shape).any(axis + 1), every.reshape(shape).all(axis + 1)
    return _Order(*Touched(some, every).in_order())


def _over_chunk(
    step: Callable[..., Tree], shared: Sequence[tuple[int, ...]], tiling: Tiling
) -> Callable[..., Tree]:
    """Maps a step of (carry, tiles) over heads, and that over examples."""
    for axis in (1, 0):
        axes = [None if axis in both else 0 for both in shared]
        step = jax.vmap(step, in_axes=(0, axes), axis_size=tiling.chunk[axis])
    return step
