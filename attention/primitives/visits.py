"""Which tiles of scores are visited: those in which a mask may allow a pair.

As the block mask of FlexAttention (Dong et al. 2024, section 4.2), computed in each call.
"""

import math

import jax.numpy as jnp
from jax import Array

from attention.primitives.masks import Mask
from attention.primitives.pytree_dataclass import array_field, pytree_dataclass


@pytree_dataclass
class Visits:
    """The key tiles that each row of query tiles visits.

    Attributes:
        first: int32 `[rows]`, the first of them, where they are an interval; None elsewhere.
        columns: int32 `[rows, columns]`, those to visit first; None where they are an interval.
        counts: int32 `[rows]`, how many there are.
    """

    first: Array | None = array_field("r")
    columns: Array | None = array_field("rc")
    counts: Array = array_field("r")

    def column(self, row: Array, number: Array) -> Array:
        """Return the `number`-th key tile of a row."""
        return self.first[row] + number if self.columns is None else self.columns[row, number]

    def flags(self, row: Array, columns: int) -> Array:
        """Return which key tiles a row visits: bool `[columns]`."""
        numbers = jnp.arange(columns, dtype=jnp.int32)
        if self.columns is None:
            return (numbers >= self.first[row]) & (numbers < self.first[row] + self.counts[row])
        is_first = numbers < self.counts[row]
        return jnp.zeros(columns, bool).at[self.columns[row]].set(is_first)


def visits_of(
    mask: Mask,
    query_positions: Array,
    key_positions: Array,
    tile_sizes: tuple[int, int],
    *,
    counted: bool,
) -> Visits:
    """Compute the visits of one example.

    Args:
        mask: without batch axes, its arrays of pairs indexed by query and key.
        query_positions: int32 `[T]`.
        key_positions: int32 `[S]`.
        tile_sizes: queries and keys per tile.
        counted: whether both positions count from 0.
    """
    query, key = (
        _tiled(positions, size)
        for positions, size in zip((query_positions, key_positions), tile_sizes, strict=True)
    )
    if counted and (ranges := mask.key_range(query[:, 0])) is not None:
        num_keys, size = key_positions.shape[0], tile_sizes[1]
        start = jnp.clip(ranges[0], 0, num_keys) // size
        stop = -(-jnp.clip(mask.key_range(query[:, -1])[1], 0, num_keys) // size)
        return Visits(start, None, jnp.maximum(stop - start, 0))
    some = mask.tile_bounds(query, key).any
    columns = jnp.argsort(~some, axis=1, stable=True).astype(jnp.int32)
    return Visits(None, columns, some.sum(axis=1, dtype=jnp.int32))


def _tiled(positions: Array, size: int) -> Array:
    """Cut positions into tiles `[tiles, size]`; the last one repeats its last position."""
    tiles = -(-positions.shape[0] // size)
    missing = tiles * size - positions.shape[0]
    return jnp.pad(positions, (0, missing), mode="edge").reshape(tiles, size)


def most_visits(mask: Mask, shape: tuple[int, int], sizes: tuple[int, int]) -> int:
    """Return how many tiles a row visits at most, for positions that count from 0.

    Args:
        mask: with or without batch axes.
        shape: rows and columns of tiles.
        sizes: queries and keys per tile.
    """
    if (band := mask.band()) is None:
        return shape[1]
    (rows, columns), (before, after) = sizes, band
    most = math.ceil(before / columns) + math.ceil((rows + after) / columns)
    return min(shape[1], most + (rows % columns > 0))
