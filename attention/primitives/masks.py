"""Masks: pure predicates on positions that say who may attend to whom.

`mask(query_position, key_position) -> bool`, True = may attend, elementwise over arrays that
broadcast. A mask is a frozen pytree, so it passes through jit, vmap and grad; `&`, `|` and `~`
compose masks exactly. It keeps its structure: the dense array appears late, in `dense_mask.py`.

Arrays inside a mask may have leading batch axes, which makes it one mask for a whole batch:
`causal() & lengths(jnp.array([3, 5]))` serves two examples.

Each picture below has query positions 0 to 5 as rows and key positions 0 to 5 as columns.
"""

from collections.abc import Callable
from operator import index
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from attention.primitives.carrier import array_field, arrays, carrier, static
from attention.primitives.touched import Tiles, Touched


class Mask:
    """A predicate on (query position, key position).

    Subclasses are frozen dataclasses that are pytrees; `from_function` makes one of a function.
    """

    # Whether the two positions are compared with each other, so that it matters where the queries
    # stand among the keys.
    compares_positions: ClassVar[bool] = False

    def __call__(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        """Whether a query at one position may attend to a key at another: bool, elementwise.

        Raises:
            ValueError: a mask for a batch, which has no one answer.
        """
        for array, rank in arrays(self):
            if array.ndim > rank:
                raise ValueError(
                    f"this mask is for a batch of {array.shape[: array.ndim - rank]}: use it in "
                    "attend, or lift the call with jax.vmap"
                )
        return self._allows(query_position, key_position)

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        raise NotImplementedError

    def extent(self) -> tuple[int | None, int | None]:
        """How many query and key positions it describes; None where it describes them all."""
        return None, None

    def touches(self, query: Tiles, key: Tiles) -> Touched:
        """Which tiles it may allow a pair of, and which it allows whole.

        Masks that can tell by the bounds of the positions do; any other is asked about every pair,
        one tile after another.
        """

        def tile(query_tile: Array, key_tile: Array) -> Touched:
            allowed = self(query_tile[:, None], key_tile[None, :])
            return Touched(allowed.any(), allowed.all())

        def row(query_tile: Array) -> Touched:
            return jax.lax.map(lambda key_tile: tile(query_tile, key_tile), key.positions)

        return jax.lax.map(row, query.positions)

    def __and__(self, other: "Mask") -> "Mask":
        """Allows what both allow."""
        return _And(self, _operand(other))

    def __or__(self, other: "Mask") -> "Mask":
        """Allows what either allows."""
        return _Or(self, _operand(other))

    def __invert__(self) -> "Mask":
        """Allows what this one forbids."""
        return _Not(self)

    def __bool__(self) -> bool:
        """Refuses `and`, `or` and `not`, which would lose one of the two masks."""
        raise TypeError("a mask is neither true nor false: compose masks with &, | and ~")


def _operand(other: Mask) -> Mask:
    if not isinstance(other, Mask):
        raise TypeError(
            f"a mask composes with masks, not with {type(other).__name__}: "
            "wrap a bool array in masks.from_array"
        )
    return other


def causal() -> Mask:
    """Keys that are not in the future: key position <= query position.

    >>> print(picture(causal(), 6))
    1 0 0 0 0 0
    1 1 0 0 0 0
    1 1 1 0 0 0
    1 1 1 1 0 0
    1 1 1 1 1 0
    1 1 1 1 1 1
    """
    return _Causal()


@carrier
class _Causal(Mask):
    compares_positions = True

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        return jnp.less_equal(key_position, query_position)

    def touches(self, query: Tiles, key: Tiles) -> Touched:
        some = key.low[None, :] <= query.high[:, None]
        return Touched(some, key.high[None, :] <= query.low[:, None])


def window(before: int, after: int = 0) -> Mask:
    """Keys at most `before` positions before the query and at most `after` positions after it.

    >>> print(picture(window(before=2, after=1), 6))
    1 1 0 0 0 0
    1 1 1 0 0 0
    1 1 1 1 0 0
    0 1 1 1 1 0
    0 0 1 1 1 1
    0 0 0 1 1 1
    """
    before, after = (min(index(reach), 2**31 - 1) for reach in (before, after))
    if before < 0 or after < 0:
        raise ValueError(f"a window reaches 0 or more positions, got {before=} and {after=}")
    return _Window(before, after)


@carrier
class _Window(Mask):
    before: int = static()
    after: int = static()
    compares_positions = True

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        distance = jnp.subtract(query_position, key_position)
        return (distance <= self.before) & (distance >= -self.after)

    def touches(self, query: Tiles, key: Tiles) -> Touched:
        nearest = query.low[:, None] - key.high[None, :]
        farthest = query.high[:, None] - key.low[None, :]
        some = (nearest <= self.before) & (farthest >= -self.after)
        return Touched(some, (farthest <= self.before) & (nearest >= -self.after))


def lengths(lengths: ArrayLike) -> Mask:
    """Keys that are tokens and not padding: key position < length.

    Args:
        lengths: integers `[...]`, the number of keys of each example.

    >>> print(picture(lengths(4), 6))
    1 1 1 1 0 0
    1 1 1 1 0 0
    1 1 1 1 0 0
    1 1 1 1 0 0
    1 1 1 1 0 0
    1 1 1 1 0 0
    """
    return _Lengths(_integers("lengths", lengths, 0))


@carrier
class _Lengths(Mask):
    lengths: Array = array_field(rank=0)

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        query_position, key_position = jnp.broadcast_arrays(query_position, key_position)
        return key_position < self.lengths

    def touches(self, query: Tiles, key: Tiles) -> Touched:
        some, every = key.low < self.lengths, key.high < self.lengths
        shape = query.low.shape[0], key.low.shape[0]
        some, every = (jnp.broadcast_to(x[None, :], shape) for x in (some, every))
        return Touched(some, every)


def segments(query_segments: ArrayLike, key_segments: ArrayLike | None = None) -> Mask:
    """Keys of the query's own segment, for several sequences packed into one row.

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
    query_segments = _integers("query_segments", query_segments, 1)
    if key_segments is None:
        return _Segments(query_segments, query_segments)
    return _Segments(query_segments, _integers("key_segments", key_segments, 1))


@carrier
class _Segments(Mask):
    query_segments: Array = array_field(rank=1)
    key_segments: Array = array_field(rank=1)

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        same = _at(self.query_segments, query_position) == _at(self.key_segments, key_position)
        known = _within(query_position, self.query_segments.shape[-1])
        return same & known & _within(key_position, self.key_segments.shape[-1])

    def touches(self, query: Tiles, key: Tiles) -> Touched:
        num_queries, num_keys = self.extent()
        ours = Tiles.of(_at(self.query_segments, query.positions))
        theirs = Tiles.of(_at(self.key_segments, key.positions))
        low = jnp.maximum(ours.low[:, None], theirs.low[None, :])
        high = jnp.minimum(ours.high[:, None], theirs.high[None, :])
        # One segment on both sides: the larger of the two ranges is a single number.
        widest = jnp.minimum(ours.low[:, None], theirs.low[None, :])
        one = widest == jnp.maximum(ours.high[:, None], theirs.high[None, :])
        rows = _within(query.low, num_queries) & _within(query.high, num_queries)
        columns = _within(key.low, num_keys) & _within(key.high, num_keys)
        return Touched(low <= high, one & rows[:, None] & columns[None, :])

    def extent(self) -> tuple[int, int]:
        return self.query_segments.shape[-1], self.key_segments.shape[-1]


def prefix(length: ArrayLike) -> Mask:
    """A prefix that all may see, and causal after it (the prefix LM of Raffel et al. 2020).

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
    return lengths(length) | causal()


def block(size: int) -> Mask:
    """Keys of the query's own block of `size` positions.

    `block(size) | causal()` is causal over blocks: blind to what follows the block, not inside it.

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
    return _Block(size)


@carrier
class _Block(Mask):
    size: int = static()
    compares_positions = True

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        query_block = jnp.floor_divide(query_position, self.size)
        return query_block == jnp.floor_divide(key_position, self.size)

    def touches(self, query: Tiles, key: Tiles) -> Touched:
        first, last = (jnp.floor_divide(x, self.size)[:, None] for x in (query.low, query.high))
        start, end = (jnp.floor_divide(x, self.size)[None, :] for x in (key.low, key.high))
        one = (first == last) & (start == end) & (first == start)
        return Touched((start <= last) & (first <= end), one)


def from_array(array: ArrayLike) -> Mask:
    """The pairs that a bool array says, at [query position, key position]; none outside it.

    Args:
        array: bool `[..., T, S]`.

    >>> array = jnp.zeros((6, 6), bool).at[jnp.array([1, 4]), jnp.array([5, 0])].set(True)
    >>> print(picture(from_array(array), 6))
    0 0 0 0 0 0
    0 0 0 0 0 1
    0 0 0 0 0 0
    0 0 0 0 0 0
    1 0 0 0 0 0
    0 0 0 0 0 0
    """
    return _FromArray(checked_array(array))


@carrier
class _FromArray(Mask):
    array: Array = array_field(rank=2)

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        num_queries, num_keys = self.extent()
        known = _within(query_position, num_queries) & _within(key_position, num_keys)
        return _at(self.array, query_position, key_position) & known

    def extent(self) -> tuple[int, int]:
        return self.array.shape[-2], self.array.shape[-1]


def from_function(
    function: Callable[[Array, Array], Array],
    touches: Callable[[Tiles, Tiles], Touched] | None = None,
) -> Mask:
    """The pairs for which a function of (query position, key position) is true.

    Args:
        function: elementwise and hashable; jit compiles anew for each function it meets, so define
            it once.
        touches: tells which tiles the function may allow a pair of, from the bounds of their
            positions, as `Mask.touches` does. Without it the function is asked about every pair
            once before a long sequence is attended to.

    >>> print(picture(from_function(lambda query, key: (query - key) % 3 == 0), 6))
    1 0 0 1 0 0
    0 1 0 0 1 0
    0 0 1 0 0 1
    1 0 0 1 0 0
    0 1 0 0 1 0
    0 0 1 0 0 1
    """
    if not callable(function):
        raise TypeError(f"a mask function must be callable, got {type(function).__name__}")
    return _FromFunction(function, touches)


@carrier
class _FromFunction(Mask):
    function: Callable[[Array, Array], Array] = static()
    hint: Callable[[Tiles, Tiles], Touched] | None = static()
    compares_positions = True  # for all we know

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        query_position, key_position = jnp.broadcast_arrays(query_position, key_position)
        allowed = jnp.asarray(self.function(query_position, key_position))
        if allowed.dtype != bool:
            raise TypeError(f"a mask function must return bool, got {allowed.dtype}")
        return allowed

    def touches(self, query: Tiles, key: Tiles) -> Touched:
        return super().touches(query, key) if self.hint is None else self.hint(query, key)


@carrier
class _And(Mask):
    left: Mask
    right: Mask

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        return self.left(query_position, key_position) & self.right(query_position, key_position)

    def touches(self, query: Tiles, key: Tiles) -> Touched:
        left, right = self.left.touches(query, key), self.right.touches(query, key)
        return Touched(left.some & right.some, left.every & right.every)


@carrier
class _Or(Mask):
    left: Mask
    right: Mask

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        return self.left(query_position, key_position) | self.right(query_position, key_position)

    def touches(self, query: Tiles, key: Tiles) -> Touched:
        left, right = self.left.touches(query, key), self.right.touches(query, key)
        return Touched(left.some | right.some, left.every | right.every)


@carrier
class _Not(Mask):
    inner: Mask

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        return ~self.inner(query_position, key_position)

    def touches(self, query: Tiles, key: Tiles) -> Touched:
        some, every = self.inner.touches(query, key)
        return Touched(~every, ~some)


def picture(mask: Mask, num_queries: int, num_keys: int | None = None) -> str:
    """The mask as rows of 0 and 1, queries down and keys across, from position 0."""
    num_keys = num_queries if num_keys is None else num_keys
    rows, columns = (jnp.arange(size, dtype=jnp.int32) for size in (num_queries, num_keys))
    pairs = mask(rows[:, None], columns[None, :])
    return "\n".join(" ".join(str(int(pair)) for pair in row) for row in pairs.tolist())


def checked_array(array: ArrayLike) -> Array:
    """A bool array of at least two axes, or a sentence about what was given instead.

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
            f"a mask is a masks.Mask or a bool array (True = may attend), got {array.dtype}: if it "
            "holds 0 where attention is allowed and a large negative number elsewhere, pass "
            "mask=array == 0; if it holds 1 and 0, pass mask=array.astype(bool)"
        )
    if array.ndim < 2:
        raise ValueError(f"a mask array has the axes [..., T, S], got shape {array.shape}")
    return array


def _integers(name: str, given: ArrayLike, rank: int) -> Array:
    array = jnp.asarray(given)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"{name} must be integers, got {array.dtype}")
    if array.ndim < rank:
        raise ValueError(f"{name} needs at least {rank} axis, got shape {array.shape}")
    return array.astype(jnp.int32)


def _within(position: ArrayLike, size: int) -> Array:
    return jnp.greater_equal(position, 0) & jnp.less(position, size)


def _at(array: Array, *positions: ArrayLike) -> Array:
    return array.at[positions].get(mode="clip")
