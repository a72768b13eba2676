"""Masks: pure predicates on positions that decide which keys each query attends to.

`mask(query_position, key_position) -> bool`, True = may attend, elementwise over arrays that
broadcast. A mask is a frozen pytree, so it passes through jit, vmap and grad; `&`, `|` and `~`
compose masks exactly. It keeps its structure: a dense array is made late, for one tile.

Arrays inside a mask may have leading batch axes, which makes it one mask for a whole batch:
`causal() & lengths(jnp.array([3, 5]))` serves two examples. To make a batch of masks of a
function, map its construction: `jax.vmap(lambda ids: from_function(f, ids))(batch_of_ids)`.

Each picture below has query positions 0 to 3 as rows and key positions 0 to 3 as columns.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from operator import index
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from attention.primitives.functions import Closure, hoist
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


class PositionRange(NamedTuple):
    """The lowest and the highest position of a tile of queries or keys, int32."""

    low: Array
    high: Array


class TileBounds(NamedTuple):
    """Conservative bounds per pair of tiles, bool `[query tiles, key tiles]`, or of one pair.

    `any` False = fully masked; `all` True = fully visible.
    """

    any: Array
    all: Array


class Mask:
    """A predicate on (query position, key position).

    Subclasses are frozen dataclasses that are pytrees; `from_function` makes one of a function. A
    subclass defines `_allows` or `key_range`, and may define `tile_bounds`. It declares an array
    with an axis of heads by an N, `array_field("N")`; that axis is of size 1 where it is called.
    """

    # Whether the two positions are compared, so that the result depends on where the queries are
    # among the keys.
    compares_positions: ClassVar[bool] = False

    # NumPy then leaves `array & mask` to the mask.
    __array_ufunc__ = None

    def __call__(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        """Return whether a query at one position may attend to a key at another: bool, elementwise.

        Raises:
            ValueError: the mask has batch axes, or its heads differ.
        """
        if any(batch := batch_shapes(self)):
            raise ValueError(f"this mask is for a batch of {max(batch)}: use attend or jax.vmap")
        if has_heads(self):
            raise ValueError("the heads of this mask differ: use attend or masks.to_array")
        return self._allows(query_position, key_position)

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        """Return whether the key is in `key_range`; other masks override this."""
        start, stop = self.key_range(jnp.asarray(query_position, jnp.int32))
        return (key_position >= start) & (key_position < stop)

    def key_range(self, query_position: Array) -> tuple[Array, Array] | None:
        """Return the visible keys of each query as an interval `[start, stop)` of positions.

        None if they may not be one. Neither bound may decrease as the query position grows.
        Positions that are known may be a NumPy array.
        """

    def band(self) -> tuple[int, int] | None:
        """Return (before, after) if no key further from the query is visible; None if unknown.

        For every query `key_range` lies between `before` positions before it and `after` positions
        after it. One query may have fewer keys: `block(size)` has the band (size - 1, size - 1).
        """
        return None

    def by_index(self, positions: tuple[Array, Array] | None) -> "Mask":
        """Return a mask that is no expression with arrays of pairs indexed by query and key.

        Args:
            positions: of the queries `[T]` and keys `[S]`; None if both count from 0.
        """
        return self

    def tile_bounds(self, query: Array, key: Array) -> TileBounds:
        """Return which tiles may contain a visible pair, and which contain only visible pairs.

        Query and key are the int32 positions of tiles `[tiles, size]`. The bounds are computed from
        `key_range` where it is known. Masks that can derive them otherwise override this; for any
        other, each pair is evaluated, one tile after another.
        """
        if has_heads(self):
            every = jnp.ones((len(query), len(key)), bool)
            return TileBounds(every, ~every)
        rows, columns = _ranges(query, key)
        if (ranges := self.key_range(rows.low)) is not None:
            (start, least_stop), (most_start, stop) = ranges, self.key_range(rows.high)
            return TileBounds(
                (columns.high >= start) & (columns.low < stop),
                (columns.low >= most_start) & (columns.high < least_stop),
            )

        def of_tile(query_tile: Array, key_tile: Array) -> TileBounds:
            allowed = self(query_tile[:, None], key_tile[None, :])
            return TileBounds(allowed.any(), allowed.all())

        return jax.lax.map(lambda row: jax.lax.map(lambda tile: of_tile(row, tile), key), query)

    def __and__(self, other: "Mask | ArrayLike") -> "Mask":
        """Return the mask that allows what both allow; a bool array has the axes of `attend`.

        Raises:
            ValueError: `cu_seqlens` of other keys than queries, and a mask that compares positions.
        """
        return And(self, _comparable(self, as_mask(other)))

    def __or__(self, other: "Mask | ArrayLike") -> "Mask":
        """Return the mask that allows what either allows; arrays and errors as for `&`."""
        return ~(~self & ~as_mask(other))

    __rand__, __ror__ = __and__, __or__

    def __invert__(self) -> "Mask":
        """Return the mask that allows what this one forbids."""
        return Not(self)

    def __bool__(self) -> bool:
        """Refuse `and`, `or` and `not`, which would lose one of the two masks."""
        raise TypeError("a mask is neither true nor false: compose masks with &, | and ~")


def as_mask(mask: Mask | ArrayLike) -> Mask:
    """Return a mask as it is; a bool array, as a mask that `attend` indexes by query and key."""
    return mask if isinstance(mask, Mask) else FromArray(_bool_array(mask), by_position=False)


def _comparable(mask: Mask, other: Mask) -> Mask:
    """Return the other mask if both may be composed."""
    leaves = [*leaves_of(mask), *leaves_of(other)]
    compares = any(leaf.compares_positions for leaf in leaves)
    if compares and any(isinstance(leaf, CuSeqlens) and leaf.own_keys for leaf in leaves):
        raise ValueError(
            "cu_seqlens with key_offsets gives a sequence other positions among the keys than "
            "among the queries, so no mask can compare them: pass causal=True to cu_seqlens, "
            "or no key_offsets if both are the same"
        )
    return other


def _inner_masks(mask: Mask) -> dict[str, Mask]:
    """Return the masks that a mask is composed of, by the names of its fields."""
    parts = {part.name: getattr(mask, part.name) for part in fields(mask)}
    return {name: part for name, part in parts.items() if isinstance(part, Mask)}


def leaves_of(mask: Mask) -> list[Mask]:
    """Return the masks of an expression that are not composed of other masks."""
    return [leaf for part in _inner_masks(mask).values() for leaf in leaves_of(part)] or [mask]


def map_leaves(mask: Mask, function: Callable[[Mask], Mask]) -> Mask:
    """Return the expression with `function(leaf)` in place of each of `leaves_of(mask)`."""
    inner = {name: map_leaves(part, function) for name, part in _inner_masks(mask).items()}
    return replace(mask, **inner) if inner else function(mask)


def _ranges(query: Array, key: Array) -> tuple[PositionRange, PositionRange]:
    """Return the ranges of tiles of queries `[query tiles, 1]` and of keys `[1, key tiles]`."""
    return tuple(PositionRange(x.min(axis=-1), x.max(axis=-1)) for x in (query[:, None], key[None]))


def full() -> Mask:
    """Allow every pair. Position 2³¹ - 1, that of empty slots of a cache, is no key.

    >>> print(picture(full(), 4))
    1 1 1 1
    1 1 1 1
    1 1 1 1
    1 1 1 1
    """
    return Window(None, None)


def causal() -> Mask:
    """Allow keys that are not in the future: key position <= query position.

    >>> print(picture(causal(), 4))
    1 0 0 0
    1 1 0 0
    1 1 1 0
    1 1 1 1
    """
    return Window(None, 0)


def window(before: int | None, after: int | None = 0) -> Mask:
    """Allow keys at most `before` positions before the query and `after` positions after it.

    None = any number of positions: `window(None, 0)` is causal.

    >>> print(picture(window(before=2, after=1), 4))
    1 1 0 0
    1 1 1 0
    1 1 1 1
    0 1 1 1
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
        allowed = jnp.less(key_position, stop)  # one comparison less than the general method
        return allowed if self.before is None else allowed & (start <= key_position)

    def key_range(self, query_position: Array) -> tuple[Array, Array]:
        start, stop = (0 * query_position + end for end in (INT32.min, INT32.max))
        if self.before is not None:
            reach = min(self.before, INT32.max)
            start = query_position.clip(min=INT32.min + reach) - reach
        if self.after is not None:
            reach = min(self.after, INT32.max - 1) + 1
            stop = query_position.clip(max=INT32.max - reach) + reach
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

    >>> print(picture(lengths(3), 4))
    1 1 1 0
    1 1 1 0
    1 1 1 0
    1 1 1 0
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

    def key_range(self, query_position: Array) -> tuple[Array, Array]:
        # All keys, or an empty interval: before all keys or after them.
        start = jnp.where(query_position < self.lengths, INT32.min, INT32.max)
        return start, jnp.where(query_position < 0, INT32.min, INT32.max)


