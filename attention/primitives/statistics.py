"""What can be said about attention weights, from weights that are all in memory."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.request import Request


def entropy(found: Mapping[str, Array], request: Request) -> Array:
    """-Σ w log w of each row of weights, in nats: `[..., N, T]`."""
    del request
    weights = found["weights"]
    logarithm = jnp.log(jnp.where(weights > 0, weights, 1))
    return -jnp.sum(weights * logarithm, axis=-1)


def mean_distance(found: Mapping[str, Array], request: Request) -> Array:
    """Σ w |query position - key position| of each row of weights: `[..., N, T]`."""
    query, key = (
        jnp.broadcast_to(positions, (*request.batch, positions.shape[-1]))
        for positions in (request.query_positions, request.key_positions)
    )
    distance = jnp.abs(query[..., None, :, None] - key[..., None, None, :])
    weights = found["weights"]
    distance = jnp.broadcast_to(distance, weights.shape)
    return jnp.sum(weights * distance.astype(weights.dtype), axis=-1)


def largest_score(found: Mapping[str, Array]) -> Array:
    """The largest visible score of each row, after all score functions: `[..., N, T]`.

    Args:
        found: weights and logsumexp without sinks, beside which the largest weight may round to 0.
    """
    largest = jnp.max(found["weights"], axis=-1, initial=0)
    logsumexp = found["logsumexp"]
    empty = jnp.isneginf(logsumexp)
    return jax.lax.stop_gradient(jnp.where(empty, logsumexp, jnp.log(largest) + logsumexp))


def strongest(found: Mapping[str, Array], request: Request) -> tuple[Array, Array]:
    """The largest weights of each row and their keys, both `[..., N, T, num_strongest]`."""
    weights, keys = jax.lax.top_k(found["weights"], request.num_strongest)
    return jax.lax.stop_gradient(weights), jnp.where(weights > 0, keys, -1)


BY_NAME: dict[str, Callable[[Mapping[str, Array], Request], Array | tuple[Array, Array]]] = {
    "entropy": entropy,
    "mean_distance": mean_distance,
    "strongest": strongest,
}
