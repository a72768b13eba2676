"""`attend` in tiles, with memory linear in T and S.

Up to one tile it is the definition itself, for a few examples with all of their heads at a time.

Beyond that the value is an online softmax (Milakov and Gimelshein 2018, section 3; Rabe and Staats
2021) in a loop over the tiles that are visited. With m the largest score of a query, output =
Σ e v / Σ e with e = exp(score - m), and for any constant m both sums have the same quotient. So
once m is known, the derivatives are those of plain sums over tiles, in any order, each under
`jax.checkpoint`: JAX derives from them every order and mode, none of which keeps a tile in memory.
`derive_as` joins the two: it takes arrays and no function, so masks and score functions close over
traced arrays as they are, and what only the derivatives need is dead code where nothing is
differentiated.

Why the loops are as they are:

- A `scan`, or a `fori_loop` with static bounds, is linearized even where its results are constants,
  and then keeps the mask of every tile. A `while` loop is not, so the online softmax is one.
- A `cond` in a checkpointed `scan` keeps arrays of every tile if one of its results is needed in
  the forward pass. The values of the sums are not.
- jax 0.10 drops the rule of a `custom_jvp` from the primal side of a differentiated `scan`. So the
  online softmax has the right derivatives itself: only m is constant in it.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.arguments import Arguments
from attention.primitives.dot_product import attend_by_definition, checkpoint
from attention.primitives.dropout import keep_factor
from attention.primitives.layout import Layout, Visits, layout_of, visits_of
from attention.primitives.masks import And, PairMask
from attention.primitives.numerics import (
    derive_as,
    nan_rows,
    nan_where,
    product,
    replace_nonfinite,
    replace_nonfinite_keys,
    share_with_sinks,
    wide,
)
from attention.primitives.pytree_dataclass import array_field, join, map_arrays, pytree_dataclass
from attention.primitives.vectorize import (
    index,
    over_batch,
    over_heads,
    varying_alike,
    with_axes_of_one,
)

Tree = Any

# Axes of an array of one head that is cut into tiles.
IN_TILES = str.maketrans({"N": "", "K": "", "T": "Tt", "S": "Ss"})

# Visits of the shortest loop that saves more time than it takes to compile.
SHORTEST_LOOP = 5


@pytree_dataclass
class Sums:
    """Sums over the keys of each query, in the dtype of the scores.

    Attributes:
        largest: the largest score `[..., N, T]`; the smallest finite number without keys.
        total: Σ exp(score - largest) `[..., N, T]`.
        weighted: Σ exp(score - largest) · value after dropout `[..., N, T, Hv]`.
        output: weighted / total `[..., T, N, Hv]`, 0 without keys; None if `results_of` divides.
    """

    largest: Array = array_field("NT")
    total: Array | None = array_field("NT")
    weighted: Array | None = array_field("NTh")
    output: Array | None = array_field("TNh", default=None)


@partial(jax.jit, static_argnums=1, inline=True)
def attend_in_tiles(arguments: Arguments, platform: str = "cpu") -> dict[str, Array]:
    """`attend` with memory linear in T and S: "output" and what `arguments.returning` names.

    There must be a query and a key. The platform decides the default tile sizes.
    """
    layout = layout_of(arguments, platform)
    # The compiler would take seconds to fold a constant array of pairs.
    barrier = jax.lax.optimization_barrier
    mask = map_arrays(arguments.mask, lambda x, axes: barrier(x) if len(axes) > 2 else x)
    arguments = replace(arguments, mask=mask)

    if layout.shape == (1, 1):
        inputs = arguments.query, arguments.key, arguments.value
        query, key, value = wide(*inputs) if layout.cast else inputs
        given = replace(arguments, query=query, key=key, value=value)
        results = attend_by_definition(given, examples=layout.examples, kv_heads=layout.kv_heads)
        return results | {"output": results["output"].astype(arguments.query.dtype)}
    found = for_all_heads(online_sums, layout, arguments)
    # Joined here and not in the loops: jax 0.10 would drop the rule of `derive_as` in a scan.
    plain = for_all_heads(plain_sums, layout, arguments, Sums(found.largest, None, None))
    sums = derive_as((found.total, found.weighted), (plain.total, plain.weighted))
    results = results_of(arguments, Sums(found.largest, *sums, found.output))
    if "weights" in arguments.returning:  # T·S numbers, so their scores fit memory too
        results["weights"] = attend_by_definition(replace(arguments, sinks=()))["weights"]
    return share_with_sinks(results, arguments.sinks)


def for_all_heads(
    function: Callable[..., Sums], layout: Layout, arguments: Arguments, *known: Sums
) -> Sums:
    """Map `online_sums` or `plain_sums`, which are functions of one head, to heads and examples."""

    def example(one: Arguments, *known: Sums) -> Sums:
        one = one.by_index()
        of_head = partial(function, layout, visits_of(layout, one))
        sums = over_heads(of_head, (one, *known), layout.kv_heads, moved=function is plain_sums)
        shape = *sums.total.shape, one.value.shape[-1]
        output = jax.tree.map(lambda x: jnp.swapaxes(x.reshape(shape), 0, 1), sums.output)
        return replace(sums, weighted=sums.weighted.reshape(shape), output=output)

    return over_batch(example, (arguments, *known), arguments.batch, layout.examples)


def results_of(arguments: Arguments, sums: Sums) -> dict[str, Array]:
    """Return "output", "logsumexp" and "largest_score" of all heads, without sinks."""
    is_nan, is_empty = jnp.isnan(sums.total), sums.total == 0
    total = jnp.where(is_nan | is_empty, 1, sums.total)
    output = jnp.swapaxes(nan_rows(sums.weighted / total[..., None], sums.total), -2, -3)
    if sums.output is not None:  # `online_sums` divided already
        output = derive_as(sums.output, output)
    largest = jax.lax.stop_gradient(jnp.where(is_empty, -jnp.inf, sums.largest))
    return {
        "output": output.astype(arguments.query.dtype),
        "logsumexp": jnp.where(is_nan, jnp.nan, jnp.log(total)) + largest,
        "largest_score": largest,
    }


def online_sums(layout: Layout, visits: Visits, one: Arguments, before: Sums | None = None) -> Sums:
    """Add the visits of one head to `before`; on a CPU, `weighted` and `output` are `[T · Hv]`."""
    head = _in_whole_tiles(layout, one)
    start = _no_keys(head) if before is None else _cut(layout, replace(before, output=None))
    rows, of_all_rows = _split((head, start), "T")

    def of_row(given: tuple[Visits, Tree]) -> Sums:
        visits, here = given
        at_row, sums = join(here, of_all_rows)

        def add_tile(state: tuple[Array, Sums]) -> tuple[Array, Sums]:
            number, sums = state
            tile = _tile(at_row, "S", visits.column(number))
            tile = replace(tile, key=tile.key.T, value=tile.value.T)
            scores = _scores(tile, nan_where(tile.nonfinite_keys, tile.dtype)[None, :])
            largest = jnp.maximum(sums.largest, jax.lax.stop_gradient(scores).max(axis=-1))
            exponents = scores - largest[:, None]
            if tile.mask is not None:  # a masked pair stays masked where the largest score is NaN
                exponents = jnp.where(jnp.isneginf(scores), -jnp.inf, exponents)
            exponentials, shrink = jnp.exp(exponents), jnp.exp(sums.largest - largest)
            total = sums.total * shrink + exponentials.sum(axis=-1)
            weighted = sums.weighted * shrink[:, None] + _weighted_values(tile, exponentials)
            return number + 1, Sums(largest, total, weighted)

        start = visits.stop - visits.count, sums
        sums = jax.lax.while_loop(lambda state: state[0] < visits.stop, add_tile, start)[1]
        # Queries that are not finite were replaced by 0; if a key is visible, their sums are NaN.
        nan = nan_where(at_row.nonfinite_queries & (sums.total > 0), one.dtype)
        total = sums.total + nan
        output = sums.weighted / jnp.where(total == 0, 1, total)[:, None]
        flat = jnp.ravel if layout.cast else jnp.asarray  # loops that write vectors compile faster
        return Sums(sums.largest + nan, total, flat(sums.weighted), flat(output))

    return _without_padding(jax.lax.map(of_row, (visits, rows)), one)


@partial(checkpoint, static_argnums=0)
def plain_sums(layout: Layout, visits: Visits, one: Arguments, known: Sums) -> Sums:
    """Return `total` and `weighted` of one head as plain sums over tiles, for their derivatives.

    `known`: the largest score of each query, which is constant, and no sums. Tiles of key and value
    are transposed, `[columns, H, size]`: their derivatives are then products that transpose no tile
    of scores. All rows of tiles share them.
    """
    num_columns = layout.shape[1]
    known = _cut(layout, jax.lax.stop_gradient(known))
    head = _in_whole_tiles(layout, one)
    head = replace(head, key=jnp.swapaxes(head.key, 1, 2), value=jnp.swapaxes(head.value, 1, 2))
    rows, of_all_rows = _split((head, known), "T")

    @checkpoint
    def of_row(given: tuple[Visits, Tree]) -> Sums:
        visits, here = given
        at_row, known = join(here, of_all_rows)
        columns, of_all_columns = _split(at_row, "S")
        zeros = replace(_no_keys(replace(at_row, value=at_row.value.mT)), largest=None)

        def of_tile(here: Arguments) -> Sums:
            tile = join(here, of_all_columns)
            exponents = _scores(tile, -known.largest[:, None])
            # min(exponents, 0), derived as if it were not: rounded scores may exceed the largest.
            zero = exponents - jax.lax.stop_gradient(exponents)
            exponentials = jnp.exp(jnp.where(exponents > 0, zero, exponents))
            return Sums(None, exponentials.sum(axis=-1), _weighted_values(tile, exponentials))

        @checkpoint
        def add(sums: Sums, given: tuple[Array | None, Arguments]) -> tuple[Sums, None]:
            is_visited, here = given
            if is_visited is None:
                more = of_tile(here)
            else:
                more = jax.lax.cond(is_visited, of_tile, lambda _: zeros, here)
            return jax.tree.map(jnp.add, sums, more), None

        def in_order() -> Sums:
            """Sum over all tiles, of which some are skipped."""
            is_visited = None if layout.visit_all else visits.flags(num_columns)
            return jax.lax.scan(add, zeros, (is_visited, columns), num_columns)[0]

        def first(number: int) -> Sums:
            """Sum over the first tiles that the row visits."""
            numbers = visits.stop - visits.count + jnp.arange(number, dtype=jnp.int32)
            at = jnp.clip(visits.column(numbers), 0, num_columns - 1)

            def add_column(sums: Sums, given: tuple[Array, Array]) -> tuple[Sums, None]:
                is_visited, column = given
                return add(sums, (is_visited, jax.tree.map(lambda x: index(x, column), columns)))

            return jax.lax.scan(add_column, zeros, (numbers < visits.stop, at))[0]

        if layout.visit_all:
            return in_order()
        if layout.most < num_columns:
            return first(layout.most)
        # To skip a tile takes time too, as its derivative is an array of zeros: more than half of
        # the gradient of eight packed sequences of 512 tokens on a CPU.
        if (few := layout.most // 6) < SHORTEST_LOOP:
            return in_order()
        return jax.lax.cond(visits.count <= few, lambda: first(few), in_order)

    sums = jax.lax.map(of_row, (visits, rows))
    return _without_padding(sums, one)


def _scores(tile: Arguments, added: Array) -> Array:
    """Return the scores of a tile plus what is added; -inf where a pair is masked."""
    rows, columns = tile.query_positions[:, None], tile.key_positions[None, :]
    scores = tile.scale * product("TH,HS->TS", tile.query, tile.key, tile.dtype, tile.precision)
    for score in tile.scores:
        scores = score(scores, rows, columns, tile.heads)
    scores += added
    return scores if tile.mask is None else jnp.where(tile.mask(rows, columns), scores, -jnp.inf)


def _weighted_values(tile: Arguments, weights: Array) -> Array:
    """Return the sum of the values by weights after dropout."""
    if tile.dropout is not None:
        keep = keep_factor(tile.dropout, tile.heads, tile.query_positions, tile.key_positions)
        weights = weights * keep.astype(weights.dtype)
    weights = weights.astype(tile.value.dtype)
    return product("TS,HS->TH", weights, tile.value, tile.dtype, tile.precision)


def _no_keys(one: Arguments) -> Sums:
    """Return the sums over no keys, varying over the same axes of a mesh as the arguments."""
    dtype, queries = one.dtype, one.query.shape[:-1]
    smallest = jnp.full(queries, jnp.finfo(dtype).min, dtype)
    zeros = jnp.zeros(queries, dtype), jnp.zeros((*queries, one.value.shape[-1]), dtype)
    return Sums(*varying_alike([smallest, *zeros, *jax.tree.leaves(one)])[:3])


def _in_whole_tiles(layout: Layout, one: Arguments) -> Arguments:
    """Replace non-finite numbers, and cut the arguments of one head into whole tiles."""
    one = with_axes_of_one(one)
    query, nonfinite_queries = replace_nonfinite(one.query)
    key, value, nonfinite_keys = one.key, one.value, one.nonfinite_keys
    if nonfinite_keys is None:
        key, value, nonfinite_keys = replace_nonfinite_keys(key, value)
    if layout.cast:
        query, key, value = (array.astype(one.dtype) for array in (query, key, value))
    changed = {"nonfinite_queries": nonfinite_queries, "nonfinite_keys": nonfinite_keys}
    one = replace(one, query=query, key=key, value=value, **changed)
    if (length := key.shape[0]) % layout.sizes[1]:
        is_key = PairMask((jnp.arange(length) >= 0)[None, None, :])  # padded with False
        one = replace(one, mask=is_key if one.mask is None else And(one.mask, is_key))
    return _cut(layout, one)


def _cut(layout: Layout, tree: Tree) -> Tree:
    """Cut the axes T and S of arrays of one head into `[tiles, size]`; an axis of 1, into `[1, 1]`.

    The last tile is padded: positions with the last position, other arrays with 0.
    """

    def cut(array: Array, axes: str) -> Array:
        for letter, number, size in zip("ST", layout.shape[::-1], layout.sizes[::-1], strict=True):
            if (axis := _axis(axes, letter)) is None:
                continue
            axis += array.ndim + 1
            number, size = (1, 1) if array.shape[axis] == 1 else (number, size)
            if (missing := number * size - array.shape[axis]) > 0:
                widths = [(0, missing if n == axis else 0) for n in range(array.ndim)]
                array = jnp.pad(array, widths, mode="edge" if axes == letter else "constant")
            array = array.reshape(*array.shape[:axis], number, size, *array.shape[axis + 1 :])
        return array

    return map_arrays(tree, cut)


def _axis(axes: str, letter: str) -> int | None:
    """Return which axis, counted from the last, contains the tiles of T or S; None if none does."""
    axes = axes.translate(IN_TILES)
    return axes.index(letter) - len(axes) if letter in axes else None


def _tile(tree: Tree, letter: str, number: Array | int) -> Tree:
    """Return the arrays of one head in a tile of queries (letter T) or keys (letter S)."""

    def take(array: Array, axes: str) -> Array:
        if (axis := _axis(axes, letter)) is None:
            return array
        return array.squeeze(axis) if array.shape[axis] == 1 else index(array, number, axis)

    return map_arrays(tree, take)


def _split(tree: Tree, letter: str) -> tuple[Tree, Tree]:
    """Return the arrays that differ between tiles, `[tiles, ...]`, and those that all tiles share.

    Each tree has None in place of the arrays of the other one.
    """

    def differs(array: Array, axes: str) -> bool:
        return (axis := _axis(axes, letter)) is not None and array.shape[axis] > 1

    def tiles(array: Array, axes: str) -> Array | None:
        return jnp.moveaxis(array, _axis(axes, letter), 0) if differs(array, axes) else None

    shared = map_arrays(tree, lambda x, axes: None if differs(x, axes) else x)
    return map_arrays(tree, tiles), _tile(shared, letter, 0)


def _without_padding(sums: Sums, one: Arguments) -> Sums:
    """Return `[rows, size, ...]` as `[T, ...]`, and vectors `[rows, size · Hv]` as `[T · Hv]`."""
    length, size = one.query.shape[0], sums.total.shape[1]
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[: x.shape[1] // size * length], sums)
