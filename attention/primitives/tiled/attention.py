"""Attention in tiles: exact, with memory linear in T and S, and every option together.

One pass over the tiles of a row keeps a running peak and sum (the online softmax of Milakov and
Gimelshein 2018, section 3; Rabe and Staats 2021) and ends with output and logsumexp. With the
logsumexp known, each weight is exp(score - logsumexp) on its own, so everything else is a sum over
tiles: the derivative, its transpose, theirs in turn (see `sweep.py`), and the statistics.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.precision import wide
from attention.primitives.quarantine import finite
from attention.primitives.request import STATISTICS, Request
from attention.primitives.scores import BiasArray
from attention.primitives.sinks import share_with_sinks
from attention.primitives.tiled import layout, statistics, tiling
from attention.primitives.tiled.derivative import derivative
from attention.primitives.tiled.poison import sees_any
from attention.primitives.tiled.sweep import tile_fold
from attention.primitives.tiled.tile import Fixed, Given, keep_in, scores_in, split, weighted_sum
from attention.primitives.tiled.tiling import TileSize, Tiling
from attention.primitives.touched import Touched


def attend_in_tiles(request: Request, size: TileSize | None = None) -> dict[str, Array]:
    """`attend` for a request: "output", "logsumexp", and what it asks to return.

    Args:
        request: with at least one query and one key.
        size: of the tiles; by default a measured one for this platform.
    """
    return _attend(request, size or tiling.measured_size(masked=request.mask is not None))


@partial(jax.jit, static_argnums=1)
def _attend(request: Request, size: TileSize) -> dict[str, Array]:
    num_queries, num_keys = request.query.shape[-3], request.key.shape[-3]
    dropout_rate = 0.0 if request.dropout is None else request.dropout.rate
    *inputs, query_ok, key_ok = finite(request.query, request.key, request.value, request.broken)
    cut, fixed, visits = layout.at_rest(request, size)
    given = _given(request, *wide(*inputs), cut)
    output, logsumexp, largest = _attention(cut, dropout_rate, given, fixed, visits)

    def by_head(array: Array) -> Array:  # [B, T, K, G, *] -> [..., N, T, *]
        return layout.from_head_rows(array, request.batch, num_queries, cut)

    found = {
        "output": layout.from_query_rows(output, request.batch, num_queries, cut),
        "logsumexp": by_head(logsumexp),
    }
    found = share_with_sinks(found, request.sinks)
    if asked := [name for name in request.returning if name in ("weights", *STATISTICS)]:
        rows = jnp.swapaxes(found["logsumexp"], -1, -2)[..., None]
        known = statistics.Known(
            cut, given, fixed, visits, layout.query_rows(rows, cut)[..., 0], largest
        )
        for name in asked:
            found[name] = jax.tree.map(by_head, statistics.BY_NAME[name](known, request))
        if "weights" in found:
            found["weights"] = found["weights"][..., :num_keys]

    poisoned = by_head(sees_any(~query_ok, ~key_ok, fixed, visits, cut))
    for name, array in found.items():
        rows = jnp.swapaxes(poisoned, -1, -2) if name == "output" else poisoned
        found[name] = jax.tree.map(partial(_poison, rows), array)
    return found | {"output": found["output"].astype(request.query.dtype)}


def _poison(rows: Array, array: Array) -> Array:
    nothing = jnp.nan if jnp.issubdtype(array.dtype, jnp.floating) else -1
    return jnp.where(rows.reshape(*rows.shape, *[1] * (array.ndim - rows.ndim)), nothing, array)


def _given(request: Request, query: Array, key: Array, value: Array, cut: Tiling) -> Given:
    positions = request.query_positions, request.key_positions
    return Given(
        query=layout.query_rows(request.scale * query, cut),
        key=layout.key_columns(key, cut),
        value=layout.key_columns(value, cut),
        scores=tuple(
            None if isinstance(score, BiasArray) else layout.entries(score, request.batch)
            for score in request.scores
        ),
        biases=tuple(
            layout.bias_pairs(score, positions, request.batch, cut).astype(query.dtype)
            if isinstance(score, BiasArray)
            else None
            for score in request.scores
        ),
    )


class _Running(NamedTuple):
    """What is known of the rows of a tile so far: `[T, G]`, `[T, G]` and `[T, G, Hv]`."""

    peak: Array
    total: Array
    weighted: Array


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _attention(
    cut: Tiling, dropout_rate: float, given: Given, fixed: Fixed, visits: Touched | None
) -> tuple[Array, Array, Array]:
    """Output `[B, T, K, G, Hv]`, logsumexp `[B, T, K, G]` and largest score `[B, T, K, G]`."""
    dtype, lowest = given.value.dtype, jnp.finfo(given.value.dtype).min
    shape = cut.row_size, given.query.shape[3]

    def begin() -> _Running:
        weighted = jnp.zeros((*shape, given.value.shape[2]), dtype)
        return _Running(jnp.full(shape, lowest, dtype), jnp.zeros(shape, dtype), weighted)

    def step(so_far: _Running, tiles: dict[str, Any], masked: bool) -> _Running:
        given, fixed = split(tiles)
        scores = scores_in(given, fixed, masked)
        peak = jnp.maximum(so_far.peak, jnp.max(scores, axis=-1))
        shrink = jnp.exp(so_far.peak - peak)
        weights = jnp.exp(scores - peak[..., None])
        keep = keep_in(fixed, dropout_rate)
        kept = weights if keep is None else keep.astype(dtype) * weights
        weighted = weighted_sum(kept, given.value)
        return _Running(
            peak,
            so_far.total * shrink + jnp.sum(weights, axis=-1),
            so_far.weighted * shrink[..., None] + weighted,
        )

    def finish(last: _Running) -> tuple[Array, Array, Array]:
        empty = last.total == 0
        total = jnp.where(empty, 1, last.total)
        logsumexp = jnp.where(empty, -jnp.inf, jnp.log(total) + last.peak)
        return last.weighted / total[..., None], logsumexp, jnp.where(empty, -jnp.inf, last.peak)

    return tile_fold(begin, step, finish, given.cuts() | fixed.cuts(), visits, cut)


@partial(_attention.defjvp, symbolic_zeros=True)
def _attention_tangent(
    cut: Tiling,
    dropout_rate: float,
    primals: tuple[Given, Fixed, Touched | None],
    tangents: tuple[Given, Fixed, Touched | None],
) -> tuple[tuple[Array, Array, Array], tuple[Array, Array, Array]]:
    given, fixed, visits = primals
    found = output, logsumexp, largest = _attention(cut, dropout_rate, given, fixed, visits)
    d_output, d_logsumexp = derivative(
        given, tangents[0], fixed, output, logsumexp, visits, cut, dropout_rate
    )
    return found, (d_output, d_logsumexp, jnp.zeros_like(largest))
