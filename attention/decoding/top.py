"""Top-k over W·V candidates, which scores only blocks that can contain one of them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

LARGEST, SMALLEST = 128, 8  # size of a block: larger ones are slow to sort, smaller ones are many
FEW = 4_096  # candidates per row below which sorting all of them is faster


def top_indices(
    values: Array,
    k: int,
    score: Callable[[Array, Array], Array],
    exceptions: Array | None = None,
) -> Array:
    """Return the indices of the k largest scores, in the order of `jax.lax.top_k`.

    `jax.lax.top_k` sorts whole rows of computed scores. But the k largest scores are in the k
    blocks with the largest maxima, so only those blocks are scored; of the others only the largest
    value is. The block size divides V; if no size does, as for a prime, the whole row is sorted.

    Args:
        values: `[W, B, V]`, W·V candidates in each row.
        k: number of indices.
        score: `(block [B, X, S], first [B, X]) -> [B, X, S]`, the scores of successive values from
            index `first` of the W·V on. It is monotone in the values of the same V, except for the
            exceptions; a NaN among them makes all their scores NaN, which counts as the largest.
        exceptions: indices `[B, E]` with scores of any value.

    Returns:
        `[B, k]` indices in `[0, W·V)`, best first; of equal scores, the first index.
    """
    width, rows, length = values.shape
    size = _block_size(values)
    num_blocks = width * (length // size)
    blocks = values.reshape(width, rows, length // size, size)
    largest = block_maxima(values).reshape(rows, num_blocks)
    which = jnp.broadcast_to(jnp.arange(num_blocks, dtype=jnp.int32)[None], largest.shape)
    num_scored = k + (0 if exceptions is None else exceptions.shape[1])
    if size < length and num_scored < num_blocks:
        bounds = nan_as_largest(score(largest[..., None], size * which))[..., 0]
        if exceptions is not None:
            bounds = bounds.at[jnp.arange(rows)[:, None], exceptions // size].set(jnp.inf)
        _, best = jax.lax.top_k(bounds, num_scored)
        which = jnp.sort(best, axis=-1)  # keeps the order of equal scores
        blocks = at_indices(blocks, which)
    else:
        blocks = jnp.moveaxis(blocks, 0, 1).reshape(rows, num_blocks, size)
    first = size * which
    scores = nan_as_largest(score(blocks, first)).reshape(rows, which.shape[1] * size)
    _, found = jax.lax.top_k(scores, k)
    block, offset = jnp.divmod(found, size)
    return jnp.take_along_axis(first, block, axis=1) + offset


def block_maxima(values: Array) -> Array:
    """Return the maximum of each block of `[W, B, V]`: `[B, W, V / S]`."""
    *outer, length = values.shape
    size = _block_size(values)
    blocks = values.reshape(*outer, length // size, size)
    return jnp.moveaxis(blocks.max(axis=-1), 0, 1)


def at_indices(values: Array, indices: Array) -> Array:
    """Return the values of `[W, B, V, *]` at indices `[B, X]` of the W·V: `[B, X, *]`."""
    which, offset = jnp.divmod(indices, values.shape[2])
    return values[which, jnp.arange(len(indices), dtype=indices.dtype)[:, None], offset]


def nan_as_largest(scores: Array) -> Array:
    """Replace NaN by infinity: it counts as the largest score."""
    return jnp.where(jnp.isnan(scores), jnp.inf, scores)


def _block_size(values: Array) -> int:
    """Return the block size for `[W, B, V]`, a divisor of V."""
    width, _, length = values.shape
    if width * length < FEW:
        return length
    sizes = (size for size in range(LARGEST, SMALLEST - 1, -1) if length % size == 0)
    return next(sizes, length)
