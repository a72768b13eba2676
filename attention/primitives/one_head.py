"""Attention of one head in tiles, with memory linear in T and S.

The forward pass visits the tiles of a row with an online softmax (Milakov and Gimelshein 2018,
section 3; Rabe and Staats 2021). Once the logsumexp is known, each weight is exp(score - logsumexp)
on its own, so the derivative and the statistics are sums over tiles. They are written in ordinary
JAX operations, with `jax.checkpoint` around each tile: JAX derives from them every order and mode
of derivative, none of which keeps a tile in memory.
"""

import operator
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.block_mask import Pattern, visited_by_any
from attention.primitives.dot_product import product
from attention.primitives.dropout import keep_pairs
from attention.primitives.statistics import SUMS, strongest
from attention.primitives.tile_layout import (
    CONTEXT_AXES,
    INPUT_AXES,
    Context,
    Head,
    Inputs,
    Settings,
)

# Visits of the shortest loop that saves more time than it takes to compile.
SHORTEST_LOOP = 5

Tree = Any


class Tile(NamedTuple):
    """What `sum_over_keys` passes to its function, for one head, or cut to one tile."""

    inputs: Inputs
    context: Context
    rows: Tree
    more: Inputs | None


def _cut(settings: Settings, tree: Tree, axes: Tree, letter: str, start: Array) -> Tree:
    """Cut arrays to the queries ("T") or keys ("S") of a tile, from `start` on.

    Args:
        settings: with the size of the tile.
        tree: arrays, or a named tuple of trees.
        axes: of the arrays, or of those of each tree.
        letter: of the axis to cut.
        start: a number of a query or key.
    """
    if not isinstance(axes, str):
        parts = zip(tree, axes, strict=True)
        return type(tree)(*(_cut(settings, *part, letter, start) for part in parts))
    axis, size = axes.find(letter), settings.tile_sizes["TS".index(letter)]

    def cut(array: Array) -> Array:
        if axis == -1 or array.shape[axis] == 1:
            return array
        return jax.lax.dynamic_slice_in_dim(array, start, size, axis)

    return jax.tree.map(cut, tree)


def _part_of(
    settings: Settings, part: tuple[Inputs, Context], letter: str, start: Array
) -> tuple[Inputs, Context]:
    """Cut the inputs and context of a head as `_cut` does."""
    inputs, context = part
    return (
        _cut(settings, inputs, INPUT_AXES, letter, start),
        _cut(settings, context, CONTEXT_AXES, letter, start),
    )


def with_leaves(tree: Tree, numbers: list[int], given: Iterable[Array]) -> Tree:
    """Return a tree with other arrays in place of its leaves of some numbers."""
    leaves, structure = jax.tree.flatten(tree)
    for n, leaf in zip(numbers, given, strict=True):
        leaves[n] = leaf
    return jax.tree.unflatten(structure, leaves)


def _visits(settings: Settings, pattern: Pattern | None, row: Array) -> tuple[Array, Array]:
    """Return the first key that a row of tiles visits, and how many visits it takes."""
    num_tiles, size = settings.tiles[1], settings.tile_sizes[1]
    return (0, num_tiles) if pattern is None else pattern.visits(row, size, num_tiles * size)


def _product(settings: Settings, equation: str, left: Array, right: Array) -> Array:
    return product(equation, left, right, settings.dtype, settings.precision)


def _scores_of(settings: Settings, inputs: Inputs, context: Context) -> Array:
    """Return the scores of a tile before the mask."""
    query, key = context.query_positions[:, None], context.key_positions[None, :]
    scores = inputs.scale * _product(settings, "TH,HS->TS", inputs.query, inputs.key)
    for score, bias in zip(inputs.scores, inputs.biases, strict=True):
        scores = score(scores, query, key, context.head) if bias is None else scores + bias
    return scores


def _masked(context: Context, scores: Array) -> Array:
    """Set the scores of masked pairs to -inf."""
    query, key = context.query_positions[:, None], context.key_positions[None, :]
    allowed = [] if context.is_key is None else [context.is_key[None, :]]
    allowed += [] if context.allowed is None else [context.allowed]
    allowed += [] if context.mask is None else [context.mask(query, key)]
    for pairs in allowed:
        scores = jnp.where(pairs, scores, -jnp.inf)
    return scores


