"""Statistics of attention weights, from one row of weights or of a tile of them."""

import jax
import jax.numpy as jnp
from jax import Array


def entropy(weights: Array, distances: Array) -> Array:
    """Return -Σ w log w over the last axis, in nats."""
    del distances
    logarithm = jnp.log(jnp.where(weights > 0, weights, 1))
    return -jnp.sum(weights * logarithm, axis=-1)


def mean_distance(weights: Array, distances: Array) -> Array:
    """Return Σ w |query position - key position| over the last axis."""
    return jnp.sum(weights * distances.astype(weights.dtype), axis=-1)


def strongest(weights: Array, keys: Array, number: int) -> tuple[Array, Array]:
    """Return the largest weights of the last axis, and the keys that they belong to.

    Args:
        weights: `[..., S]`.
        keys: integers `[..., S]`.
        number: of results; missing ones have weight 0 and key -1, and so has a key of weight 0.
    """
    weights, places = jax.lax.top_k(weights, number)
    keys = jnp.take_along_axis(
        jnp.broadcast_to(keys, (*weights.shape[:-1], keys.shape[-1])), places, -1
    )
    return jnp.maximum(weights, 0), jnp.where(weights > 0, keys, -1).astype(jnp.int32)


# Sums over keys of a function of (weights, distances of positions).
SUMS = {"entropy": entropy, "mean_distance": mean_distance}
