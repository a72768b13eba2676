"""Attention of one head in tiles, with memory linear in T and S.

The value is an online softmax (Milakov and Gimelshein 2018, section 3; Rabe and Staats 2021) in a
loop over the tiles that are visited. With m the largest score of a query, output = Σ e v / Σ e with
e = exp(score - m), and for any constant m both sums have the same quotient. So once m is known, the
derivatives are those of plain sums over tiles, in any order, each under `jax.checkpoint`: JAX
derives from them every order and mode, none of which keeps a tile in memory. `derive_as` joins the
two: it takes arrays and no function, so masks and score functions close over traced arrays as they
are, and what only the derivatives need is dead code where nothing is differentiated.

Why the loops are as they are:

- A `scan`, or a `fori_loop` with static bounds, is linearized even where its results are constants,
  and then keeps the mask of every tile. A `while` loop is not, so the online softmax is one.
- A `cond` in a checkpointed `scan` keeps arrays of every tile if one of its results is needed in
  the forward pass. The values of the sums are not.
- jax 0.10 drops the rule of a `custom_jvp` from the primal side of a differentiated `scan`. So the
  online softmax has the right derivatives itself: only m is constant in it.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.arguments import Arguments
from attention.primitives.dropout import keep_factor
from attention.primitives.masks import And, PairMask
from attention.primitives.numerics import (
    nan_where,
    product,
    replace_nonfinite,
    replace_nonfinite_keys,
)
from attention.primitives.pytree_dataclass import (
    array_field,
    arrays_of,
    map_arrays,
    pytree_dataclass,
)
from attention.primitives.vectorize import varying_alike, with_axes_of_one
from attention.primitives.visits import Visits

Tree = Any

# Visits of the shortest loop that saves more time than it takes to compile.
SHORTEST_LOOP = 5

checkpoint = partial(jax.checkpoint, prevent_cse=False)


@dataclass(frozen=True)
class Tiles:
    """Sizes that are compiled in.

    Attributes:
        sizes: queries and keys per tile.
        shape: rows and columns of tiles.
        most: how many tiles a row visits at most.
        cast: whether products are computed in the dtype of the scores.
    """

    sizes: tuple[int, int]
    shape: tuple[int, int]
    most: int
    cast: bool

    @property
    def is_one(self) -> bool:
        """Whether there is one tile."""
        return self.shape == (1, 1)


@pytree_dataclass
class Head(Arguments):
    """The arguments of one head, with tiles of the key `[columns, H, size]` and value transposed.

    Their derivatives are then products that transpose no tile of scores. All rows of tiles share
    the transposed tiles.
    """

    key: Array = array_field("KChs")
    value: Array = array_field("KChs")


@pytree_dataclass
class Sums:
    """Sums over the keys of each query, in the dtype of the scores.

    Attributes:
        largest: the largest score `[..., N, T]`; the smallest finite number without keys.
        total: Σ exp(score - largest) `[..., N, T]`.
        weighted: Σ exp(score - largest) · value after dropout `[..., T, N, Hv]`.
    """

    largest: Array = array_field("NT")
    total: Array | None = array_field("NT")
    weighted: Array | None = array_field("TNh")

    def with_heads_last(self) -> "Sums":
        """Return the sums of an example with `weighted` `[T, N, Hv]` in place of `[N, T, Hv]`."""
        return replace(self, weighted=jnp.swapaxes(self.weighted, 0, 1))


@jax.custom_jvp
def derive_as(value: Array, other: Array) -> Array:
    """Return `value`, whose derivatives are those of `other`, computed in another way."""
    del other
    return value


@derive_as.defjvp
def _derive_as_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    return derive_as(*primals), tangents[1]


def online_softmax(
    tiles: Tiles, visits: Visits | None, one: Arguments, before: Sums | None = None
) -> Sums:
    """Return the sums of one head over the keys that are visited, added to those `before`.

    One loop visits the tiles of all rows, which compiles faster than a loop for each row.
    """
    head, length = _in_whole_tiles(tiles, one), one.query.shape[0]
    start = _no_keys(head) if before is None else _pad(before, "T", head.query.shape[0])
    counts = jnp.full(tiles.shape[0], tiles.shape[1]) if visits is None else visits.counts
    ends = jnp.cumsum(counts, dtype=jnp.int32)

    def visit(state: tuple[Array, Sums]) -> tuple[Array, Sums]:
        number, sums = state
        row = jnp.sum(ends <= number, dtype=jnp.int32)
        column = number - ends[row] + counts[row]
        column = column if visits is None else visits.column(row, column)
        tile = _tile(_tile(head, "T", row, tiles.sizes[0]), "S", column, tiles.sizes[1])
        added = _add_tile(tile, _tile(sums, "T", row, tiles.sizes[0]))

        def write(whole: Array, part: Array) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(whole, part, row * tiles.sizes[0], 0)

        return number + 1, jax.tree.map(write, sums, added)

    _, sums = jax.lax.while_loop(lambda state: state[0] < ends[-1], visit, (jnp.int32(0), start))
    return jax.tree.map(lambda x: x[:length], sums)


def sums_over_tiles(
    tiles: Tiles, visits: Visits | None, one: Arguments, known: Sums
) -> tuple[Array, Array]:
    """Return `total` and `weighted` of one head as plain sums over tiles, for their derivatives.

    Args:
        tiles: sizes.
        visits: the tiles to visit; None for all.
        one: arguments of one head.
        known: the largest score of each query, which is constant, and no sums.
    """
    largest = jax.lax.stop_gradient(known.largest)
    one, length = _in_whole_tiles(tiles, one), one.query.shape[0]
    largest = jnp.pad(largest, (0, one.query.shape[0] - length)).reshape(tiles.shape[0], -1)

    @checkpoint
    def of_row(given: tuple[Array, list[Array], Array]) -> tuple[Array, Array]:
        row, queries, largest = given
        at_row = _with_tiles(one, "T", queries)
        columns = _tiles_of(at_row, "S", tiles.sizes[1])
        start = _no_keys(at_row)
        zeros = start.total, start.weighted

        def of_tile(here: list[Array]) -> tuple[Array, Array]:
            tile = _with_tiles(at_row, "S", here)
            exponentials = _exp(_masked(tile, _scores(tile) - largest[:, None]))
            return exponentials.sum(axis=-1), _weighted_values(tile, exponentials)

        @checkpoint
        def visit(sums: tuple[Array, Array], given: tuple) -> tuple[tuple[Array, Array], None]:
            is_visited, here = given
            if is_visited is None:
                more = of_tile(here)
            else:
                more = jax.lax.cond(is_visited, of_tile, lambda _: zeros, here)
            return jax.tree.map(jnp.add, sums, more), None

        def first(number: int) -> tuple[Array, Array]:
            """Sum over the first tiles that the row visits."""
            numbers = jnp.arange(number, dtype=jnp.int32)
            at = jnp.clip(visits.column(row, numbers), 0, tiles.shape[1] - 1)

            def at_column(
                sums: tuple[Array, Array], given: tuple[Array, Array]
            ) -> tuple[tuple[Array, Array], None]:
                is_visited, column = given
                here = [jax.lax.dynamic_index_in_dim(x, column, keepdims=False) for x in columns]
                return visit(sums, (is_visited, here))

            return jax.lax.scan(at_column, zeros, (numbers < visits.counts[row], at))[0]

        def in_order() -> tuple[Array, Array]:
            """Sum over all tiles, of which some are skipped."""
            is_visited = None if visits is None else visits.flags(row, tiles.shape[1])
            return jax.lax.scan(visit, zeros, (is_visited, columns))[0]

        if visits is None:
            return in_order()
        if tiles.most < tiles.shape[1]:
            return first(tiles.most)
        # To skip a tile takes time too, as its derivative is an array of zeros: more than half of
        # the gradient of eight packed sequences of 512 tokens on a CPU.
        if (few := tiles.most // 6) < SHORTEST_LOOP:
            return in_order()
        return jax.lax.cond(visits.counts[row] <= few, lambda: first(few), in_order)

    rows = jnp.arange(tiles.shape[0], dtype=jnp.int32)
    sums = jax.lax.map(of_row, (rows, _tiles_of(one, "T", tiles.sizes[0]), largest))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:length], sums)


def _scores(tile: Head) -> Array:
    """Return the scores of a tile before the mask."""
    rows, columns = tile.query_positions[:, None], tile.key_positions[None, :]
    scores = product("TH,HS->TS", tile.query, tile.key, tile.dtype, tile.precision)
    scores = tile.scale * scores
    for score in tile.scores:
        scores = score(scores, rows, columns, tile.heads)
    return scores


def _masked(tile: Head, scores: Array) -> Array:
    """Set the scores of masked pairs to -inf."""
    if tile.mask is None:
        return scores
    rows, columns = tile.query_positions[:, None], tile.key_positions[None, :]
    return jnp.where(tile.mask(rows, columns), scores, -jnp.inf)


def _exp(exponents: Array) -> Array:
    """Return exp(min(exponents, 0)), derived as exp: a rounded score may exceed the largest one."""
    zero = exponents - jax.lax.stop_gradient(exponents)
    return jnp.exp(jnp.where(exponents > 0, zero, exponents))


def _weighted_values(tile: Head, weights: Array) -> Array:
    """Return the sum of the values by weights after dropout."""
    if tile.dropout is not None:
        keep = keep_factor(tile.dropout, tile.heads, tile.query_positions, tile.key_positions)
        weights = weights * keep.astype(weights.dtype)
    weights = weights.astype(tile.value.dtype)
    return product("TS,HS->TH", weights, tile.value, tile.dtype, tile.precision)


def _add_tile(tile: Head, sums: Sums) -> Sums:
    """Add the keys of a tile to those before it."""
    of_queries, of_keys = (
        nan_where(flags, tile.dtype) for flags in (tile.nonfinite_queries, tile.nonfinite_keys)
    )
    scores = _masked(tile, _scores(tile) + of_queries[:, None] + of_keys[None, :])
    largest = jnp.maximum(sums.largest, jax.lax.stop_gradient(scores).max(axis=-1))
    # A masked pair stays masked in a row whose largest score is NaN.
    scores = jnp.where(jnp.isneginf(scores), -jnp.inf, scores - largest[:, None])
    exponentials, shrink = _exp(scores), _exp(sums.largest - largest)
    total = sums.total * shrink + exponentials.sum(axis=-1)
    weighted = sums.weighted * shrink[:, None] + _weighted_values(tile, exponentials)
    return Sums(largest, total, weighted)


def _no_keys(one: Head) -> Sums:
    """Return the sums of a head over no keys."""
    queries = one.query.shape[:1]
    return no_keys(one, queries, (*queries, one.value.shape[-2]))


def no_keys(arguments: Arguments, rows: tuple[int, ...], weighted: tuple[int, ...]) -> Sums:
    """Return the sums over no keys, varying over the same axes of a mesh as the arguments.

    Args:
        arguments: of a head, or of all.
        rows: shape of `largest` and `total`.
        weighted: shape of `weighted`.
    """
    dtype = arguments.dtype
    smallest = jnp.full(rows, jnp.finfo(dtype).min, dtype)
    zeros = jnp.zeros(rows, dtype), jnp.zeros(weighted, dtype)
    return Sums(*varying_alike([smallest, *zeros, *jax.tree.leaves(arguments)])[:3])


def _in_whole_tiles(tiles: Tiles, one: Arguments) -> Head:
    """Replace non-finite numbers, and pad the queries and keys of one head to whole tiles."""
    one = with_axes_of_one(one)
    query, nonfinite_queries = replace_nonfinite(one.query)
    key, value, nonfinite_keys = one.key, one.value, one.nonfinite_keys
    if nonfinite_keys is None:
        key, value, nonfinite_keys = replace_nonfinite_keys(key, value)
    if tiles.cast:
        query, key, value = (array.astype(one.dtype) for array in (query, key, value))
    changed = {"nonfinite_queries": nonfinite_queries, "nonfinite_keys": nonfinite_keys}
    one = replace(one, query=query, key=key, value=value, **changed)
    num_queries, num_keys = (n * size for n, size in zip(tiles.shape, tiles.sizes, strict=True))
    if (length := key.shape[0]) < num_keys:
        is_key = PairMask((jnp.arange(length) >= 0)[None, None, :])  # padded with False
        one = replace(one, mask=is_key if one.mask is None else And(one.mask, is_key))
    one = _pad(_pad(one, "T", num_queries), "S", num_keys)

    def transposed(array: Array) -> Array:  # [S, H] -> [columns, H, size]
        return jnp.swapaxes(array.reshape(*tiles.shape[1:], -1, array.shape[-1]), 1, 2)

    return Head(**(vars(one) | {"key": transposed(one.key), "value": transposed(one.value)}))


def _axis(array: Array, axes: str, letter: str) -> int | None:
    """Return which axis of an array of one head has a letter; None if it has none or it is 1."""
    if array.ndim != len(axes):
        axes = axes.replace("N", "").replace("K", "")
    axis = axes.find(letter)
    return None if axis < 0 or array.shape[axis] == 1 else axis


def _pad(tree: Tree, letter: str, size: int) -> Tree:
    """Pad the arrays of one head along T or S: positions with the last one, others with 0."""

    def pad(array: Array, axes: str) -> Array:
        if (axis := _axis(array, axes, letter)) is None or array.shape[axis] == size:
            return array
        widths = [(0, 0)] * array.ndim
        widths[axis] = (0, size - array.shape[axis])
        return jnp.pad(array, widths, mode="edge" if axes == letter else "constant")

    return map_arrays(tree, pad)


def _has_tiles(array: Array, axes: str, letter: str) -> bool:
    """Return whether an array of one head is cut along T or S; tiles of keys are cut already."""
    return (letter == "S" and "C" in axes) or _axis(array, axes, letter) is not None


def _tile(tree: Tree, letter: str, number: Array, size: int) -> Tree:
    """Return the arrays of one head in a tile of queries (letter T) or keys (letter S)."""

    def slice_of(array: Array, axes: str) -> Array:
        if letter == "S" and "C" in axes:
            return jax.lax.dynamic_index_in_dim(array, number, keepdims=False)
        if (axis := _axis(array, axes, letter)) is None:
            return array
        return jax.lax.dynamic_slice_in_dim(array, number * size, size, axis)

    return map_arrays(tree, slice_of)


def _tiles_of(tree: Tree, letter: str, size: int) -> list[Array]:
    """Return the arrays of one head that have an axis T or S, cut into tiles `[tiles, ...]`."""

    def cut(array: Array, axes: str) -> Array:
        if "C" in axes:
            return array
        axis = _axis(array, axes, letter)
        before, after = array.shape[:axis], array.shape[axis + 1 :]
        return jnp.moveaxis(array.reshape(*before, -1, size, *after), axis, 0)

    return [cut(x, axes) for x, axes in arrays_of(tree) if _has_tiles(x, axes, letter)]


def _with_tiles(tree: Tree, letter: str, tiles: list[Array]) -> Tree:
    """Return the tree with these tiles in place of the arrays that have an axis T or S."""
    tiles = iter(tiles)
    return map_arrays(tree, lambda x, axes: next(tiles) if _has_tiles(x, axes, letter) else x)