def segments(query_segments: ArrayLike, key_segments: ArrayLike | None = None) -> Mask:
    """Allow keys of the query's segment, for several sequences packed into one row.

    Args:
        query_segments: integers `[..., T]`, the segment of each query position.
        key_segments: integers `[..., S]`; the same as the queries' by default.

    >>> print(picture(segments([7, 7, 8, 9]), 4))
    1 1 0 0
    1 1 0 0
    0 0 1 0
    0 0 0 1
    """
    query_segments = to_int32("query_segments", query_segments, 1)
    if key_segments is None:
        return Segments(query_segments, query_segments)
    return Segments(query_segments, to_int32("key_segments", key_segments, 1))


@pytree_dataclass
class Segments(Mask):
    """The mask that `segments` makes."""

    query_segments: Array = array_field("t")
    key_segments: Array = array_field("s")

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        same = _at(self.query_segments, query_position) == _at(self.key_segments, key_position)
        known = _within(query_position, self.query_segments.shape[-1])
        return same & known & _within(key_position, self.key_segments.shape[-1])

    def tile_bounds(self, query: Array, key: Array) -> TileBounds:
        rows, columns = _ranges(query, key)
        ours, theirs = _ranges(_at(self.query_segments, query), _at(self.key_segments, key))
        overlap = jnp.maximum(ours.low, theirs.low) <= jnp.minimum(ours.high, theirs.high)
        same = jnp.minimum(ours.low, theirs.low) == jnp.maximum(ours.high, theirs.high)
        known = (rows.low >= 0) & (rows.high < self.query_segments.shape[-1])
        known &= (columns.low >= 0) & (columns.high < self.key_segments.shape[-1])
        return TileBounds(overlap, same & known)


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
        ValueError: different numbers of offsets; known ones that decrease or do not begin with 0.

    >>> print(picture(cu_seqlens([0, 2, 3, 4]), 4))
    1 1 0 0
    1 1 0 0
    0 0 1 0
    0 0 0 1
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
    if known is not None and (known[..., 0].any() or (known[..., 1:] < known[..., :-1]).any()):
        raise ValueError(f"{name} are cumulative: 0 first and never decreasing, got {known}")
    return offsets


