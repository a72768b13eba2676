"""Top-k over W·V candidates, which scores only blocks that can contain one of them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

LARGEST, SMALLEST = 128, 8  # size of a block: larger ones are slow to sort, smaller ones are many
FEW = 4_096  # candidates per row below which sorting all of them is faster


def top_places(
    numbers: Array,
    number: int,
    score: Callable[[Array, Array], Array],
    exceptions: Array,
) -> Array:
    """Return the places of the largest scores, in the order of `jax.lax.top_k`.

    `jax.lax.top_k` sorts whole rows of computed scores. But the k largest scores are in the k
    blocks with the largest maxima, so only those blocks are scored; of the others only the largest
    number is. The block size divides V; if no size does, as for a prime, the whole row is sorted.

    Args:
        numbers: `[W, B, V]`, W·V candidates in each row.
        number: k.
        score: `(block [B, X, S], first [B, X]) -> [B, X, S]`, the scores of successive numbers from
            place `first` of the W·V on. It is monotone in the numbers of the same V, but for the
            exceptions; a NaN among them makes all their scores NaN, which counts as the largest.
        exceptions: places `[B, E]` whose scores may have any value.

    Returns:
        `[B, k]` places in the W·V, best first; of equal scores, the first place.
    """
    width, rows, length = numbers.shape
    size = _block(numbers)
    num_blocks = width * (length // size)
    blocks = numbers.reshape(width, rows, length // size, size)
    largest = maxima(numbers).reshape(rows, num_blocks)
    which = jnp.broadcast_to(jnp.arange(num_blocks, dtype=jnp.int32)[None], largest.shape)
    num_scored = number + exceptions.shape[1]
    if size < length and num_scored < num_blocks:
        bounds = comparable(score(largest[..., None], size * which))[..., 0]
        bounds = bounds.at[jnp.arange(rows)[:, None], exceptions // size].set(jnp.inf)
        _, best = jax.lax.top_k(bounds, num_scored)
        which = jnp.sort(best, axis=-1)  # keeps the order of equal scores
        blocks = at_places(blocks, which)
    else:
        blocks = jnp.moveaxis(blocks, 0, 1).reshape(rows, num_blocks, size)
    first = size * which
    scores = comparable(score(blocks, first)).reshape(rows, which.shape[1] * size)
    _, found = jax.lax.top_k(scores, number)
    block, place = jnp.divmod(found, size)
    return jnp.take_along_axis(first, block, axis=1) + place


def maxima(numbers: Array) -> Array:
    """Return the maximum of each block of `[W, B, V]`: `[B, W, V / S]`."""
    *outer, length = numbers.shape
    size = _block(numbers)
    blocks = numbers.reshape(*outer, length // size, size)
    return jnp.moveaxis(blocks.max(axis=-1), 0, 1)


def at_places(numbers: Array, places: Array) -> Array:
    """Return the numbers of `[W, B, V, *]` at places `[B, X]` of the W·V: `[B, X, *]`."""
    which, place = jnp.divmod(places, numbers.shape[2])
    return numbers[which, jnp.arange(len(places), dtype=places.dtype)[:, None], place]


def _block(numbers: Array) -> int:
    """Return the block size for `[W, B, V]`, a divisor of V."""
    width, _, length = numbers.shape
    if width * length < FEW:
        return length
    sizes = (size for size in range(LARGEST, SMALLEST - 1, -1) if length % size == 0)
    return next(sizes, length)


def comparable(scores: Array) -> Array:
    """Replace NaN by infinity: it counts as the largest score."""
    return jnp.where(jnp.isnan(scores), jnp.inf, scores)
