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

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.arguments import Arguments
from attention.primitives.dot_product import attend_by_definition
from attention.primitives.dropout import keep_factor
from attention.primitives.layout import Layout, Visits, layout_of
from attention.primitives.masks import And, PairMask
from attention.primitives.numerics import (
    nan_where,
    product,
    replace_nonfinite,
    replace_nonfinite_keys,
    share_with_sinks,
    wide,
)
from attention.primitives.pytree_dataclass import (
    array_field,
    arrays_of,
    map_arrays,
    pytree_dataclass,
)
from attention.primitives.vectorize import (
    over_batch,
    over_heads,
    varying_alike,
    with_axes_of_one,
)

Tree = Any

# Visits of the shortest loop that saves more time than it takes to compile.
SHORTEST_LOOP = 5

checkpoint = partial(jax.checkpoint, prevent_cse=False)


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


@partial(jax.jit, static_argnums=1, inline=True)
def attend_in_tiles(arguments: Arguments, platform: str = "cpu") -> dict[str, Array]:
    """`attend` with memory linear in T and S: "output" and what `arguments.returning` names.

    Args:
        arguments: with at least one query and one key.
        platform: for the default tile sizes.
    """
    layout = layout_of(arguments, platform)
    # The compiler would take seconds to fold a constant array of pairs.
    mask = map_arrays(
        arguments.mask, lambda x, axes: jax.lax.optimization_barrier(x) if len(axes) > 2 else x
    )
    arguments = replace(arguments, mask=mask)

    if layout.shape == (1, 1):
        inputs = arguments.query, arguments.key, arguments.value
        query, key, value = wide(*inputs) if layout.cast else inputs
        given = replace(arguments, query=query, key=key, value=value)
        results = attend_by_definition(given, examples=layout.examples)
        return results | {"output": results["output"].astype(arguments.query.dtype)}
    found = online_sums(layout, arguments)
    # Joined here and not in the loops: jax 0.10 would drop the rule of `derive_as` in a scan.
    others = plain_sums(layout, arguments, found.largest)
    sums = derive_as((found.total, found.weighted), others)
    results = results_of(arguments, Sums(found.largest, *sums))
    if "weights" in arguments.returning:  # T·S numbers, so their scores fit memory too
        results["weights"] = attend_by_definition(replace(arguments, sinks=()))["weights"]
    return share_with_sinks(results, arguments.sinks)


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


def online_sums(layout: Layout, arguments: Arguments, before: Sums | None = None) -> Sums:
    """Return the sums of all heads and examples, added to those `before`, by an online softmax."""

    def example(one: Arguments, *before: Sums) -> Sums:
        one, visits = layout.of_example(one)
        function = partial(_online_sums_of_head, layout, visits)
        sums = over_heads(function, (one, *before), layout.kv_heads)
        return replace(sums, weighted=jnp.swapaxes(sums.weighted, 0, 1))

    trees = (arguments,) if before is None else (arguments, before)
    return over_batch(example, trees, arguments.batch, layout.examples)


def plain_sums(layout: Layout, arguments: Arguments, largest: Array) -> tuple[Array, Array]:
    """Return `total` and `weighted` of all heads and examples, given the largest scores."""

    def example(one: Arguments, known: Sums) -> tuple[Array, Array]:
        one, visits = layout.of_example(one)
        function = checkpoint(partial(_plain_sums_of_head, layout, visits))
        total, weighted = over_heads(function, (one, known), layout.kv_heads)
        return total, jnp.swapaxes(weighted, 0, 1)

    known = Sums(largest, None, None)
    return over_batch(example, (arguments, known), arguments.batch, layout.examples)


def results_of(arguments: Arguments, sums: Sums) -> dict[str, Array]:
    """Return "output", "logsumexp" and "largest_score" from the sums of all heads, without sinks.

    The cotangent of a row that is NaN stops here: 0 · NaN would reach the values of masked keys.
    """
    is_nan, is_empty = jnp.isnan(sums.total), sums.total == 0
    total = jnp.where(is_nan | is_empty, 1, sums.total)
    of_output = (jnp.swapaxes(x, -1, -2)[..., None] for x in (is_nan, total))  # [..., T, N, 1]
    is_nan_output, divisor = of_output
    output = jnp.where(is_nan_output, jnp.nan, sums.weighted / divisor)
    largest = jax.lax.stop_gradient(jnp.where(is_empty, -jnp.inf, sums.largest))
    return {
        "output": output.astype(arguments.query.dtype),
        "logsumexp": jnp.where(is_nan, jnp.nan, jnp.log(total)) + largest,
        "largest_score": largest,
    }


def _online_sums_of_head(
    layout: Layout, visits: Visits | None, one: Arguments, before: Sums | None = None
) -> Sums:
    """Return the sums of one head over the keys that are visited, added to those `before`.

    One loop visits the tiles of all rows, which compiles faster than a loop for each row.
    """
    head, length = _in_whole_tiles(layout, one), one.query.shape[0]
    start = _no_keys(head) if before is None else _pad(before, "T", head.query.shape[0])
    counts = jnp.full(layout.shape[0], layout.shape[1]) if visits is None else visits.counts
    ends = jnp.cumsum(counts, dtype=jnp.int32)

    def visit(state: tuple[Array, Sums]) -> tuple[Array, Sums]:
        number, sums = state
        row = jnp.sum(ends <= number, dtype=jnp.int32)
        column = number - ends[row] + counts[row]
        column = column if visits is None else visits.column(row, column)
        tile = _tile(_tile(head, "T", row, layout.sizes[0]), "S", column, layout.sizes[1])
        added = _add_tile(tile, _tile(sums, "T", row, layout.sizes[0]))

        def write(whole: Array, part: Array) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(whole, part, row * layout.sizes[0], 0)

        return number + 1, jax.tree.map(write, sums, added)

    _, sums = jax.lax.while_loop(lambda state: state[0] < ends[-1], visit, (jnp.int32(0), start))
    return jax.tree.map(lambda x: x[:length], sums)


