"""Attention of one head in tiles, with memory linear in T and S.

The forward pass visits the tiles of a row with an online softmax (Milakov and Gimelshein 2018,
section 3; Rabe and Staats 2021). Once the logsumexp is known, each weight is exp(score - logsumexp)
on its own, so the derivative of `forward` (`forward_jvp`) is a sum over tiles. `jax.checkpoint` is
around each tile: JAX derives from this sum every order and mode of derivative, none of which keeps
a tile in memory. `forward` itself is not differentiated: `tiled.py` declares `forward_jvp` as its
derivative.
"""

import operator
from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.block_mask import Pattern, visited_by_any
from attention.primitives.dot_product import product
from attention.primitives.dropout import keep_pairs
from attention.primitives.pytree_dataclass import replace_leaves
from attention.primitives.tile_inputs import CONSTANT_AXES, INPUT_AXES, Constants, Inputs
from attention.primitives.tile_layout import Head, Settings

# Visits of the shortest loop that saves more time than it takes to compile.
SHORTEST_LOOP = 5

Tree = Any
Results = tuple[Array, Array, Array]  # output, and the two terms of the logsumexp
# Its terms: log Σ exp(score - largest score), and the largest score. Their sum may be rounded.
Logsumexp = tuple[Array, Array]
Carry = tuple[Array, Array, Array]  # largest score, sum of weights, sum of weighted values


class Operands(NamedTuple):
    """Arguments of a function of tiles, for a whole head or cut to one tile."""

    inputs: Inputs
    constants: Constants
    logsumexp: Logsumexp
    tangents: Inputs | None