@pytree_dataclass
class CuSeqlens(Mask):
    """The mask that `cu_seqlens` makes."""

    query_offsets: Array = array_field("p")
    key_offsets: Array = array_field("p")
    causal: bool = static()
    own_keys: bool = static()

    @property
    def compares_positions(self) -> bool:
        return not self.own_keys

    def key_range(self, query_position: Array) -> tuple[Array, Array]:
        sequence = jnp.searchsorted(self.query_offsets, query_position, side="right")
        start, stop = _at(self.key_offsets, sequence - 1), _at(self.key_offsets, sequence)
        if self.causal:
            after = _at(self.query_offsets, sequence) - query_position
            stop = jnp.clip(stop - after + 1, start, stop)
        return start, stop


def prefix(length: ArrayLike) -> Mask:
    """Allow a prefix to every query, and causal keys after it (prefix LM, Raffel et al. 2020).

    Args:
        length: integers `[...]`, the length of the prefix of each example.

    >>> print(picture(prefix(2), 4))
    1 1 0 0
    1 1 0 0
    1 1 1 0
    1 1 1 1
    """
    return Lengths(_checked_lengths("length", length)) | causal()


def block(size: int) -> Mask:
    """Allow keys of the query's block of `size` positions.

    `block(size) | causal()` is causal over blocks and full inside each block.

    >>> print(picture(block(2), 4))
    1 1 0 0
    1 1 0 0
    0 0 1 1
    0 0 1 1
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

    >>> array = jnp.zeros((4, 4), bool).at[jnp.array([1, 2]), jnp.array([3, 0])].set(True)
    >>> print(picture(from_array(array), 4))
    0 0 0 0
    0 0 0 1
    1 0 0 0
    0 0 0 0
    """
    return FromArray(_bool_array(array), by_position=True)


