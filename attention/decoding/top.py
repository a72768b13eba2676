"""The largest of very many scores, of which few are ever computed but to be compared."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

LARGEST, SMALLEST = 128, 8  # numbers in a block: of more the sort is long, of fewer there are many
FEW = 4_096  # numbers of a row, which are sorted sooner than their blocks are compared


def top_places(
    numbers: Array, number: int, score: Callable[[Array, Array], Array] = lambda block, _: block
) -> Array:
    """Where the largest scores stand, as `jax.lax.top_k` says it: the first of equals first.

    That sorts whole rows, and to be sorted the scores must stand in memory. But the k largest stand
    in the k blocks with the largest maxima, so only those are; of all others the maximum is found
    on the way. Blocks are as large as divides V; a V that nothing divides, a prime, is sorted.

    Args:
        numbers: `[B, W, V]`, W·V in each row.
        number: k.
        score: `(block [B, X, S], first [B, X]) -> [B, X, S]`, the scores of numbers that stand one
            after another, from the place `first` of the W·V on, for any number of such blocks; the
            numbers themselves by default. NaN counts as the largest.

    Returns:
        `[B, k]` places in the W·V, the best first.
    """
    rows, width, length = numbers.shape
    size = length if width * length < FEW else _block(length)
    blocks = numbers.reshape(rows, -1, size)
    first = size * jnp.arange(blocks.shape[1], dtype=jnp.int32)
    first = jnp.broadcast_to(first[None], blocks.shape[:2])
    if size < length and blocks.shape[1] > number:
        _, best = jax.lax.top_k(_comparable(score(blocks, first)).max(-1), number)
        best = jnp.sort(best, axis=-1)  # so that equals stay in their order
        blocks = jnp.take_along_axis(blocks, best[..., None], axis=1)
        first = size * best
    _, found = jax.lax.top_k(_comparable(score(blocks, first)).reshape(rows, -1), number)
    block, place = jnp.divmod(found, size)
    return jnp.take_along_axis(first, block, axis=1) + place


def _block(length: int) -> int:
    sizes = (size for size in range(LARGEST, SMALLEST - 1, -1) if length % size == 0)
    return next(sizes, length)


def _comparable(scores: Array) -> Array:
    return jnp.where(jnp.isnan(scores), jnp.inf, scores)