def _weights_of(settings: Settings, inputs: Inputs, context: Context, logsumexp: Array) -> Array:
    """Return the weights of a tile, given the logsumexp of its rows."""
    return _normalized(context, _scores_of(settings, inputs, context), logsumexp)


def _normalized(context: Context, scores: Array, logsumexp: Array) -> Array:
    """exp(score - logsumexp), which is 0 where masked even in a row of NaN."""
    logsumexp = jnp.where(jnp.isneginf(logsumexp), 0, logsumexp)
    return _exp(_masked(context, scores - logsumexp[:, None]))


@jax.custom_jvp
def _exp(exponents: Array) -> Array:
    """exp(min(exponents, 0)): rounding must not let a huge score exceed its logsumexp."""
    return jnp.exp(jnp.minimum(exponents, 0))


@_exp.defjvp
def _exp_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """The derivative of exp, also where the minimum applies."""
    result = _exp(*primals)
    return result, result * tangents[0]


def _kept(settings: Settings, context: Context, weights: Array) -> Array:
    """Return the weights after dropout."""
    if context.rng is None:
        return weights
    keep = keep_pairs(
        context.rng[:, None, None],
        settings.dropout_rate,
        context.head,
        context.query_positions[:, None],
        context.key_positions[None, :],
    )
    return weights * keep.astype(weights.dtype)


def _zero(tree: Tree, dtype: jnp.dtype) -> Array:
    """Return 0 that varies over the same axes of a mesh as the arrays, as `shard_map` requires."""
    leaves = jax.tree.leaves(tree)
    firsts = (jax.lax.slice(x, (0,) * x.ndim, (1,) * x.ndim).reshape(()) for x in leaves)
    depends_on_all = reduce(operator.or_, (first != first for first in firsts))
    zero = jnp.zeros((), dtype)
    return jnp.where(depends_on_all, zero, zero)


def _pattern_of(settings: Settings, head: Head) -> Pattern | None:
    """Return the tiles to visit, which all examples of a `vmap` share; None: all."""
    if head.pattern is None:
        return None
    num_keys = settings.tiles[1] * settings.tile_sizes[1]
    return visited_by_any(head.pattern, num_keys, may_shard=settings.may_shard)


