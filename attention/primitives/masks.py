"""Masks: pure predicates on positions that decide which keys each query attends to.

`mask(query_position, key_position) -> bool`, True = may attend, elementwise over arrays that
broadcast. A mask is a frozen pytree, so it passes through jit, vmap and grad; `&`, `|` and `~`
compose masks exactly. It keeps its structure: a dense array is made late, for one tile.

Arrays inside a mask may have leading batch axes, which makes it one mask for a whole batch:
`causal() & lengths(jnp.array([3, 5]))` serves two examples. To make a batch of masks of a
function, map its construction: `jax.vmap(lambda ids: from_function(f, ids))(batch_of_ids)`.

Each picture below has query positions 0 to 5 as rows and key positions 0 to 5 as columns.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from operator import index
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from attention.primitives.functions import Program, hoist
from attention.primitives.pytree_dataclass import (
    array_field,
    arrays_of,
    batch_shapes,
    map_arrays,
    pytree_dataclass,
    static,
)
from attention.primitives.vectorize import over_batch

INT32 = jnp.iinfo(jnp.int32)


class PositionTiles(NamedTuple):
    """The positions of tiles of queries or keys `[tiles, size]`, and the bounds of each tile."""

    positions: Array
    low: Array
    high: Array

    @classmethod
    def of(cls, positions: Array) -> "PositionTiles":
        """Compute the bounds of positions `[tiles, size]`."""
        return cls(positions, positions.min(axis=-1), positions.max(axis=-1))


class PositionRange(NamedTuple):
    """The lowest and the highest position of one tile of queries or keys, int32 numbers."""

    low: Array
    high: Array


class TileBounds(NamedTuple):
    """Conservative bounds per tile, bool `[query tiles, key tiles]`, or of one pair of tiles.

    `any` False = fully masked; `all` True = fully visible.
    """

    any: Array
    all: Array


class Mask:
    """A predicate on (query position, key position).

    Subclasses are frozen dataclasses that are pytrees; `from_function` makes one of a function.
    """

    # Whether the two positions are compared, so that the result depends on where the queries are
    # among the keys.
    compares_positions: ClassVar[bool] = False

    # NumPy then leaves `array & mask` to the mask.
    __array_ufunc__ = None

    def __call__(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        """Return whether a query at one position may attend to a key at another: bool, elementwise.

        Raises:
            ValueError: the mask has batch axes.
        """
        for axes in batch_shapes(self):
            if axes:
                raise ValueError(
                    f"this mask is for a batch of {axes}: use it in attend, or lift the call with "
                    "jax.vmap"
                )
        return self._allows(query_position, key_position)

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        """Return whether the key is in `key_range`; other masks override this."""
        start, stop = self.key_range(jnp.asarray(query_position, jnp.int32))
        return (key_position >= start) & (key_position < stop)

    def extent(self) -> tuple[int | None, int | None, int | None]:
        """Return the numbers of heads, queries and keys that it describes; None = any number."""
        return None, None, None

    def key_range(self, query_position: Array) -> tuple[Array, Array] | None:
        """Return the visible keys of each query as an interval `[start, stop)` of positions.

        None if they may not be one. Neither bound may decrease as the query position grows.
        """
        del query_position

    def band(self) -> tuple[int, int] | None:
        """Return (before, after) if no key further from the query is visible; None if unknown.

        For every query `key_range` lies between `before` positions before it and `after` positions
        after it. One query may have fewer keys: `block(size)` has the band (size - 1, size - 1).
        """
        return None

    def by_index(self, positions: tuple[Array, Array] | None) -> "Mask":
        """Return it with its arrays of pairs indexed by query and key, not by their positions.

        Args:
            positions: of the queries `[T]` and keys `[S]`; None if both count from 0.
        """
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        parts = {k: x.by_index(positions) for k, x in parts.items() if isinstance(x, Mask)}
        return replace(self, **parts) if parts else self

    def tile_bounds(self, query: PositionTiles, key: PositionTiles) -> TileBounds:
        """Return which tiles may contain a visible pair, and which contain only visible pairs.

        Computed from `key_range` where it is known. Masks that can derive it otherwise override
        this; for any other, every pair is evaluated once, one tile after another.
        """
        if (ranges := self.key_range(query.low)) is not None:
            (start, least_stop), (most_start, stop) = ranges, self.key_range(query.high)
            low, high = key.low[None, :], key.high[None, :]
            return TileBounds(
                (high >= start[:, None]) & (low < stop[:, None]),
                (low >= most_start[:, None]) & (high < least_stop[:, None]),
            )

        def tile(query_tile: Array, key_tile: Array) -> TileBounds:
            allowed = self(query_tile[:, None], key_tile[None, :])
            return TileBounds(allowed.any(), allowed.all())

        def row(query_tile: Array) -> TileBounds:
            return jax.lax.map(lambda key_tile: tile(query_tile, key_tile), key.positions)

        return jax.lax.map(row, query.positions)

    def __and__(self, other: "Mask | ArrayLike") -> "Mask":
        """Return the mask that allows what both allow; a bool array is wrapped in `from_array`.

        Raises:
            ValueError: `cu_seqlens` of other keys than queries, and a mask that compares positions.
        """
        return _both(self, _operand(other))

    def __rand__(self, other: ArrayLike) -> "Mask":
        """Return the mask that allows what a bool array and this mask allow."""
        return _both(_operand(other), self)

    def __or__(self, other: "Mask | ArrayLike") -> "Mask":
        """Return the mask that allows what either allows; as `&` for a bool array."""
        return Or(self, _operand(other))

    def __ror__(self, other: ArrayLike) -> "Mask":
        """Return the mask that allows what a bool array or this mask allows."""
        return Or(_operand(other), self)

    def __invert__(self) -> "Mask":
        """Return the mask that allows what this one forbids."""
        return Not(self)

    def __bool__(self) -> bool:
        """Refuse `and`, `or` and `not`, which would lose one of the two masks."""
        raise TypeError("a mask is neither true nor false: compose masks with &, | and ~")


def _operand(other: Mask | ArrayLike) -> Mask:
    return other if isinstance(other, Mask) else from_array(other)


def _both(left: Mask, right: Mask) -> Mask:
    leaves = [*leaves_of(left), *leaves_of(right)]
    compares = any(leaf.compares_positions for leaf in leaves)
    if compares and any(isinstance(leaf, CuSeqlens) and leaf.own_keys for leaf in leaves):
        raise ValueError(
            "cu_seqlens with key_offsets gives a sequence other positions among the keys than "
            "among the queries, so no mask can compare them: pass causal=True to cu_seqlens, "
            "or no key_offsets if both are the same"
        )
    return And(left, right)


def full() -> Mask:
    """Allow every pair. Position 2³¹ - 1, that of empty slots of a cache, is no key.

    >>> print(picture(full(), 6))
    1 1 1 1 1 1
    1 1 1 1 1 1
    1 1 1 1 1 1
    1 1 1 1 1 1
    1 1 1 1 1 1
    1 1 1 1 1 1
    """
    return Window(None, None)


def causal() -> Mask:
    """Allow keys that are not in the future: key position <= query position.

    >>> print(picture(causal(), 6))
    1 0 0 0 0 0
    1 1 0 0 0 0
    1 1 1 0 0 0
    1 1 1 1 0 0
    1 1 1 1 1 0
    1 1 1 1 1 1
    """
    return Window(None, 0)


def window(before: int | None, after: int | None = 0) -> Mask:
    """Allow keys at most `before` positions before the query and `after` positions after it.

    None = any number of positions: `window(None, 0)` is causal.

    >>> print(picture(window(before=2, after=1), 6))
    1 1 0 0 0 0
    1 1 1 0 0 0
    1 1 1 1 0 0
    0 1 1 1 1 0
    0 0 1 1 1 1
    0 0 0 1 1 1
    """
    if min(index(reach or 0) for reach in (before, after)) < 0:
        raise ValueError(f"a window reaches 0 or more positions, got {before=} and {after=}")
    return Window(*(None if reach is None else index(reach) for reach in (before, after)))


@pytree_dataclass
class Window(Mask):
    """The mask that `window`, `causal` and `full` make."""

    before: int | None = static()
    after: int | None = static()

    @property
    def compares_positions(self) -> bool:
        return (self.before, self.after) != (None, None)

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        start, stop = self.key_range(jnp.asarray(query_position, jnp.int32))
        allowed = jnp.less(key_position, stop)
        return allowed if self.before is None else allowed & (start <= key_position)

    def key_range(self, query_position: Array) -> tuple[Array, Array]:
        start, stop = (jnp.full_like(query_position, end) for end in (INT32.min, INT32.max))
        if self.before is not None:
            reach = min(self.before, INT32.max)
            start = jnp.maximum(query_position, INT32.min + reach) - reach
        if self.after is not None:
            reach = min(self.after, INT32.max - 1) + 1
            stop = jnp.minimum(query_position, INT32.max - reach) + reach
        return start, stop

    def band(self) -> tuple[int, int] | None:
        return None if None in (self.before, self.after) else (self.before, self.after)


def lengths(lengths: ArrayLike, *, query_lengths: ArrayLike | None = None) -> Mask:
    """Allow keys that are tokens and not padding: 0 <= key position < length.

    Args:
        lengths: integers `[...]`, the number of keys of each example.
        query_lengths: integers `[...]`, the number of queries of each example; a query beyond it
            attends to no key. All queries by default.

    Raises:
        ValueError: known lengths below 0.

    >>> print(picture(lengths(4), 6))
    1 1 1 1 0 0
    1 1 1 1 0 0
    1 1 1 1 0 0
    1 1 1 1 0 0
    1 1 1 1 0 0
    1 1 1 1 0 0
    """
    keys = Lengths(_checked_lengths("lengths", lengths))
    if query_lengths is None:
        return keys
    return keys & QueryLengths(_checked_lengths("query_lengths", query_lengths))


def _checked_lengths(name: str, given: ArrayLike) -> Array:
    lengths, known = to_int32(name, given, 0), _known(given)
    if known is not None and known.min(initial=0) < 0:
        raise ValueError(f"{name} must be 0 or more, got {known.min()}")
    return lengths


@pytree_dataclass
class Lengths(Mask):
    """The mask that `lengths` makes for keys."""

    lengths: Array = array_field("")

    def key_range(self, query_position: Array) -> tuple[Array, Array]:
        start = jnp.zeros_like(query_position)
        return start, start + self.lengths


@pytree_dataclass
class QueryLengths(Mask):
    """The mask that `lengths` makes for queries."""

    lengths: Array = array_field("")

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        query_position, key_position = jnp.broadcast_arrays(query_position, key_position)
        return (query_position >= 0) & (query_position < self.lengths)

    def tile_bounds(self, query: PositionTiles, key: PositionTiles) -> TileBounds:
        rows = Lengths(self.lengths).tile_bounds(key, query)
        return TileBounds(rows.any.T, rows.all.T)


def segments(query_segments: ArrayLike, key_segments: ArrayLike | None = None) -> Mask:
    """Allow keys of the query's segment, for several sequences packed into one row.

    Args:
        query_segments: integers `[..., T]`, the segment of each query position.
        key_segments: integers `[..., S]`; the same as the queries' by default.

    >>> print(picture(segments([7, 7, 7, 8, 8, 9]), 6))
    1 1 1 0 0 0
    1 1 1 0 0 0
    1 1 1 0 0 0
    0 0 0 1 1 0
    0 0 0 1 1 0
    0 0 0 0 0 1
    """
    query_segments = to_int32("query_segments", query_segments, 1)
    if key_segments is None:
        return Segments(query_segments, query_segments)
    return Segments(query_segments, to_int32("key_segments", key_segments, 1))


@pytree_dataclass
class Segments(Mask):
    """The mask that `segments` makes."""

    query_segments: Array = array_field("p")
    key_segments: Array = array_field("p")

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        same = _at(self.query_segments, query_position) == _at(self.key_segments, key_position)
        known = _within(query_position, self.query_segments.shape[-1])
        return same & known & _within(key_position, self.key_segments.shape[-1])

    def tile_bounds(self, query: PositionTiles, key: PositionTiles) -> TileBounds:
        _, num_queries, num_keys = self.extent()
        ours = PositionTiles.of(_at(self.query_segments, query.positions))
        theirs = PositionTiles.of(_at(self.key_segments, key.positions))
        low = jnp.maximum(ours.low[:, None], theirs.low[None, :])
        high = jnp.minimum(ours.high[:, None], theirs.high[None, :])
        # One segment on both sides: the larger of the two ranges is a single number.
        widest = jnp.minimum(ours.low[:, None], theirs.low[None, :])
        one = widest == jnp.maximum(ours.high[:, None], theirs.high[None, :])
        rows = _within(query.low, num_queries) & _within(query.high, num_queries)
        columns = _within(key.low, num_keys) & _within(key.high, num_keys)
        return TileBounds(low <= high, one & rows[:, None] & columns[None, :])

    def extent(self) -> tuple[None, int, int]:
        return None, self.query_segments.shape[-1], self.key_segments.shape[-1]


def cu_seqlens(
    query_offsets: ArrayLike, key_offsets: ArrayLike | None = None, *, causal: bool = False
) -> Mask:
    """Allow keys of the query's sequence, for packed sequences given by cumulative lengths.

    As in the variable-length functions of FlashAttention (Dao 2023).

    Args:
        query_offsets: integers `[..., sequences + 1]`, 0 first and never decreasing: sequence n has
            positions `query_offsets[n]` to `query_offsets[n + 1] - 1`.
        key_offsets: of the keys; the same as the queries' by default.
        causal: whether to mask keys after the query, which are counted from the end of the
            sequence: its last query may attend to all its keys.

    Raises:
        ValueError: fewer than 2 offsets, or other numbers of them; known offsets that decrease or
            do not begin with 0.

    >>> print(picture(cu_seqlens([0, 3, 5, 6]), 6))
    1 1 1 0 0 0
    1 1 1 0 0 0
    1 1 1 0 0 0
    0 0 0 1 1 0
    0 0 0 1 1 0
    0 0 0 0 0 1
    """
    query_offsets = _checked_offsets("query_offsets", query_offsets)
    if key_offsets is None:
        return CuSeqlens(query_offsets, query_offsets, causal, own_keys=False)
    key_offsets = _checked_offsets("key_offsets", key_offsets)
    if query_offsets.shape[-1] != key_offsets.shape[-1]:
        raise ValueError(
            f"{query_offsets.shape[-1]} query_offsets and {key_offsets.shape[-1]} key_offsets are "
            "for different numbers of sequences"
        )
    return CuSeqlens(query_offsets, key_offsets, causal, own_keys=True)


def _checked_offsets(name: str, given: ArrayLike) -> Array:
    offsets, known = to_int32(name, given, 1), _known(given)
    if offsets.shape[-1] < 2:
        raise ValueError(
            f"{name} are the starts of sequences and the last end, so 2 or more, got "
            f"{offsets.shape[-1]}"
        )
    if known is not None and known[..., 0].any():
        first = known[..., 0]
        raise ValueError(f"{name} are cumulative, so the first is 0, got {first[first != 0][0]}")
    if known is not None and (falls := known[..., 1:] < known[..., :-1]).any():
        raise ValueError(
            f"{name} are cumulative, so they never decrease, but {known[..., 1:][falls][0]} "
            f"follows {known[..., :-1][falls][0]}"
        )
    return offsets


@pytree_dataclass
class CuSeqlens(Mask):
    """The mask that `cu_seqlens` makes."""

    query_offsets: Array = array_field("p")
    key_offsets: Array = array_field("p")
    causal: bool = static()
    own_keys: bool = static()

    def key_range(self, query_position: Array) -> tuple[Array, Array]:
        sequence = jnp.searchsorted(self.query_offsets, query_position, side="right")
        num_offsets = self.key_offsets.shape[-1]
        start = _at(self.key_offsets, jnp.where(sequence > 0, sequence - 1, 0))
        stop = _at(self.key_offsets, jnp.minimum(sequence, num_offsets - 1))
        start = jnp.where(sequence > 0, start, stop)
        if self.causal:
            after = _at(self.query_offsets, jnp.minimum(sequence, num_offsets - 1)) - query_position
            stop = jnp.clip(stop - after + 1, start, stop)
        return start, stop


def prefix(length: ArrayLike) -> Mask:
    """Allow a prefix to every query, and causal keys after it (prefix LM, Raffel et al. 2020).

    Args:
        length: integers `[...]`, the length of the prefix of each example.

    >>> print(picture(prefix(3), 6))
    1 1 1 0 0 0
    1 1 1 0 0 0
    1 1 1 0 0 0
    1 1 1 1 0 0
    1 1 1 1 1 0
    1 1 1 1 1 1
    """
    return Lengths(_checked_lengths("length", length)) | causal()


def block(size: int) -> Mask:
    """Allow keys of the query's block of `size` positions.

    `block(size) | causal()` is causal over blocks and full inside each block.

    >>> print(picture(block(2), 6))
    1 1 0 0 0 0
    1 1 0 0 0 0
    0 0 1 1 0 0
    0 0 1 1 0 0
    0 0 0 0 1 1
    0 0 0 0 1 1
    """
    size = index(size)
    if size < 1:
        raise ValueError(f"a block holds at least 1 position, got {size=}")
    return Block(size)


@pytree_dataclass
class Block(Mask):
    """The mask that `block` makes."""

    size: int = static()
    compares_positions = True

    def key_range(self, query_position: Array) -> tuple[Array, Array]:
        size = min(self.size, INT32.max)
        before = query_position % size
        after = size - before
        start = jnp.maximum(query_position, INT32.min + before) - before
        return start, jnp.minimum(query_position, INT32.max - after) + after

    def band(self) -> tuple[int, int]:
        return self.size - 1, self.size - 1


def from_array(array: ArrayLike) -> Mask:
    """Allow the pairs where a bool array at [query position, key position] is True.

    Positions outside the array are masked.

    Args:
        array: bool `[T, S]`, or with as many axes as the weights of `attend`, `[..., N, T, S]`,
            where each size may be 1.

    >>> array = jnp.zeros((6, 6), bool).at[jnp.array([1, 4]), jnp.array([5, 0])].set(True)
    >>> print(picture(from_array(array), 6))
    0 0 0 0 0 0
    0 0 0 0 0 1
    0 0 0 0 0 0
    0 0 0 0 0 0
    1 0 0 0 0 0
    0 0 0 0 0 0
    """
    return FromArray(_bool_array(array))


@pytree_dataclass
class FromArray(Mask):
    """The mask that `from_array` makes."""

    array: Array = array_field("Npp")

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        array, known, at = self.array[0], True, []
        for size, position in zip(array.shape, (query_position, key_position), strict=True):
            at.append(position if size > 1 else jnp.zeros_like(position))
            known &= _within(position, size) if size > 1 else True
        return _at(array, *at) & known

    def extent(self) -> tuple[int | None, int | None, int | None]:
        return tuple(size if size > 1 else None for size in self.array.shape[-3:])

    def by_index(self, positions: tuple[Array, Array] | None) -> Mask:
        array = self.array
        for axis, at in zip((1, 2), positions or (), strict=False):
            if (size := array.shape[axis]) > 1:
                within = jnp.expand_dims(_within(at, size), (0, 3 - axis))
                array = jnp.take(array, at, axis, mode="clip") & within
        return PairMask(array)


def pair_mask(array: ArrayLike) -> Mask:
    """Allow the pairs where a bool array at [query, key], by index, is True; as `from_array`."""
    return PairMask(_bool_array(array))


@pytree_dataclass
class PairMask(Mask):
    """The mask that `pair_mask` makes."""

    array: Array = array_field("NTS")

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        return self.array[0]

    def extent(self) -> tuple[int | None, int | None, int | None]:
        return tuple(size if size > 1 else None for size in self.array.shape[-3:])

    def tile_bounds(self, query: PositionTiles, key: PositionTiles) -> TileBounds:
        some, every = self.array.any(axis=0), self.array.all(axis=0)
        for axis, (tiles, size) in enumerate((query.positions.shape, key.positions.shape)):
            some, every = (_over_tiles(x, axis, tiles, size) for x in (some, every))
            some, every = some.any(axis=axis + 1), every.all(axis=axis + 1)
        return TileBounds(some, every)


def _over_tiles(array: Array, axis: int, tiles: int, size: int) -> Array:
    """Cut an axis into `[tiles, size]`; the last tile repeats the last entry."""
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, tiles * size - array.shape[axis])
    array = jnp.pad(array, widths, mode="edge")
    return array.reshape(*array.shape[:axis], tiles, size, *array.shape[axis + 1 :])


def from_function(
    function: Callable[..., Array],
    *arrays: ArrayLike,
    tile_bounds: Callable[..., TileBounds] | None = None,
) -> Mask:
    """Allow the pairs for which `function(query_position, key_position, *arrays)` is True.

    Both functions are traced once, here: numbers and arrays that they close over, traced ones too,
    keep the values of now. A function that is defined anew does not compile again if only its
    arrays differ, unless it contains a loop or a derivative rule.

    Args:
        function: takes two int32 numbers and the arrays, returns a bool; made of jax operations. A
            position past the end of an array reads its last entry, as everywhere in jax.
        arrays: its other arguments, without batch axes.
        tile_bounds: lets tiles be skipped without evaluating each pair. `tile_bounds(query, key,
            *arrays)` takes a `PositionRange` of one tile of queries and one of one tile of keys,
            and returns their `TileBounds`, two bools. A mask that needs each position of a tile is
            a subclass of `Mask` with a method `tile_bounds`.

    Raises:
        TypeError: a function that does not take these arguments, or returns anything else.

    >>> print(picture(from_function(lambda query, key: (query - key) % 3 == 0), 6))
    1 0 0 1 0 0
    0 1 0 0 1 0
    0 0 1 0 0 1
    1 0 0 1 0 0
    0 1 0 0 1 0
    0 0 1 0 0 1
    """
    given = tuple(map(jnp.asarray, arrays))
    scalars = dict.fromkeys(("query_position", "key_position"), jnp.int32)
    program, arrays = hoist("mask", function, scalars, given, "bool[]")
    arrays, bounds = (*arrays, *given), None
    if tile_bounds is not None:

        def of_numbers(*numbers: Array) -> TileBounds:
            query, key, rest = numbers[:2], numbers[2:4], numbers[4:]
            return tile_bounds(PositionRange(*query), PositionRange(*key), *rest)

        scalars = dict.fromkeys(("query.low", "query.high", "key.low", "key.high"), jnp.int32)
        bounds, own = hoist("tile_bounds", of_numbers, scalars, given, "bool[], bool[]")
        arrays = *arrays, *own
    return FromFunction(arrays, program, tuple(array.ndim for array in arrays), bounds)


@pytree_dataclass
class FromFunction(Mask):
    """The mask that `from_function` makes.

    Its arrays are the constants of the program, those given, and the constants of the bounds.
    """

    arrays: tuple[Array, ...]
    program: Program = static()
    ranks: tuple[int, ...] = static()
    bounds: Program | None = static()
    compares_positions = True

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        stop = len(self.arrays) - (self.bounds.num_constants if self.bounds else 0)
        arrays = self.arrays[:stop]
        program = jnp.vectorize(lambda *scalars: self.program(arrays, *scalars)[0])
        return program(*(jnp.asarray(x, jnp.int32) for x in (query_position, key_position)))

    def tile_bounds(self, query: PositionTiles, key: PositionTiles) -> TileBounds:
        if self.bounds is None:
            return super().tile_bounds(query, key)
        start, stop = self.program.num_constants, len(self.arrays) - self.bounds.num_constants
        arrays = *self.arrays[stop:], *self.arrays[start:stop]
        program = jnp.vectorize(lambda *scalars: tuple(self.bounds(arrays, *scalars)))
        rows, columns = (x[:, None] for x in query[1:]), (x[None, :] for x in key[1:])
        return TileBounds(*program(*rows, *columns))


@pytree_dataclass
class And(Mask):
    """Allows what both masks allow."""

    left: Mask
    right: Mask

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        return self.left(query_position, key_position) & self.right(query_position, key_position)

    def key_range(self, query_position: Array) -> tuple[Array, Array] | None:
        left, right = self.left.key_range(query_position), self.right.key_range(query_position)
        if left is None or right is None:
            return None
        return jnp.maximum(left[0], right[0]), jnp.minimum(left[1], right[1])

    def band(self) -> tuple[int, int] | None:
        bands = [band for band in (self.left.band(), self.right.band()) if band is not None]
        return tuple(map(min, *bands)) if len(bands) == 2 else next(iter(bands), None)

    def tile_bounds(self, query: PositionTiles, key: PositionTiles) -> TileBounds:
        left, right = self.left.tile_bounds(query, key), self.right.tile_bounds(query, key)
        return TileBounds(left.any & right.any, left.all & right.all)


@pytree_dataclass
class Or(Mask):
    """Allows what either mask allows."""

    left: Mask
    right: Mask

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        return self.left(query_position, key_position) | self.right(query_position, key_position)

    def tile_bounds(self, query: PositionTiles, key: PositionTiles) -> TileBounds:
        left, right = self.left.tile_bounds(query, key), self.right.tile_bounds(query, key)
        return TileBounds(left.any | right.any, left.all | right.all)


@pytree_dataclass
class Not(Mask):
    """Allows what the inner mask forbids."""

    inner: Mask

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        return ~self.inner(query_position, key_position)

    def tile_bounds(self, query: PositionTiles, key: PositionTiles) -> TileBounds:
        bounds = self.inner.tile_bounds(query, key)
        return TileBounds(~bounds.all, ~bounds.any)


def leaves_of(mask: Mask) -> Iterator[Mask]:
    """Yield the masks of an expression that are not composed of other masks."""
    parts = [getattr(mask, part.name) for part in fields(mask)]
    parts = [part for part in parts if isinstance(part, Mask)]
    for part in parts:
        yield from leaves_of(part)
    if not parts:
        yield mask


def has_heads(mask: Mask) -> bool:
    """Return whether the mask of one head may differ from that of another."""
    arrays = arrays_of(mask)
    return any(axes[:1] == "N" and x.shape[x.ndim - len(axes)] > 1 for x, axes in arrays)


@pytree_dataclass
class Positions:
    """Positions of queries and keys."""

    query: Array = array_field("T")
    key: Array = array_field("S")


def to_array(mask: Mask, queries: int | ArrayLike, keys: int | ArrayLike | None = None) -> Array:
    """Return the dense form of a mask: bool `[..., T, S]`, or `[..., N, T, S]` if heads differ.

    Args:
        mask: its batch axes are those of the array.
        queries: T, for positions from 0, or integer positions `[..., T]`.
        keys: S or positions `[..., S]`; the same as the queries by default.

    >>> to_array(causal(), 2, 3).tolist()
    [[True, False, False], [True, True, False]]
    """
    positions = [
        np.arange(given, dtype=np.int32) if isinstance(given, int) else to_int32(name, given, 1)
        for name, given in (("queries", queries), ("keys", queries if keys is None else keys))
    ]
    at = Positions(*positions)

    def example(mask: Mask, at: Positions) -> Array:
        def one_head(mask: Mask) -> Array:
            mask = map_arrays(mask, lambda x, axes: x if x.ndim == len(axes) else x[None])
            pairs = mask(at.query[:, None], at.key[None, :])
            return jnp.broadcast_to(pairs, (at.query.shape[0], at.key.shape[0]))

        if not has_heads(mask):
            return one_head(mask)
        axes = map_arrays(mask, lambda x, axes: 0 if axes[:1] == "N" and x.shape[0] > 1 else None)
        return jax.vmap(one_head, in_axes=(axes,))(mask)

    return over_batch(example, (mask, at), jnp.broadcast_shapes(*batch_shapes((mask, at))))


def picture(mask: Mask, num_queries: int, num_keys: int | None = None) -> str:
    """Return the mask as rows of 0 and 1: queries down, keys across, positions from 0.

    Raises:
        ValueError: the mask has batch axes.
    """
    pairs = jax.jit(to_array, static_argnums=(1, 2))(mask, num_queries, num_keys)
    if pairs.ndim > 2:
        raise ValueError(f"this mask is for a batch of {pairs.shape[:-2]}: picture draws one mask")
    return "\n".join(" ".join(str(int(pair)) for pair in row) for row in pairs.tolist())


def _bool_array(array: ArrayLike) -> Array:
    """Return the array of a mask with at least three axes `[N, T, S]`.

    Raises:
        TypeError: not bool.
        ValueError: fewer than two axes.
    """
    if callable(array):
        raise TypeError(
            "a mask is a masks.Mask or a bool array, got a function: call it if it makes a mask, "
            "as in masks.causal(), or wrap a predicate in masks.from_function"
        )
    if not hasattr(array, "dtype") and not isinstance(array, list | tuple):
        raise TypeError(f"a mask is a masks.Mask or a bool array, got {array!r}")
    array = jnp.asarray(array)
    if array.dtype != bool:
        raise TypeError(
            f"a mask is a masks.Mask or a bool array (True = may attend), got {array.dtype}: pass "
            "score=scores.bias_array(array) to add it to the scores, or mask=array.astype(bool) if "
            "it contains 1 and 0"
        )
    if array.ndim < 2:
        raise ValueError(
            "a mask array has the axes [T, S], or those of the weights, [..., N, T, S], got shape "
            f"{array.shape}"
        )
    return array[None] if array.ndim == 2 else array


def to_int32(name: str, given: ArrayLike, rank: int) -> Array:
    """Return integers as int32; traced int64 numbers outside its range become its bounds.

    Raises:
        TypeError: not integers.
        ValueError: fewer than `rank` axes; known numbers outside int32.
    """
    on_device = any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(given))
    with jax.enable_x64(True):  # otherwise int64 numbers would be cut before they are checked
        # Known numbers are checked by NumPy: each operation of jax compiles a program per shape.
        array = jnp.asarray(given) if on_device else np.asarray(given)
        if not jnp.issubdtype(array.dtype, jnp.integer):
            raise TypeError(f"{name} must be integers, got {array.dtype}")
        if array.ndim < rank:
            raise ValueError(f"{name} needs at least {rank} axis, got shape {array.shape}")
        if array.dtype.itemsize < 4 or array.dtype == jnp.int32:
            return jnp.asarray(array.astype(jnp.int32), jnp.int32)
        clipped = array.clip(max(INT32.min, jnp.iinfo(array.dtype).min), INT32.max)
        if not isinstance(clipped, jax.core.Tracer) and bool((clipped != array).any()):
            outside = int(array[clipped != array][0])
            raise ValueError(
                f"{name} must lie in the range of int32, {INT32.min} to {INT32.max}, got {outside}"
            )
        return jnp.asarray(clipped.astype(jnp.int32), jnp.int32)


def _known(given: ArrayLike) -> np.ndarray | None:
    """Return numbers whose values are known; None if they are traced or on other processes."""
    for leaf in jax.tree.leaves(given):
        is_tracer = isinstance(leaf, jax.core.Tracer)
        if is_tracer or (isinstance(leaf, jax.Array) and not leaf.is_fully_addressable):
            return None
    return np.asarray(given)


def _within(position: ArrayLike, size: int) -> Array:
    return jnp.greater_equal(position, 0) & jnp.less(position, size)


def _at(array: Array, *positions: ArrayLike) -> Array:
    return array.at[positions].get(mode="clip")