def _plain_sums_of_head(
    layout: Layout, visits: Visits | None, one: Arguments, known: Sums
) -> tuple[Array, Array]:
    """Return `total` and `weighted` of one head as plain sums over tiles, for their derivatives.

    Args:
        layout: of all heads.
        visits: the tiles to visit; None for all.
        one: arguments of one head.
        known: the largest score of each query, which is constant, and no sums.
    """
    length, num_columns = one.query.shape[0], layout.shape[1]
    one = _in_whole_tiles(layout, one)
    known = _pad(jax.lax.stop_gradient(known), "T", one.query.shape[0])

    @checkpoint
    def of_row(given: tuple[Array, list[Array], list[Array]]) -> tuple[Array, Array]:
        row, queries, (largest,) = given
        at_row = _with_tiles(one, "T", queries)
        columns = _tiles_of(at_row, "S", layout.sizes[1])
        start = _no_keys(at_row)
        zeros = start.total, start.weighted

        def of_tile(here: list[Array]) -> tuple[Array, Array]:
            tile = _with_tiles(at_row, "S", here)
            exponentials = _exp(_masked(tile, _scores(tile) - largest[:, None]))
            return exponentials.sum(axis=-1), _weighted_values(tile, exponentials)

        @checkpoint
        def add(sums: tuple[Array, Array], given: tuple) -> tuple[tuple[Array, Array], None]:
            is_visited, here = given
            if is_visited is None:
                more = of_tile(here)
            else:
                more = jax.lax.cond(is_visited, of_tile, lambda _: zeros, here)
            return jax.tree.map(jnp.add, sums, more), None

        def in_order() -> tuple[Array, Array]:
            """Sum over all tiles, of which some are skipped."""
            is_visited = None if visits is None else visits.flags(row, num_columns)
            return jax.lax.scan(add, zeros, (is_visited, columns))[0]

        def first(number: int) -> tuple[Array, Array]:
            """Sum over the first tiles that the row visits."""
            numbers = jnp.arange(number, dtype=jnp.int32)
            at = jnp.clip(visits.column(row, numbers), 0, num_columns - 1)

            def add_column(sums: tuple[Array, Array], given: tuple) -> tuple:
                here = [jax.lax.dynamic_index_in_dim(x, given[1], keepdims=False) for x in columns]
                return add(sums, (given[0], here))

            return jax.lax.scan(add_column, zeros, (numbers < visits.counts[row], at))[0]

        if visits is None:
            return in_order()
        if layout.most < num_columns:
            return first(layout.most)
        # To skip a tile takes time too, as its derivative is an array of zeros: more than half of
        # the gradient of eight packed sequences of 512 tokens on a CPU.
        if (few := layout.most // 6) < SHORTEST_LOOP:
            return in_order()
        return jax.lax.cond(visits.counts[row] <= few, lambda: first(few), in_order)

    rows = jnp.arange(layout.shape[0], dtype=jnp.int32)
    cut = (_tiles_of(tree, "T", layout.sizes[0]) for tree in (one, known))
    sums = jax.lax.map(of_row, (rows, *cut))
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
    """Return the sums over no keys, varying over the same axes of a mesh as the arguments."""
    dtype, queries = one.dtype, one.query.shape[:1]
    smallest = jnp.full(queries, jnp.finfo(dtype).min, dtype)
    zeros = jnp.zeros(queries, dtype), jnp.zeros((*queries, one.value.shape[-2]), dtype)
    return Sums(*varying_alike([smallest, *zeros, *jax.tree.leaves(one)])[:3])


def _in_whole_tiles(layout: Layout, one: Arguments) -> Head:
    """Replace non-finite numbers, and pad the queries and keys of one head to whole tiles."""
    one = with_axes_of_one(one)
    query, nonfinite_queries = replace_nonfinite(one.query)
    key, value, nonfinite_keys = one.key, one.value, one.nonfinite_keys
    if nonfinite_keys is None:
        key, value, nonfinite_keys = replace_nonfinite_keys(key, value)
    if layout.cast:
        query, key, value = (array.astype(one.dtype) for array in (query, key, value))
    changed = {"nonfinite_queries": nonfinite_queries, "nonfinite_keys": nonfinite_keys}
    one = replace(one, query=query, key=key, value=value, **changed)
    num_queries, num_keys = (n * size for n, size in zip(layout.shape, layout.sizes, strict=True))
    if (length := key.shape[0]) < num_keys:
        is_key = PairMask((jnp.arange(length) >= 0)[None, None, :])  # padded with False
        one = replace(one, mask=is_key if one.mask is None else And(one.mask, is_key))
    one = _pad(_pad(one, "T", num_queries), "S", num_keys)

    def transposed(array: Array) -> Array:  # [S, H] -> [columns, H, size]
        return jnp.swapaxes(array.reshape(layout.shape[1], -1, array.shape[-1]), 1, 2)

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