def forward(
    settings: Settings, head: Head, before: tuple[Array, Array, Array] | None = None
) -> tuple[Array, Array, Array]:
    """Return output `[T, Hv]`, logsumexp `[T]` and largest score `[T]`.

    Args:
        settings: sizes.
        head: what the tiles are cut from.
        before: the results over other keys, to which these keys are added.
    """
    pattern = _pattern_of(settings, head)
    zero, lowest = _zero(head, settings.dtype), jnp.finfo(settings.dtype).min
    value_width, size = head.inputs.value.shape[1], settings.tile_sizes

    def row(number: Array) -> tuple[Array, Array, Array]:
        start, visits = _visits(settings, pattern, number)
        at_row = _part_of(settings, head[:2], "T", number * size[0])

        def visit(index: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            keys = start + index * size[1]

            def tile() -> tuple[Array, Array, Array]:
                peak, total, output = carry
                inputs, context = _part_of(settings, at_row, "S", keys)
                scores = _scores_of(settings, inputs, context)
                scores += context.query_nan[:, None] + context.key_nan[None, :]
                scores = _masked(context, scores)
                higher = jnp.maximum(peak, scores.max(axis=-1))
                weights = jnp.exp(jnp.minimum(scores - higher[:, None], 0))
                shrink = jnp.exp(peak - higher)
                kept = _kept(settings, context, weights).astype(inputs.value.dtype)
                part = _product(settings, "TS,SH->TH", kept, inputs.value)
                total = total * shrink + weights.sum(axis=-1)
                return higher, total, output * shrink[:, None] + part

            if pattern is None or pattern.kinds is None:
                return tile()
            return jax.lax.cond(pattern.is_empty(number, keys, size[1]), lambda: carry, tile)

        zeros = jnp.zeros(size[0], settings.dtype) + zero
        carry = zeros + lowest, zeros, jnp.zeros((size[0], value_width), settings.dtype) + zero
        if before is not None:
            output, logsumexp, peak = _cut(settings, before, "T", "T", number * size[0])
            empty = jnp.isneginf(logsumexp)
            total = jnp.where(empty, 0, jnp.exp(logsumexp - peak))
            carry = jnp.where(empty, lowest, peak), total, output * total[:, None]
        peak, total, output = jax.lax.fori_loop(0, visits, visit, carry)
        empty = total == 0
        total = jnp.where(empty, 1, total)
        logsumexp = jnp.where(empty, -jnp.inf, jnp.log(total) + peak)
        return output / total[:, None], logsumexp, jnp.where(empty, -jnp.inf, peak)

    rows = jax.lax.map(row, jnp.arange(settings.tiles[0]))
    return tuple(array.reshape(-1, *array.shape[2:]) for array in rows)


def sum_over_keys(
    settings: Settings,
    head: Head,
    rows: Tree,
    more: Inputs | None,
    function: Callable[..., Tree],
) -> Tree:
    """Sum a function of tiles over the keys of each query, with derivatives in linear memory.

    Args:
        settings: sizes.
        head: what the tiles are cut from.
        rows: arrays `[T, ...]`, cut along T.
        more: inputs that are cut like those of `head`, such as tangents; None where absent.
        function: takes the inputs, context, rows and more of a tile; returns arrays `[T, ...]`.
    """
    pattern = _pattern_of(settings, head)
    zero = _zero((head, rows), settings.dtype)
    size = settings.tile_sizes
    last = (settings.tiles[1] - 1) * size[1]
    axes = Tile(INPUT_AXES, CONTEXT_AXES, "T", "" if more is None else INPUT_AXES)

    def cut(tile: Tile, letter: str, start: Array) -> Tile:
        return _cut(settings, tile, axes, letter, start)

    whole = Tile(head.inputs, head.context, rows, more)
    shapes = jax.eval_shape(lambda: function(*cut(cut(whole, "T", 0), "S", 0)))

    def zeros() -> Tree:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype) + zero, shapes)

    @partial(jax.checkpoint, prevent_cse=False)
    def of_row(row: Array) -> Tree:
        at_row = cut(whole, "T", row * size[0])
        start, needed = _visits(settings, pattern, row)

        def visit(total: Tree, index: Array) -> tuple[Tree, None]:
            keys, visited = start + index * size[1], None
            if pattern is not None:
                keys, visited = jnp.minimum(keys, last), index < needed
                if pattern.kinds is not None:
                    visited &= ~pattern.is_empty(row, keys, size[1])

            @partial(jax.checkpoint, prevent_cse=False)
            def of_tile(at_row: Tile) -> Tree:
                # Cut outside of the condition: its transpose would add arrays of whole heads.
                tile = cut(at_row, "S", keys)
                if visited is None:
                    return function(*tile)
                compute = jax.checkpoint(lambda tile: function(*tile), prevent_cse=False)
                return jax.lax.cond(visited, compute, lambda _: zeros(), tile)

            return jax.tree.map(jnp.add, total, of_tile(at_row)), None

        def visits(number: int) -> Tree:
            return jax.lax.scan(visit, zeros(), jnp.arange(number, dtype=jnp.int32))[0]

        # A visit of an empty tile takes time too, as its transpose adds zeros to the derivatives:
        # more than half of the gradient of eight packed sequences of 512 tokens on a CPU. So rows
        # of few tiles have a loop of their own.
        few = settings.max_visits // 3
        if pattern is None or few < SHORTEST_LOOP:
            return visits(settings.max_visits)
        return jax.lax.cond(needed <= few, lambda: visits(few), lambda: visits(settings.max_visits))

    rows_of_tiles = jnp.arange(settings.tiles[0], dtype=jnp.int32)
    _, sums = jax.lax.scan(lambda _, row: (None, of_row(row)), None, rows_of_tiles)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), sums)


