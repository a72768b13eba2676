"""What can be said about attention weights that are never in memory together."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.request import Request
from attention.primitives.tiled.cuts import Output
from attention.primitives.tiled.sweep import tile_fold, tile_sum
from attention.primitives.tiled.tile import Fixed, Given, scores_in, split
from attention.primitives.tiled.tiling import Tiling
from attention.primitives.touched import Touched


class Known(NamedTuple):
    """What is known once attention is computed: its inputs, logsumexp and largest score.

    Both `[B, T, K, G]`; the logsumexp includes sinks.
    """

    cut: Tiling
    given: Given
    fixed: Fixed
    visits: Touched | None
    logsumexp: Array
    largest_score: Array

    def sum_over_keys(self, summand: Callable[[Array, Array, Fixed], Array]) -> Array:
        """Sums a function of (weights, their logarithms, fixed) of a tile `[T, G, S]`."""

        def over_tile(tiles: dict[str, Any], masked: bool) -> dict[str, Array]:
            weights, logarithms = _weights_in(tiles, masked)
            return {"sum": summand(weights, logarithms, split(tiles)[1]).sum(axis=-1)}

        outputs = {"sum": Output("row", self.logsumexp.shape, self.logsumexp.dtype)}
        return tile_sum(over_tile, self.operands(), outputs, self.visits, self.cut)["sum"]

    def operands(self) -> dict[str, Any]:
        """All of it, for a sweep."""
        safe = jnp.where(jnp.isneginf(self.logsumexp), 0, self.logsumexp)
        return {**self.given.cuts(), **self.fixed.cuts(), "logsumexp": ("row", safe)}


def _weights_in(tiles: dict[str, Any], masked: bool) -> tuple[Array, Array]:
    """The weights of a tile and their logarithms, which are 0 where the weights are."""
    logarithms = scores_in(*split(tiles), masked) - tiles["logsumexp"][..., None]
    weights = jnp.exp(logarithms)
    return weights, jnp.where(weights > 0, logarithms, 0)


def weights(known: Known, request: Request) -> Array:
    """All of them, `[B, T, K, G, S]`: the one thing here whose memory is not linear."""
    del request
    cut, groups = known.cut, known.logsumexp.shape[-1]
    shape = (cut.examples, cut.heads, cut.padded[0], groups, cut.padded[1])

    def over_tile(tiles: dict[str, Any], masked: bool) -> dict[str, Array]:
        return {"weights": _weights_in(tiles, masked)[0]}

    outputs = {"weights": Output("pair", shape, known.logsumexp.dtype)}
    found = tile_sum(over_tile, known.operands(), outputs, known.visits, cut)["weights"]
    return found if cut.heads_first else jnp.swapaxes(found, 1, 2)


def entropy(known: Known, request: Request) -> Array:
    """-Σ w log w: `[B, T, K, G]`."""
    del request
    return known.sum_over_keys(lambda weights, logarithms, _: -weights * logarithms)


def mean_distance(known: Known, request: Request) -> Array:
    """Σ w |query position - key position|: `[B, T, K, G]`."""
    del request

    def summand(weights: Array, logarithms: Array, fixed: Fixed) -> Array:
        del logarithms
        query, key, _ = fixed.places()
        return weights * jnp.abs(query - key).astype(weights.dtype)

    return known.sum_over_keys(summand)


def largest_score(known: Known, request: Request) -> Array:
    """The largest visible score: `[B, T, K, G]`."""
    del request
    return jax.lax.stop_gradient(known.largest_score)


def strongest(known: Known, request: Request) -> tuple[Array, Array]:
    """The largest weights and their keys, both `[B, T, K, G, num_strongest]`."""
    number, cut = request.num_strongest, known.cut
    shape = (cut.row_size, known.logsumexp.shape[-1], number)
    dtype = known.logsumexp.dtype
    keys = jnp.arange(cut.padded[1], dtype=jnp.int32)[None, None, :]

    def begin() -> tuple[Array, Array]:
        return jnp.full(shape, -1, dtype), jnp.zeros(shape, keys.dtype)

    def step(
        so_far: tuple[Array, Array], tiles: dict[str, Any], masked: bool
    ) -> tuple[Array, Array]:
        weights, _ = _weights_in(tiles, masked)
        columns = jnp.broadcast_to(tiles["keys"][None, None, :], weights.shape)
        both = jnp.concatenate([so_far[0], weights], axis=-1)
        columns = jnp.concatenate([so_far[1], columns], axis=-1)
        largest, places = jax.lax.top_k(both, number)
        return largest, jnp.take_along_axis(columns, places, axis=-1)

    operands = {**known.operands(), "keys": ("column", keys)}
    found = tile_fold(begin, step, lambda last: last, operands, known.visits, cut)
    return jnp.maximum(found[0], 0), jnp.where(found[0] > 0, found[1], -1)


BY_NAME: dict[str, Callable[[Known, Request], Any]] = {
    "weights": weights,
    "entropy": entropy,
    "mean_distance": mean_distance,
    "largest_score": largest_score,
    "strongest": strongest,
}
