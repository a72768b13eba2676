"""The largest of very many scores, of which few are ever computed but to be compared."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

LARGEST, SMALLEST = 128, 8  # numbers in a block: of more the sort is long, of fewer there are many
FEW = 4_096  # numbers of a row, which are sorted sooner than their blocks are compared


def top_places(
    numbers: Array,
    number: int,
    score: Callable[[Array, Array], Array],
    exceptions: Array,
) -> Array:
    """Where the largest scores stand, in the order of `jax.lax.top_k`: the first of equals first.

    That sorts whole rows, and to be sorted the scores must stand in memory. But the k largest stand
    in the k blocks with the largest maxima, so only those are scored; of all others the largest
    number is. Blocks are as large as divides V; a V that nothing divides, a prime, is sorted.

    Args:
        numbers: `[W, B, V]`, W·V in each row.
        number: k.
        score: `(block [B, X, S], first [B, X]) -> [B, X, S]`, the scores of numbers that stand one
            after another, from the place `first` of the W·V on, for any number of such blocks. Of
            numbers from the same V the larger scores no less, but for the exceptions. NaN among
            them must make all of their scores NaN, which counts as the largest.
        exceptions: places `[B, E]` whose scores may be any.

    Returns:
        `[B, k]` places in the W·V, the best first.
    """
    width, rows, length = numbers.shape
    size = _block(numbers)
    num_blocks = width * (length // size)
    blocks = numbers.reshape(width, rows, length // size, size)
    largest = maxima(numbers).reshape(rows, num_blocks)
    which = jnp.broadcast_to(jnp.arange(num_blocks, dtype=jnp.int32)[None], largest.shape)
    looked_into = number + exceptions.shape[1]
    if size < length and looked_into < num_blocks:
        bounds = comparable(score(largest[..., None], size * which))[..., 0]
        bounds = bounds.at[jnp.arange(rows)[:, None], exceptions // size].set(jnp.inf)
        _, best = jax.lax.top_k(bounds, looked_into)
        which = jnp.sort(best, axis=-1)  # so that equals stay in their order
        blocks = at_places(blocks, which)
    else:
        blocks = jnp.moveaxis(blocks, 0, 1).reshape(rows, num_blocks, size)
    first = size * which
    scores = comparable(score(blocks, first)).reshape(rows, which.shape[1] * size)
    _, found = jax.lax.top_k(scores, number)
    block, place = jnp.divmod(found, size)
    return jnp.take_along_axis(first, block, axis=1) + place


def maxima(numbers: Array) -> Array:
    """The largest of each block of numbers `[W, B, V]`: `[B, W, V / S]`."""
    *outer, length = numbers.shape
    size = _block(numbers)
    blocks = numbers.reshape(*outer, length // size, size)
    return jnp.moveaxis(blocks.max(axis=-1), 0, 1)


def at_places(numbers: Array, places: Array) -> Array:
    """Of numbers `[W, B, V, *]` those at places `[B, X]` in the W·V of each row: `[B, X, *]`."""
    which, place = jnp.divmod(places, numbers.shape[2])
    return numbers[which, jnp.arange(len(places), dtype=places.dtype)[:, None], place]


def _block(numbers: Array) -> int:
    """How many numbers of `[W, B, V]` are compared at once, a divisor of V."""
    width, _, length = numbers.shape
    if width * length < FEW:
        return length
    sizes = (size for size in range(LARGEST, SMALLEST - 1, -1) if length % size == 0)
    return next(sizes, length)


def comparable(scores: Array) -> Array:
    """Scores that a sort understands: NaN counts as the largest."""
    return jnp.where(jnp.isnan(scores), jnp.inf, scores)