def tangent(
    settings: Settings, head: Head, output: Array, logsumexp: Array, tangents: Inputs
) -> tuple[Array, Array]:
    """Return the derivatives of output `[T, Hv]` and logsumexp `[T]` along tangents.

    With weights p = exp(s - L), scores s and logsumexp L: dL = Σ p ds, and for the output
    do = Σ p (ds v + dv) - dL o.

    Args:
        settings: sizes.
        head: the point at which to differentiate.
        output: `[T, Hv]`.
        logsumexp: `[T]`.
        tangents: None marks a constant.
    """
    structure = jax.tree.structure(head.inputs)
    moving = [n for n, leaf in enumerate(structure.flatten_up_to(tangents)) if leaf is not None]

    def of_tile(
        inputs: Inputs, context: Context, logsumexp: Array, tangents: Inputs
    ) -> tuple[Array, Array]:
        leaves = jax.tree.leaves(inputs)

        def scores(*moved: Array) -> Array:
            return _scores_of(settings, with_leaves(inputs, moving, moved), context)

        directions = jax.tree.leaves(tangents)
        scores, d_scores = jax.jvp(scores, [leaves[n] for n in moving], directions)
        weights = _normalized(context, scores, logsumexp)
        dtype, d_weights = inputs.value.dtype, weights * d_scores
        kept = _kept(settings, context, d_weights).astype(dtype)
        d_output = _product(settings, "TS,SH->TH", kept, inputs.value)
        if tangents.value is not None:
            kept = _kept(settings, context, weights).astype(dtype)
            d_output += _product(settings, "TS,SH->TH", kept, tangents.value)
        return d_output, d_weights.sum(axis=-1)

    d_output, d_logsumexp = sum_over_keys(settings, head, logsumexp, tangents, of_tile)
    output = jnp.where(jnp.isnan(output), 0, output)  # 0 · NaN of a NaN row would reach masked keys
    return d_output - d_logsumexp[:, None] * output, d_logsumexp


def statistic(name: str, number: int, settings: Settings, head: Head, logsumexp: Array) -> Tree:
    """Return a statistic of the weights of one head, `[T, ...]`."""
    if name == "weights":
        return _all_weights(settings, head, logsumexp)
    if name == "strongest":
        return _strongest(settings, head, logsumexp, number)

    def of_tile(inputs: Inputs, context: Context, logsumexp: Array, _: None) -> Array:
        weights = _weights_of(settings, inputs, context, logsumexp)
        query, key = context.query_positions[:, None], context.key_positions[None, :]
        return SUMS[name](weights, jnp.abs(query - key))

    return sum_over_keys(settings, head, logsumexp, None, of_tile)


def _all_weights(settings: Settings, head: Head, logsumexp: Array) -> Array:
    """Return all weights `[T, S]`, in tiles that are as wide as S."""
    num_keys = settings.tile_sizes[1] * settings.tiles[1]
    wide = replace(settings, tile_sizes=(settings.tile_sizes[0], num_keys))

    @partial(jax.checkpoint, prevent_cse=False)
    def row(number: Array) -> Array:
        start = number * wide.tile_sizes[0]
        inputs, context = _part_of(wide, head[:2], "T", start)
        rows = _cut(wide, logsumexp, "T", "T", start)
        return _weights_of(wide, inputs, context, rows)

    return jax.lax.map(row, jnp.arange(settings.tiles[0])).reshape(-1, num_keys)


def _strongest(
    settings: Settings, head: Head, logsumexp: Array, number: int
) -> tuple[Array, Array]:
    """Return the largest weights and their keys, both `[T, number]`."""
    zero = _zero(head, settings.dtype)
    size, width = settings.tile_sizes
    shape = size, number

    def row(row: Array) -> tuple[Array, Array]:
        rows = _cut(settings, logsumexp, "T", "T", row * size)
        at_row = _part_of(settings, head[:2], "T", row * size)

        def visit(carry: tuple[Array, Array], column: Array) -> tuple[tuple[Array, Array], None]:
            inputs, context = _part_of(settings, at_row, "S", column * width)
            weights = _weights_of(settings, inputs, context, rows)
            keys = column * width + jnp.arange(width, dtype=jnp.int32)
            keys = jnp.broadcast_to(keys, weights.shape)
            weights = jnp.concatenate([carry[0], weights], axis=-1)
            keys = jnp.concatenate([carry[1], keys], axis=-1)
            return strongest(weights, keys, number), None

        start = (
            jnp.zeros(shape, settings.dtype) + zero,
            jnp.zeros(shape, jnp.int32) + zero.astype(jnp.int32),
        )
        return jax.lax.scan(visit, start, jnp.arange(settings.tiles[1], dtype=jnp.int32))[0]

    found = jax.lax.map(row, jnp.arange(settings.tiles[0], dtype=jnp.int32))
    return jax.tree.map(lambda x: x.reshape(-1, number), found)
