"""Which tiles of scores are visited: those in which a mask may allow a pair.

Computed inside `attend`, or once by `block_mask` for all layers and steps with the same mask. As in
FlexAttention (Dong et al. 2024, section 4.2).
"""

import math
from functools import partial
from numbers import Integral

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from attention.primitives.masks import (
    Mask,
    Positions,
    PositionTiles,
    check_extent,
    to_int32,
)
from attention.primitives.pytree_dataclass import (
    array_field,
    batch_shapes,
    pytree_dataclass,
    static,
)
from attention.primitives.vectorize import over_batch


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
    some = mask.tile_bounds(PositionTiles.of(query), PositionTiles.of(key)).any
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


@pytree_dataclass
class BlockMask(Mask):
    """A mask that remembers which tiles it visits; `block_mask` makes it.

    Attributes:
        mask: the predicate.
        visits: the tiles.
        query_positions: those that were passed, or None.
        key_positions: those that were passed, or None.
        lengths: T and S.
        tile_sizes: queries and keys per tile.
    """

    mask: Mask
    visits: Visits
    query_positions: Array | None = array_field("p")
    key_positions: Array | None = array_field("p")
    lengths: tuple[int, int] = static()
    tile_sizes: tuple[int, int] = static()

    @property
    def positions(self) -> tuple[Array, Array] | None:
        """The positions that were passed to `block_mask`."""
        return None if self.query_positions is None else (self.query_positions, self.key_positions)

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        return self.mask(query_position, key_position)

    def as_operand(self) -> Mask:
        """Return the mask without its tiles, which are not those of the expression."""
        if self.positions is not None:
            raise ValueError(
                "compose masks before block_mask, as in block_mask(mask & other, T, "
                "positions=...): composed, this mask would lose its positions"
            )
        return self.mask

    def check(
        self, num_queries: int, num_keys: int, tile_sizes: tuple[int, int] | None = None
    ) -> None:
        """Check that the block mask is for these lengths and tile sizes.

        Raises:
            ValueError: it is for others.
        """
        if (num_queries, num_keys) != self.lengths:
            raise ValueError(
                f"this BlockMask is for {self.lengths[0]} queries and {self.lengths[1]} keys, but "
                f"there are {num_queries} and {num_keys}"
            )
        if tile_sizes is not None and tuple(tile_sizes) != self.tile_sizes:
            raise ValueError(
                f"this BlockMask has tiles of {self.tile_sizes}, not {tuple(tile_sizes)}"
            )


def block_mask(
    mask: Mask,
    num_queries: int,
    num_keys: int | None = None,
    *,
    positions: tuple[ArrayLike, ArrayLike] | None = None,
    tile_sizes: tuple[int, int] = (512, 512),
) -> BlockMask:
    """Compute which tiles of a mask are visited, for several calls of `attend`.

    Takes O(T / tile) numbers for a mask whose visible keys are intervals (`causal`, `window`,
    `lengths`, `block`, `cu_seqlens`, composed by `&`), and four bytes per tile for any other.
    Composed with another mask it is the mask alone, whose tiles `attend` then computes again.

    Args:
        mask: a mask of `attention.masks`; it may have batch axes.
        num_queries: T.
        num_keys: S, equal to T by default.
        positions: as in `attend`, which then takes none.
        tile_sizes: queries and keys per tile.

    Raises:
        TypeError: not a mask.
        ValueError: lengths or tile sizes that are not integers of at least 1; a mask of other
            lengths.

    >>> from attention import masks
    >>> block_mask(masks.causal(), 1024, tile_sizes=(256, 256)).visits.counts.tolist()
    [1, 2, 3, 4]
    """
    num_keys = num_queries if num_keys is None else num_keys
    lengths = num_queries, num_keys
    if not isinstance(mask, Mask):
        raise TypeError(
            f"block_mask takes a mask of attention.masks, got {type(mask).__name__}: wrap a bool "
            "array in masks.from_array"
        )
    if not all(isinstance(length, Integral) and length >= 1 for length in lengths):
        raise ValueError(
            "block_mask takes num_queries and num_keys, two integers of at least 1, got "
            f"{num_queries} and {num_keys}"
        )
    check_extent(mask, lengths, counted=positions is None)
    check_tile_sizes(tile_sizes)
    given = positions or tuple(np.arange(length) for length in lengths)
    given = tuple(to_int32("positions", array, 1) for array in given)
    tile_sizes, counted = tuple(tile_sizes), positions is None
    visits = _visits_of_batch(mask, Positions(*given), tile_sizes=tile_sizes, counted=counted)
    kept = (None, None) if counted else given
    return BlockMask(mask, visits, *kept, lengths=lengths, tile_sizes=tile_sizes)


# Under jit because outside of it each operation would be a program.
@partial(jax.jit, static_argnames=("tile_sizes", "counted"))
def _visits_of_batch(
    mask: Mask, at: Positions, *, tile_sizes: tuple[int, int], counted: bool
) -> Visits:
    def example(mask: Mask, at: Positions) -> Visits:
        mask = mask.by_index(None if counted else (at.query, at.key))
        return visits_of(mask, at.query, at.key, tile_sizes, counted=counted)

    return over_batch(example, (mask, at), jnp.broadcast_shapes(*batch_shapes((mask, at))))


def check_tile_sizes(tile_sizes: tuple[int, int] | None) -> None:
    """Check queries and keys per tile.

    Raises:
        ValueError: not a pair of integers of at least 1.
    """
    if tile_sizes is not None and not (
        isinstance(tile_sizes, tuple | list)
        and len(tile_sizes) == 2
        and all(isinstance(size, int) and size >= 1 for size in tile_sizes)
    ):
        raise ValueError(
            f"tile_sizes must be (queries, keys), two integers of at least 1, got {tile_sizes}"
        )
