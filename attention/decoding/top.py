"""The largest of very many scores, of which few are ever computed but to be compared."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

BLOCKS = range(128, 7, -1)  # numbers of which the largest is looked at first
FEW = 4_096  # numbers, which are sorted sooner than divided


def top_places(
    numbers: Array, number: int, score: Callable[[Array, Array], Array] = lambda block, _: block
) -> Array:
    """Where the largest scores stand, as `jax.lax.top_k` says it: the first of equals first.

    That sorts whole rows, and to be sorted the scores must stand in memory. But the k largest stand
    in the k blocks with the largest maxima, so only those are, where blocks of one size divide a
    row; of all others the maximum is found on the way.

    Args:
        numbers: `[B, W, V]`, W·V in each row.
        number: k.
        score: `(block [B, X, S], first [B, X]) -> [B, X, S]`, the scores of numbers that stand one
            after another in a row, from place `first` on, for any number of such blocks; the
            numbers themselves by default. NaN counts as the largest.

    Returns:
        `[B, k]` places in the W·V, the best first.
    """
    rows, width, length = numbers.shape
    sizes = () if width * length < FEW else (size for size in BLOCKS if length % size == 0)
    size = next(iter(sizes), length)
    blocks = numbers.reshape(rows, -1, size)
    first = jnp.broadcast_to(size * jnp.arange(blocks.shape[1])[None], blocks.shape[:2])
    if size < length and blocks.shape[1] > number:
        _, best = jax.lax.top_k(_comparable(score(blocks, first)).max(-1), number)
        best = jnp.sort(best, axis=-1)  # so that equals stay in their order
        blocks = jnp.take_along_axis(blocks, best[..., None], axis=1)
        first = size * best
    _, found = jax.lax.top_k(_comparable(score(blocks, first)).reshape(rows, -1), number)
    block, place = jnp.divmod(found, size)
    return jnp.take_along_axis(first, block, axis=1) + place


def _comparable(scores: Array) -> Array:
    return jnp.where(jnp.isnan(scores), jnp.inf, scores)
