"""The largest of very many numbers, most of which are looked at once."""

import jax
import jax.numpy as jnp
from jax import Array

BLOCKS = range(128, 31, -1)  # numbers of which the largest is looked at first


def top_places(scores: Array, number: int) -> Array:
    """Where the largest scores stand, as `jax.lax.top_k` says it: the first of equals first.

    That sorts whole rows. But the k largest stand in the k blocks with the largest maxima, so only
    those are sorted, where blocks of one size divide a row.

    Args:
        scores: `[B, M]`, without NaN.
        number: k.

    Returns:
        `[B, k]`, the largest first.
    """
    rows, length = scores.shape
    size = next((size for size in BLOCKS if length % size == 0), length)
    if length // size <= number:
        return jax.lax.top_k(scores, number)[1]
    blocks = scores.reshape(rows, -1, size)
    _, best = jax.lax.top_k(blocks.max(-1), number)
    best = jnp.sort(best, axis=-1)  # so that equals stay in their order
    rivals = jnp.take_along_axis(blocks, best[..., None], axis=1).reshape(rows, -1)
    _, found = jax.lax.top_k(rivals, number)
    block, place = jnp.divmod(found, size)
    return jnp.take_along_axis(best, block, axis=1) * size + place
