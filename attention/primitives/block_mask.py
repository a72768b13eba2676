"""BlockMask: which tiles of a mask are empty, partial or full.

Computed inside `attend`, or once by `block_mask` for all layers and steps with the same mask. As in
FlexAttention (Dong et al. 2024, section 4.2).
"""

from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from attention.primitives.masks import INT32, Mask, PositionTiles, to_int32
from attention.primitives.pytree_dataclass import (
    arrays_of,
    array_field,
    batch_shapes,
    map_arrays,
    pytree_dataclass,
    static,
)

EMPTY, PARTIAL, FULL = 0, 1, 2


class Pattern(NamedTuple):
    """The key tiles that each row of query tiles visits.

    Attributes:
        start: int32 `[rows]`, the first key tile that is not empty.
        stop: int32 `[rows]`, one past the last.
        full_start: int32 `[rows]`, the first full key tile, if `kinds` is None.
        full_stop: int32 `[rows]`, one past the last.
        kinds: uint8 `[rows, columns]`: EMPTY, PARTIAL or FULL; None if the tiles between `start`
            and `stop` are full inside `[full_start, full_stop)` and partial outside.
    """

    start: Array
    stop: Array
    full_start: Array
    full_stop: Array
    kinds: Array | None

    def kind(self, row: Array, column: Array) -> Array:
        """Return EMPTY, PARTIAL or FULL for one tile."""
        if self.kinds is not None:
            return self.kinds[row, column].astype(jnp.int32)
        full = (self.full_start[row] <= column) & (column < self.full_stop[row])
        inside = (self.start[row] <= column) & (column < self.stop[row])
        return jnp.where(inside, jnp.where(full, FULL, PARTIAL), EMPTY)


@pytree_dataclass
class BlockMask:
    """A mask with its empty, partial and full tiles; pass it to `attend` as `mask`.

    Attributes:
        mask: the predicate.
        start: int32 `[..., rows]`, as in `Pattern`, like the next fields.
        stop: int32 `[..., rows]`.
        full_start: int32 `[..., rows]`.
        full_stop: int32 `[..., rows]`.
        kinds: uint8 `[..., rows, columns]`, or None where visible keys are intervals.
        query_positions: those that were passed, or None.
        key_positions: those that were passed, or None.
        lengths: T and S.
        tile_sizes: queries and keys per tile.
    """

    mask: Mask
    start: Array
    stop: Array
    full_start: Array
    full_stop: Array
    kinds: Array | None
    query_positions: Array | None
    key_positions: Array | None
    lengths: tuple[int, int] = static()
    tile_sizes: tuple[int, int] = static()

    @property
    def positions(self) -> tuple[Array, Array] | None:
        """The positions that were passed to `block_mask`."""
        return None if self.query_positions is None else (self.query_positions, self.key_positions)

    @property
    def pattern(self) -> Pattern:
        """The tiles to visit, with batch axes."""
        return Pattern(self.start, self.stop, self.full_start, self.full_stop, self.kinds)

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
    """Compute which tiles of a mask are empty, partial or full.

    Takes O(T / tile) numbers for a mask whose visible keys are intervals (`causal`, `window`,
    `lengths`, `block`, `cu_seqlens`, composed by `&`), and one byte per tile for any other.

    Args:
        mask: a mask of `attention.masks`; it may have batch axes.
        num_queries: T.
        num_keys: S, equal to T by default.
        positions: as in `attend`, which then takes none.
        tile_sizes: queries and keys per tile.

    >>> from attention import masks
    >>> tiles = block_mask(masks.causal(), 1024, tile_sizes=(256, 256))
    >>> tiles.stop.tolist(), tiles.full_stop.tolist()
    ([1, 2, 3, 4], [0, 1, 2, 3])
    """
    raise NotImplementedError