def _cut(settings: Settings, tree: Tree, axes: Tree, letter: str, start: Array) -> Tree:
    """Cut arrays to one tile along T or S; an axis of one is kept, since it broadcasts.

    Args:
        settings: with the size of the tile.
        tree: arrays, or a named tuple of trees.
        axes: the letters of the axes of the arrays, or of those of each tree, as in `INPUT_AXES`.
        letter: of the axis to cut.
        start: the first query or key.
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
    settings: Settings, part: tuple[Inputs, Constants], letter: str, start: Array
) -> tuple[Inputs, Constants]:
    """Cut the inputs and constants of a head as `_cut` does."""
    inputs, constants = part
    return (
        _cut(settings, inputs, INPUT_AXES, letter, start),
        _cut(settings, constants, CONSTANT_AXES, letter, start),
    )


def _visits(settings: Settings, pattern: Pattern | None, row: Array) -> tuple[Array, Array]:
    """Return the first key that a row of tiles visits, and how many visits it takes."""
    num_tiles, size = settings.tiles[1], settings.tile_sizes[1]
    return (0, num_tiles) if pattern is None else pattern.visits(row, size, num_tiles * size)


def _product(settings: Settings, equation: str, left: Array, right: Array) -> Array:
    return product(equation, left, right, settings.dtype, settings.precision)


def _scores_of(settings: Settings, inputs: Inputs, constants: Constants) -> Array:
    """Return the scores of a tile before the mask."""
    query, key = constants.query_positions[:, None], constants.key_positions[None, :]
    scores = inputs.scale * _product(settings, "TH,HS->TS", inputs.query, inputs.key)
    for score, bias in zip(inputs.scores, inputs.biases, strict=True):
        scores = score(scores, query, key, constants.head) if bias is None else scores + bias
    return scores


def _masked(constants: Constants, scores: Array) -> Array:
    """Set the scores of masked pairs to -inf."""
    query, key = constants.query_positions[:, None], constants.key_positions[None, :]
    allowed = [] if constants.is_key is None else [constants.is_key[None, :]]
    allowed += [] if constants.allowed is None else [constants.allowed]
    allowed += [] if constants.mask is None else [constants.mask(query, key)]
    for pairs in allowed:
        scores = jnp.where(pairs, scores, -jnp.inf)
    return scores


def _weights_of(
    settings: Settings, inputs: Inputs, constants: Constants, logsumexp: Logsumexp
) -> Array:
    """Return the weights of a tile, given the logsumexp of its rows."""
    return _normalized(constants, _scores_of(settings, inputs, constants), logsumexp)


def _normalized(constants: Constants, scores: Array, logsumexp: Logsumexp) -> Array:
    """Return exp(score - logsumexp), which is 0 where masked even if the logsumexp is NaN.

    The terms are subtracted one after the other: beside a score of -1e9, as of a bias, their sum
    would lose the logarithm of the number of keys.
    """
    empty = jnp.isneginf(logsumexp[0])
    for term in reversed(logsumexp):
        scores -= jnp.where(empty, 0, term)[:, None]
    return _exp(_masked(constants, scores))


@jax.custom_jvp
def _exp(exponents: Array) -> Array:
    """Return exp(min(exponents, 0)): a rounded score may exceed its logsumexp."""
    return jnp.exp(jnp.minimum(exponents, 0))


@_exp.defjvp
def _exp_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """The derivative of exp, also where the minimum applies."""
    result = _exp(*primals)
    return result, result * tangents[0]


def _kept(settings: Settings, constants: Constants, weights: Array) -> Array:
    """Return the weights after dropout."""
    if constants.rng is None:
        return weights
    keep = keep_pairs(
        constants.rng[:, None, None],
        settings.dropout_rate,
        constants.head,
        constants.query_positions[:, None],
        constants.key_positions[None, :],
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


def forward(settings: Settings, head: Head, before: Results | None = None) -> Results:
    """Return output `[T, Hv]` and the terms of the logsumexp, both `[T]`.

    The first one is the logarithm of the sum of exp(score - largest score), the second one is the
    largest score.

    Its derivative is `forward_jvp`, not the one that JAX would derive.

    Args:
        settings: sizes.
        head: what the tiles are cut from.
        before: the results over other keys, to which these keys are added (ring attention).
    """
    pattern, size = _pattern_of(settings, head), settings.tile_sizes
    zero = _zero(head, settings.dtype)

    def of_row(row: Array) -> Results:
        start, num_visits = _visits(settings, pattern, row)
        at_row = _part_of(settings, head[:2], "T", row * size[0])

        def visit(index: Array, carry: Carry) -> Carry:
            keys = start + index * size[1]

            def of_tile() -> Carry:
                return _add_tile(settings, *_part_of(settings, at_row, "S", keys), carry)

            if pattern is None or pattern.kinds is None:
                return of_tile()
            return jax.lax.cond(pattern.is_empty(row, keys, size[1]), lambda: carry, of_tile)

        if before is not None:
            carry = _carry_of(_cut(settings, before, "T", "T", row * size[0]))
        else:
            zeros = jnp.zeros(size[0], settings.dtype) + zero
            output = jnp.zeros((size[0], head.inputs.value.shape[1]), settings.dtype) + zero
            carry = zeros + jnp.finfo(settings.dtype).min, zeros, output
        return _results_of(jax.lax.fori_loop(0, num_visits, visit, carry))

    rows = jax.lax.map(of_row, jnp.arange(settings.tiles[0]))
    return tuple(array.reshape(-1, *array.shape[2:]) for array in rows)


def _add_tile(settings: Settings, inputs: Inputs, constants: Constants, carry: Carry) -> Carry:
    """Add the keys of a tile to those before it."""
    peak, total, output = carry
    scores = _scores_of(settings, inputs, constants)
    scores += constants.query_nan[:, None] + constants.key_nan[None, :]
    scores = _masked(constants, scores)
    higher = jnp.maximum(peak, scores.max(axis=-1))
    weights = jnp.exp(jnp.minimum(scores - higher[:, None], 0))
    shrink = jnp.exp(peak - higher)
    kept = _kept(settings, constants, weights).astype(inputs.value.dtype)
    part = _product(settings, "TS,SH->TH", kept, inputs.value)
    total = total * shrink + weights.sum(axis=-1)
    return higher, total, output * shrink[:, None] + part


def _carry_of(results: Results) -> Carry:
    output, logarithm, peak = results
    empty = jnp.isneginf(logarithm)
    total = jnp.exp(logarithm)
    return jnp.where(empty, jnp.finfo(peak.dtype).min, peak), total, output * total[:, None]


def _results_of(carry: Carry) -> Results:
    peak, total, output = carry
    empty = total == 0
    total = jnp.where(empty, 1, total)
    logarithm = jnp.where(empty, -jnp.inf, jnp.log(total))
    return output / total[:, None], logarithm, jnp.where(empty, -jnp.inf, peak)


def _sum_over_keys(
    settings: Settings,
    head: Head,
    logsumexp: Logsumexp,
    tangents: Inputs | None,
    function: Callable[..., Tree],
) -> Tree:
    """Sum a function of tiles over the keys of each query, with derivatives in linear memory.

    Args:
        settings: sizes.
        head: what the tiles are cut from.
        logsumexp: its terms, both `[T]`.
        tangents: of the inputs, None where they are constant.
        function: takes the `Operands` of a tile; returns arrays `[T, ...]`.
    """
    pattern = _pattern_of(settings, head)
    zero = _zero((head, logsumexp), settings.dtype)
    size = settings.tile_sizes
    last = (settings.tiles[1] - 1) * size[1]
    axes = Operands(INPUT_AXES, CONSTANT_AXES, "T", "" if tangents is None else INPUT_AXES)

    def cut(operands: Operands, letter: str, start: Array) -> Operands:
        return _cut(settings, operands, axes, letter, start)

    whole = Operands(head.inputs, head.constants, logsumexp, tangents)
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
            def of_tile(at_row: Operands) -> Tree:
                # Cut outside of the condition: its transpose would add arrays of whole heads.
                tile = cut(at_row, "S", keys)
                if visited is None:
                    return function(*tile)
                compute = jax.checkpoint(lambda tile: function(*tile), prevent_cse=False)
                return jax.lax.cond(visited, compute, lambda _: zeros(), tile)

            return jax.tree.map(jnp.add, total, of_tile(at_row)), None

        def sum_of(num_visits: int) -> Tree:
            return jax.lax.scan(visit, zeros(), jnp.arange(num_visits, dtype=jnp.int32))[0]

        # A visit of an empty tile takes time too, as its transpose adds zeros to the derivatives:
        # more than half of the gradient of eight packed sequences of 512 tokens on a CPU. So rows
        # of few tiles have a loop of their own.
        few = settings.max_visits // 3
        if pattern is None or few < SHORTEST_LOOP:
            return sum_of(settings.max_visits)
        return jax.lax.cond(needed <= few, lambda: sum_of(few), lambda: sum_of(settings.max_visits))

    rows_of_tiles = jnp.arange(settings.tiles[0], dtype=jnp.int32)
    _, sums = jax.lax.scan(lambda _, row: (None, of_row(row)), None, rows_of_tiles)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), sums)


def forward_jvp(
    settings: Settings, head: Head, output: Array, logsumexp: Logsumexp, tangents: Inputs
) -> tuple[Array, Array]:
    """Return the derivatives of output `[T, Hv]` and logsumexp `[T]` of `forward` along tangents.

    With weights p = exp(s - L), scores s and logsumexp L: dL = Σ p ds, and for the output
    do = Σ p (ds v + dv) - dL o.

    Args:
        settings: sizes.
        head: the point at which to differentiate.
        output: `[T, Hv]`.
        logsumexp: its terms, both `[T]`.
        tangents: None marks a constant.
    """
    structure = jax.tree.structure(head.inputs)
    varied = [n for n, leaf in enumerate(structure.flatten_up_to(tangents)) if leaf is not None]

    def of_tile(
        inputs: Inputs, constants: Constants, logsumexp: Logsumexp, tangents: Inputs
    ) -> tuple[Array, Array]:
        leaves = jax.tree.leaves(inputs)

        def scores(*values: Array) -> Array:
            return _scores_of(settings, replace_leaves(inputs, varied, values), constants)

        directions = jax.tree.leaves(tangents)
        scores, d_scores = jax.jvp(scores, [leaves[n] for n in varied], directions)
        weights = _normalized(constants, scores, logsumexp)
        dtype, d_weights = inputs.value.dtype, weights * d_scores
        kept = _kept(settings, constants, d_weights).astype(dtype)
        d_output = _product(settings, "TS,SH->TH", kept, inputs.value)
        if tangents.value is not None:
            kept = _kept(settings, constants, weights).astype(dtype)
            d_output += _product(settings, "TS,SH->TH", kept, tangents.value)
        return d_output, d_weights.sum(axis=-1)

    d_output, d_logsumexp = _sum_over_keys(settings, head, logsumexp, tangents, of_tile)
    output = jnp.where(jnp.isnan(output), 0, output)  # 0 · NaN of a NaN row would reach masked keys
    return d_output - d_logsumexp[:, None] * output, d_logsumexp


def all_weights(settings: Settings, head: Head, logsumexp: Logsumexp) -> Array:
    """Return all weights `[T, S]`, in tiles that are as wide as S."""
    num_keys = settings.tile_sizes[1] * settings.tiles[1]
    wide = replace(settings, tile_sizes=(settings.tile_sizes[0], num_keys))

    @partial(jax.checkpoint, prevent_cse=False)
    def of_row(row: Array) -> Array:
        start = row * wide.tile_sizes[0]
        inputs, constants = _part_of(wide, head[:2], "T", start)
        return _weights_of(wide, inputs, constants, _cut(wide, logsumexp, "T", "T", start))

    return jax.lax.map(of_row, jnp.arange(settings.tiles[0])).reshape(-1, num_keys)