@pytree_dataclass
class FromArray(Mask):
    """The mask that `from_array` makes, and of an array that is indexed by query and key."""

    array: Array = array_field("Nts")
    by_position: bool = static()

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        array = self.array[0]
        sizes = zip((query_position, key_position), array.shape, strict=True)
        return _entries(array, *(x if size > 1 else jnp.zeros_like(x) for x, size in sizes))

    def by_index(self, positions: tuple[Array, Array] | None) -> "PairMask":
        array = self.array
        for axis, at in zip((1, 2), positions or (), strict=False):
            if array.shape[axis] > 1:
                array = _entries(array, *[slice(None)] * axis, at)
        return PairMask(array)


def _entries(array: Array, *at: ArrayLike | slice) -> Array:
    """Return the entries of a bool array at these positions; False outside of it."""
    return array.at[at].get(mode="fill", fill_value=False, wrap_negative_indices=False)


@pytree_dataclass
class PairMask(Mask):
    """Allows the pairs where a bool array at [query, key], by index, is True."""

    array: Array = array_field("NTS")

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        return self.array[0]

    def tile_bounds(self, query: Array, key: Array) -> TileBounds:
        (rows, height), (columns, width) = query.shape, key.shape
        _, num_queries, num_keys = self.array.shape
        missing = (0, rows * height - num_queries), (0, columns * width - num_keys)

        def tiles(pairs: Array) -> Array:  # the last ones repeat the last entry
            return jnp.pad(pairs, missing, mode="edge").reshape(rows, height, columns, width)

        some, every = tiles(self.array.any(axis=0)), tiles(self.array.all(axis=0))
        return TileBounds(some.any(axis=(1, 3)), every.all(axis=(1, 3)))


def from_function(
    function: Callable[..., Array],
    *arrays: ArrayLike,
    tile_bounds: Callable[..., TileBounds] | None = None,
) -> Mask:
    """Allow the pairs for which `function(query_position, key_position, *arrays)` is True.

    Both functions are traced once, here: numbers and arrays that they close over, traced ones too,
    keep the values of now. A function that is defined anew does not compile again if only its
    arrays differ, unless it contains a loop or a derivative rule; such a function that closes over
    no arrays is called again inside of an Explicit mesh.

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

    >>> print(picture(from_function(lambda query, key: (query - key) % 3 == 0), 4))
    1 0 0 1
    0 1 0 0
    0 0 1 0
    1 0 0 1
    """
    arrays = tuple(map(jnp.asarray, arrays))
    scalars = dict.fromkeys(("query_position", "key_position"), jnp.int32)
    predicate = hoist("mask", function, scalars, arrays, "bool[]")
    if tile_bounds is None:
        return FromFunction(predicate, None)

    def of_numbers(*numbers: Array) -> TileBounds:
        query, key, rest = numbers[:2], numbers[2:4], numbers[4:]
        return tile_bounds(PositionRange(*query), PositionRange(*key), *rest)

    scalars = dict.fromkeys(("query.low", "query.high", "key.low", "key.high"), jnp.int32)
    bounds = hoist("tile_bounds", of_numbers, scalars, arrays, "bool[], bool[]")
    return FromFunction(predicate, bounds)


