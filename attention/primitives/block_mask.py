"""BlockMask: which tiles of a mask are empty, partial or full.

Computed inside `attend`, or once by `block_mask` for all layers and steps with the same mask. As in
FlexAttention (Dong et al. 2024, section 4.2).
"""

import math
from functools import partial
from numbers import Integral
from typing import NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from attention.primitives.batch import over_batch
from attention.primitives.masks import Mask, PositionTiles, leaves_of, to_int32
from attention.primitives.pytree_dataclass import (
    array_field,
    batch_shapes,
    pytree_dataclass,
    static,
)

EMPTY, PARTIAL, FULL = 0, 1, 2


# Each tile is evaluated in parts along its keys, so that a row may start within a tile.
PARTS = 4


class Pattern(NamedTuple):
    """The keys that each row of query tiles visits.

    Attributes:
        start: int32 `[rows]`, the number of the first key to visit: at most that of the first
            visible key.
        stop: int32 `[rows]`, one past the last key to visit; `start` if there is none.
        full_start: int32 `[rows]`, the first key that all queries of the row may attend to, if
            `kinds` is None.
        full_stop: int32 `[rows]`, one past the last.
        kinds: uint8 `[rows, columns]`: EMPTY, PARTIAL or FULL; None if all keys of
            `[start, stop)` may be visible.
    """

    start: Array
    stop: Array
    full_start: Array
    full_stop: Array
    kinds: Array | None

    def visits(self, row: Array, size: int, num_keys: int) -> tuple[Array, Array]:
        """Return where the first visit of a row starts, and how many visits it takes.

        It starts at a tile, so that visits of empty tiles can be skipped, unless fewer visits are
        needed from the first key on.

        Args:
            row: of tiles.
            size: keys per visit.
            num_keys: of all tiles.
        """
        start, stop = self.start[row], self.stop[row]
        tile = start // size * size
        number, of_tiles = -((start - stop) // size), -((tile - stop) // size)
        first = jnp.minimum(start, num_keys - number * size)
        return jnp.where(number < of_tiles, first, tile), number

    def is_empty(self, row: Array, start: Array, size: int) -> Array:
        """Return whether a visit of `size` keys from `start` on, of one or two tiles, is empty."""
        first, last = start // size, (start + size - 1) // size
        return (self.kinds[row, first] == EMPTY) & (self.kinds[row, last] == EMPTY)


def visited_by_any(pattern: Pattern, num_keys: int, *, may_shard: bool) -> Pattern:
    """Return the pattern; under `vmap`, the tiles that any of the examples visits.

    So loops and conditions stay scalar: one that differs per example would compute every branch.

    Args:
        pattern: without batch axes.
        num_keys: of all tiles.
        may_shard: whether the mapped axis may be sharded. Devices would have to communicate to
            agree on such tiles, so all are visited under `vmap`.
    """

    @jax.custom_batching.custom_vmap
    def visited(pattern: Pattern) -> Pattern:
        return pattern

    @visited.def_vmap
    def _visited_vmap(
        axis_size: int, in_batched: list[Pattern], pattern: Pattern
    ) -> tuple[Pattern, Pattern]:
        del axis_size
        if may_shard:
            every_tile = Pattern(0, num_keys, 0, 0, PARTIAL)
            filled = zip(pattern, in_batched[0], every_tile, strict=True)
            pattern = Pattern(
                *(
                    jnp.full(x.shape[1:], fill, x.dtype) if batched else x
                    for x, batched, fill in filled
                )
            )
        else:
            pattern = _merged(
                jax.tree.map(lambda x, batched: x if batched else x[None], pattern, in_batched[0]),
                num_keys,
            )
        # Again, for a `vmap` around this one.
        return visited(pattern), jax.tree.map(lambda _: False, pattern)

    return visited(pattern)


def _merged(pattern: Pattern, num_keys: int) -> Pattern:
    """Merge patterns along axis 0; a row that is empty in one of them adds nothing."""
    is_empty = pattern.stop <= pattern.start
    start = jnp.where(is_empty, num_keys, pattern.start).min(axis=0)
    stop = jnp.where(is_empty, 0, pattern.stop).max(axis=0)
    full_start, full_stop = pattern.full_start.max(axis=0), pattern.full_stop.min(axis=0)
    kinds = None if pattern.kinds is None else pattern.kinds.max(axis=0)
    return Pattern(start, jnp.maximum(start, stop), full_start, full_stop, kinds)


@pytree_dataclass
class BlockMask:
    """A mask and the keys and tiles that it leaves visible; pass it to `attend` as `mask`.

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
    start: Array = array_field(rank=1)
    stop: Array = array_field(rank=1)
    full_start: Array = array_field(rank=1)
    full_stop: Array = array_field(rank=1)
    kinds: Array | None = array_field(rank=2)
    query_positions: Array | None = array_field(rank=1)
    key_positions: Array | None = array_field(rank=1)
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

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(
            "a BlockMask does not compose, because its tiles are those of its mask: compose masks "
            "first, as in block_mask(mask & other, num_queries)"
        )

    __and__ = __or__ = __invert__ = _refuse

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

    Raises:
        TypeError: not a mask.
        ValueError: lengths or tile sizes that are not integers of at least 1; a mask of other
            lengths.

    >>> from attention import masks
    >>> tiles = block_mask(masks.causal(), 1024, tile_sizes=(256, 256))
    >>> tiles.stop.tolist(), tiles.full_stop.tolist()
    ([256, 512, 768, 1024], [1, 257, 513, 769])
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
    batch = jnp.broadcast_shapes(*batch_shapes(mask), *(array.shape[:-1] for array in given))

    tile_sizes, counted = tuple(tile_sizes), positions is None
    pattern = _patterns(mask, *given, batch=batch, tile_sizes=tile_sizes, counted=counted)
    kept = (None, None) if counted else given
    return BlockMask(mask, *pattern, *kept, lengths=lengths, tile_sizes=tile_sizes)


@partial(jax.jit, static_argnames=("batch", "tile_sizes", "counted"))
def _patterns(
    mask: Mask,
    query_positions: Array,
    key_positions: Array,
    *,
    batch: tuple[int, ...],
    tile_sizes: tuple[int, int],
    counted: bool,
) -> Pattern:
    """Compute the tiles of a batch in one program: outside of jit, each operation would be one."""

    def example(mask: Mask, query: Array, key: Array) -> Pattern:
        return pattern_of(mask, query, key, tile_sizes, counted=counted)

    return over_batch(example, (mask, query_positions, key_positions), (None, 1, 1), batch)


def check_extent(mask: Mask, sizes: tuple[int, int], *, counted: bool) -> None:
    """Check a mask for T queries and S keys, whose positions may count from 0.

    Raises:
        ValueError: a mask of another size, or one that compares positions if T and S differ.
    """
    for leaf in leaves_of(mask) if counted else ():
        for axis, ours, theirs in zip(
            ("queries (T)", "keys (S)"), leaf.extent(), sizes, strict=True
        ):
            if ours not in (None, theirs):
                raise ValueError(f"the mask describes {ours} {axis}, but there are {theirs}")
        if leaf.compares_positions and sizes[0] != sizes[1]:
            raise ValueError(
                f"{sizes[0]} queries and {sizes[1]} keys do not determine the positions of the "
                "queries among the keys, which this mask compares: pass "
                "positions=(query_positions, key_positions)"
            )


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


def pattern_of(
    mask: Mask,
    query_positions: Array,
    key_positions: Array,
    tile_sizes: tuple[int, int],
    *,
    counted: bool,
) -> Pattern:
    """Compute the tiles of one example.

    Args:
        mask: without batch axes.
        query_positions: int32 `[T]`.
        key_positions: int32 `[S]`.
        tile_sizes: queries and keys per tile.
        counted: whether both positions count from 0.
    """
    num_queries, num_keys = query_positions.shape[0], key_positions.shape[0]
    rows, columns = (
        -(-n // size) for n, size in zip((num_queries, num_keys), tile_sizes, strict=True)
    )
    parts = math.gcd(tile_sizes[1], PARTS)
    if counted:
        first = jnp.arange(rows, dtype=jnp.int32) * tile_sizes[0]
        last = jnp.minimum(first + tile_sizes[0], num_queries) - 1
        if (ranges := mask.key_range(first)) is not None:
            return _pattern_of_ranges(ranges, mask.key_range(last), num_keys)
    bounds = mask.tile_bounds(
        PositionTiles.of(_tiled(query_positions, rows, tile_sizes[0])),
        PositionTiles.of(_tiled(key_positions, columns * parts, tile_sizes[1] // parts)),
    )
    starts = jnp.arange(columns * parts)[None, :] * (tile_sizes[1] // parts)
    exists, complete = starts < num_keys, starts + tile_sizes[1] // parts <= num_keys
    return pattern_of_bounds(bounds.any & exists, bounds.all & complete, tile_sizes[1])


def pattern_of_bounds(some: Array, every: Array, size: int) -> Pattern:
    """Return the pattern of parts of tiles that may contain, or only contain, visible pairs.

    Args:
        some: bool `[rows, parts of all tiles]`.
        every: bool `[rows, parts of all tiles]`.
        size: keys per tile.
    """
    parts = math.gcd(size, PARTS)
    start = jnp.argmax(some, axis=1).astype(jnp.int32)
    stop = some.shape[1] - jnp.argmax(some[:, ::-1], axis=1).astype(jnp.int32)
    stop = jnp.where(some.any(axis=1), stop, start)
    some, every = (x.reshape(x.shape[0], -1, parts) for x in (some, every))
    kinds = jnp.where(some.any(axis=2), jnp.where(every.all(axis=2), FULL, PARTIAL), EMPTY)
    start, stop = (x * (size // parts) for x in (start, stop))
    return Pattern(start, stop, start, start, kinds.astype(jnp.uint8))


def _pattern_of_ranges(
    first: tuple[Array, Array], last: tuple[Array, Array], num_keys: int
) -> Pattern:
    """Return the pattern from the visible keys of the first and last query of each row."""
    start, stop, full_start, full_stop = (
        jnp.clip(position, 0, num_keys) for position in (first[0], last[1], last[0], first[1])
    )
    return Pattern(start, jnp.maximum(start, stop), full_start, full_stop, None)


def _tiled(positions: Array, tiles: int, size: int) -> Array:
    """Cut positions into tiles; the last one repeats its last position, within the bounds."""
    missing = tiles * size - positions.shape[0]
    return jnp.pad(positions, (0, missing), mode="edge").reshape(tiles, size)