@pytree_dataclass
class FromFunction(Mask):
    """The mask that `from_function` makes."""

    predicate: Closure
    bounds: Closure | None
    compares_positions = True

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        positions = (jnp.asarray(x, jnp.int32) for x in (query_position, key_position))
        return self.predicate(*positions)[0]

    def tile_bounds(self, query: Array, key: Array) -> TileBounds:
        if self.bounds is None:
            return super().tile_bounds(query, key)
        rows, columns = _ranges(query, key)
        return TileBounds(*self.bounds(*rows, *columns))


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

    def tile_bounds(self, query: Array, key: Array) -> TileBounds:
        left, right = self.left.tile_bounds(query, key), self.right.tile_bounds(query, key)
        return TileBounds(left.any & right.any, left.all & right.all)


@pytree_dataclass
class Not(Mask):
    """Allows what the inner mask forbids."""

    inner: Mask

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        return ~self.inner(query_position, key_position)

    def tile_bounds(self, query: Array, key: Array) -> TileBounds:
        bounds = self.inner.tile_bounds(query, key)
        return TileBounds(~bounds.all, ~bounds.any)


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
    given = queries, queries if keys is None else keys
    queries, keys = (np.arange(x, dtype=np.int32) if isinstance(x, int) else x for x in given)
    trees = mask, Positions(to_int32("queries", queries, 1), to_int32("keys", keys, 1))

    def example(mask: Mask, at: Positions) -> Array:
        def one_head(mask: Mask) -> Array:
            mask = map_arrays(mask, lambda x, axes: x if x.ndim == len(axes) else x[None])
            pairs = mask(at.query[:, None], at.key[None, :])
            return jnp.broadcast_to(pairs, (at.query.shape[0], at.key.shape[0]))

        if not has_heads(mask):
            return one_head(mask)
        axes = map_arrays(mask, lambda x, axes: 0 if axes[:1] == "N" and x.shape[0] > 1 else None)
        return jax.vmap(one_head, in_axes=(axes,))(mask)

    return over_batch(example, trees, jnp.broadcast_shapes(*batch_shapes(trees)))


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
    """Check the array of a mask, and return it with at least three axes `[N, T, S]`."""
    if callable(array) or not (hasattr(array, "dtype") or isinstance(array, list | tuple)):
        raise TypeError(
            f"a mask is a masks.Mask or a bool array, got {array!r}: call it if it makes a mask, "
            "as in masks.causal(), or wrap a predicate in masks.from_function"
        )
    if isinstance(array, list | tuple) and any(isinstance(part, Mask) for part in array):
        raise TypeError("a mask is a masks.Mask or a bool array: compose several masks with & or |")
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
    """Return integers with `rank` or more axes as int32; traced ones outside it are clipped."""
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
    arrays = [leaf for leaf in jax.tree.leaves(given) if isinstance(leaf, jax.Array)]
    if any(isinstance(x, jax.core.Tracer) or not x.is_fully_addressable for x in arrays):
        return None
    return np.asarray(given)


def _within(position: ArrayLike, size: int) -> Array:
    return jnp.greater_equal(position, 0) & jnp.less(position, size)


def _at(array: Array, position: ArrayLike) -> Array:
    """Return the entries at these positions; outside of the array, the nearest entry."""
    return array.at[position].get(mode="clip", wrap_negative_indices=False)
