"""Key/value cache for decoding, with a separate length for each row of the batch.

A cache is a frozen pytree: `extend` takes one and returns a new one. The batch axes come first, so
`jax.tree.map` can select or repeat rows. The position of a key follows from its slot, so the same
masks on positions serve prefill, decoding and training.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from attention.primitives import masks
from attention.primitives.masks import Mask, to_int32
from attention.primitives.numerics import replace_nonfinite_keys
from attention.primitives.pytree_dataclass import array_field, pytree_dataclass, static

EMPTY_SLOT = 2**31 - 1  # the position of an empty slot, larger than that of any token
CHUNK = 8  # slots that `gather_rows` reorders at a time on a CPU


class CacheView(NamedTuple):
    """Keys and values for the queries of the tokens that were written last.

    Pass it to `attention.attend` in place of the key. The keys and values contain 0 in place of NaN
    and infinities, which are searched for once, when they are written.

    Attributes:
        key: `[..., S, K, H]`.
        value: `[..., S, K, Hv]`.
        mask: masks empty slots; for a ring, also the keys that are no longer in its window. None
            if every slot is full.
        positions: int32, of the queries `[..., T]` and of the keys `[..., S]`; None if both are
            counted from 0.
        nonfinite_keys: bool `[..., S, K]`, True where 0 replaces non-finite numbers; for a row that
            was written past its end, True everywhere.
    """

    key: Array
    value: Array
    mask: Mask | None
    positions: tuple[Array, Array] | None
    nonfinite_keys: Array


@pytree_dataclass
class Cache:
    """Keys and values in S slots, and the number of tokens that each row has read.

    Position p is stored in slot p. In a ring of S slots it is stored in slot p % S, where it
    replaces position p - S; attention through a ring equals attention with
    `mask & masks.window(S - 1, None)`.

    Writing past the end raises an error if the lengths are known. If they are traced, all keys of a
    row that is longer than S become non-finite, so `attend` returns NaN for each of its queries
    that may attend to a key: to its own position or, in general, to any of the newest S/2.

    A key can be attended to after it was written. A mask that allows future keys, such as
    `masks.prefix`, gives the result of a full pass only if all keys that a query may attend to are
    written together with it or before it.

    Slots are stored head by head, in the order in which the products read them; any other order
    would make each decoding step copy the whole cache. Keys and values are checked for non-finite
    numbers once, when they are written.

    Prefill four tokens, then decode one token at a time:

    >>> from attention import attend, empty_cache, masks
    >>> query, key, value = jax.random.normal(jax.random.key(0), (3, 1, 6, 2, 8))  # B 1, T 6, N 2
    >>> cache, outputs = empty_cache((1,), 6, num_kv_heads=2, head_width=8), []
    >>> for tokens in (slice(0, 4), slice(4, 5), slice(5, 6)):
    ...     cache, view = cache.extend(key[:, tokens], value[:, tokens])
    ...     outputs.append(attend(query[:, tokens], view, mask=masks.causal()))
    >>> full_pass = attend(query, key, value, mask=masks.causal())
    >>> bool(jnp.allclose(jnp.concatenate(outputs, axis=1), full_pass, atol=1e-5))
    True

    Attributes:
        key_slots: `[..., K, S, H]`.
        value_slots: `[..., K, S, Hv]`.
        nonfinite_slots: bool `[..., K, S]`, True where a key or its value was not finite.
        lengths: int32 `[...]`, number of tokens read.
        ring: whether a full row continues in its first slot.
    """

    key_slots: Array = array_field("KSh")
    value_slots: Array = array_field("KSh")
    nonfinite_slots: Array = array_field("KS")
    lengths: Array = array_field("")
    ring: bool = static(default=False)

    @property
    def key(self) -> Array:
        """`[..., S, K, H]`, with 0 in place of non-finite numbers."""
        return _swap_axes(self.key_slots)

    @property
    def value(self) -> Array:
        """`[..., S, K, Hv]`."""
        return _swap_axes(self.value_slots)

    @property
    def nonfinite_keys(self) -> Array:
        """Bool `[..., S, K]`, True where 0 replaces non-finite numbers; all True past the end."""
        flags = jnp.swapaxes(self.nonfinite_slots, -2, -1)
        return flags if self.ring else flags | self._overflowed[..., None, None]

    def view(self, positions: tuple[Array, Array] | None = None) -> CacheView:
        """Return all slots of a full cache, for cross-attention.

        Args:
            positions: of the queries `[..., T]` and of the keys `[..., S]`.
        """
        return CacheView(self.key, self.value, None, positions, self.nonfinite_keys)

    @property
    def size(self) -> int:
        """S."""
        return self.key_slots.shape[-2]

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return sum(
            array.size * array.dtype.itemsize for array in (self.key_slots, self.value_slots)
        )

    @property
    def positions(self) -> Array:
        """Position of the key of each slot: int32 `[S]`, and `[..., S]` for a ring."""
        slots = jnp.arange(self.size, dtype=jnp.int32)
        if not self.ring:
            return slots
        distance = jnp.subtract.outer(self.lengths - 1, slots) % self.size  # to the newest key
        newest = self.lengths[..., None] - 1 - distance
        return jnp.where(newest < 0, EMPTY_SLOT, newest)

    def next_positions(self, num_tokens: int) -> Array:
        """Return the positions of the next T tokens of each row: int32 `[..., T]`."""
        return jnp.add.outer(self.lengths, jnp.arange(num_tokens, dtype=jnp.int32))

    def check_capacity(self, num_tokens: int, lengths: ArrayLike | None = None) -> None:
        """Check that T more tokens fit, as far as the lengths are known.

        Args:
            num_tokens: T.
            lengths: integers `[...]`, number of valid tokens per row; T by default.

        Raises:
            TypeError: `lengths` that are not integers.
            ValueError: too many tokens, or `lengths` outside [0, T].
        """
        if lengths is not None:
            check_lengths(lengths, num_tokens)
        longest = num_tokens if lengths is None else 0
        if _is_known(self.lengths) and _is_known(lengths):
            with jax.ensure_compile_time_eval():  # inside jit, constants are known
                longest = int(jnp.max(self.advance(num_tokens, lengths).lengths, initial=0))
        if longest > self.size and not self.ring:
            raise ValueError(
                f"a cache of {self.size} slots cannot hold {longest} tokens: make it larger or "
                "pass ring=True"
            )

    def extend(
        self, key: Array, value: Array, lengths: ArrayLike | None = None
    ) -> tuple["Cache", CacheView]:
        """Write the next T tokens of each row.

        Args:
            key: `[..., T, K, H]`.
            value: `[..., T, K, Hv]`.
            lengths: integers `[...]`, number of valid tokens per row, followed by padding; T by
                default.

        Returns:
            The new cache, and the keys and values that the T queries attend to.

        Raises:
            TypeError, ValueError: as `check_capacity`, and for keys or values of another shape.
        """
        num_tokens = key.shape[-3]
        for name, slots, given in (
            ("keys", self.key_slots, key),
            ("values", self.value_slots, value),
        ):
            *batch, num_heads, _, width = slots.shape
            expected = (*batch, num_tokens, num_heads, width)
            if given.shape != expected:
                raise ValueError(f"this cache needs {name} of shape {expected}, got {given.shape}")
        self.check_capacity(num_tokens, lengths)
        key, value = key.astype(self.key_slots.dtype), value.astype(self.value_slots.dtype)
        new = replace_nonfinite_keys(key, value)
        positions = self.next_positions(num_tokens)
        after = self.advance(num_tokens, lengths)
        stored = positions < after.lengths[..., None]
        if self.ring:
            stored &= positions >= after.lengths[..., None] - self.size
            slots = jnp.where(stored, positions % self.size, self.size)
        else:
            slots = jnp.where(stored, positions, self.size)  # a slot out of range is not written
        after = after._write(slots, *new)
        if self.ring or num_tokens > self.size:
            return after, self._view_before(after, positions, *new)
        return after, self._view_after(after, positions)

    def advance(self, num_tokens: int, lengths: ArrayLike | None = None) -> "Cache":
        """Return the cache with T more tokens in each row, or `lengths` more, and the same slots.

        Args:
            num_tokens: T.
            lengths: integers `[...]`; T by default.
        """
        more = to_int32("lengths", num_tokens if lengths is None else lengths, 0)
        return replace(self, lengths=self.lengths + jnp.broadcast_to(more, self.lengths.shape))

    def gather_rows(self, gather: Callable[[Array], Array]) -> "Cache":
        """Reorder rows, for beam search.

        On a CPU the slots are reordered in place, `CHUNK` slots at a time, and only as many as the
        longest row uses. Other platforms gather whole arrays, since each step of a loop costs them
        more than the copy.

        Args:
            gather: maps an array `[..., *]` with the batch axes in front to one of the same shape
                with other rows.
        """
        return jax.lax.platform_dependent(
            self,
            cpu=lambda cache: cache._gather_in_place(gather),
            default=lambda cache: jax.tree.map(gather, cache),
        )

    @property
    def _positions_by_row(self) -> Array:
        """`positions` with batch axes, sharded like the lengths: int32 `[..., S]`."""
        positions = self.positions
        return positions if self.ring else jnp.add.outer(jnp.zeros_like(self.lengths), positions)

    @property
    def _overflowed(self) -> Array:
        """Whether tokens were written past the end: bool `[...]`."""
        return self.lengths > self.size

    @property
    def _slots(self) -> tuple[Array, Array, Array]:
        return self.key_slots, self.value_slots, self.nonfinite_slots

    def _view_after(self, after: "Cache", positions: Array) -> CacheView:
        """Return the slots of the cache after the last T <= S tokens, for their queries.

        A row past its end has non-finite keys only. The first half of its spare slots keeps its
        positions; the others get the newest positions, those of all T queries included, so that a
        query which could attend to any near or early key attends to one of them.
        """
        num_tokens = positions.shape[-1]
        end, overflowed = self.lengths + num_tokens, after._overflowed
        slots = self._positions_by_row
        moved = overflowed[..., None] & (slots >= (self.size - num_tokens) // 2)
        return CacheView(
            after.key,
            after.value,
            masks.lengths(jnp.where(overflowed, end, after.lengths)),
            (positions, jnp.where(moved, slots + end[..., None] - self.size, slots)),
            after.nonfinite_keys,
        )

    def _view_before(
        self, after: "Cache", positions: Array, key: Array, value: Array, nonfinite: Array
    ) -> CacheView:
        """Return the slots of the cache before the last T tokens, followed by these.

        In a ring the first of the new tokens still attend to keys that the last ones replace.
        """
        end = after.lengths
        if not self.ring:
            end = jnp.where(after._overflowed, self.lengths + positions.shape[-1], end)
            nonfinite = nonfinite | after._overflowed[..., None, None]
        mask = masks.lengths(end)
        old = self._positions_by_row
        old = jnp.where(old < self.lengths[..., None], old, EMPTY_SLOT)
        new = jnp.where(positions < end[..., None], positions, EMPTY_SLOT)
        return CacheView(
            jnp.concatenate([self.key, key], axis=-3),
            jnp.concatenate([self.value, value], axis=-3),
            mask & masks.window(self.size - 1, None) if self.ring else mask,
            (positions, jnp.concatenate([old, new], axis=-1)),
            jnp.concatenate([self.nonfinite_keys, nonfinite], axis=-2),
        )

    def _write(self, slots: Array, key: Array, value: Array, nonfinite: Array) -> "Cache":
        flags = _write(self.nonfinite_slots[..., None], nonfinite[..., None], slots)
        return replace(
            self,
            key_slots=_write(self.key_slots, key, slots),
            value_slots=_write(self.value_slots, value, slots),
            nonfinite_slots=flags[..., 0],
        )

    def _gather_in_place(self, gather: Callable[[Array], Array]) -> "Cache":
        chunk = min(CHUNK, self.size)
        rest = self.size % chunk  # always gathered, so that chunks divide the other slots

        def gather_chunk(
            slots: tuple[Array, ...], start: ArrayLike, size: int
        ) -> tuple[Array, ...]:
            def one(array: Array, axis: int) -> Array:
                part = jax.lax.dynamic_slice_in_dim(array, start, size, axis)
                return jax.lax.dynamic_update_slice_in_dim(array, gather(part), start, axis)

            axes = (array.ndim - back for array, back in zip(slots, (2, 2, 1), strict=True))
            return tuple(one(array, axis) for array, axis in zip(slots, axes, strict=True))

        used = jnp.minimum(jnp.max(self.lengths, initial=0), self.size)
        slots = gather_chunk(self._slots, 0, rest) if rest else self._slots
        slots = jax.lax.fori_loop(
            0,
            -(-(used - rest) // chunk),
            lambda number, slots: gather_chunk(slots, rest + number * chunk, chunk),
            slots,
        )
        return Cache(*slots, lengths=gather(self.lengths), ring=self.ring)


def check_lengths(lengths: ArrayLike, num_tokens: int, least: int = 0) -> None:
    """Check the number of valid tokens per row, as far as it is known.

    Args:
        lengths: integers `[...]`.
        num_tokens: T.
        least: the smallest length that is allowed.

    Raises:
        TypeError: lengths that are not integers.
        ValueError: lengths outside [least, T].
    """
    with jax.ensure_compile_time_eval():  # inside jit, constants are known
        given = to_int32("lengths", lengths, 0)
        outside = jnp.any((given < least) | (given > num_tokens))
    if _is_known(outside) and outside:
        raise ValueError(f"lengths must lie in {least} to {num_tokens} tokens, got {lengths}")


def empty_cache(
    batch: Sequence[int],
    size: int,
    *,
    num_kv_heads: int,
    head_width: int,
    value_width: int | None = None,
    dtype: DTypeLike = jnp.float32,
    ring: bool = False,
) -> Cache:
    """Return a cache without tokens.

    Args:
        batch: sizes of the batch axes.
        size: S, the number of slots.
        num_kv_heads: K.
        head_width: H.
        value_width: Hv, H by default.
        dtype: of keys and values.
        ring: as in `Cache`.

    Raises:
        ValueError: a size below 1.
        TypeError: a number in place of the batch axes.
    """
    if isinstance(batch, int):
        raise TypeError(f"batch must be the sizes of the batch axes, such as (2,), got {batch}")
    if size < 1:
        raise ValueError(f"a cache needs at least 1 slot, got {size}")
    shape = (*batch, num_kv_heads, size)
    value_width = head_width if value_width is None else value_width
    return Cache(
        key_slots=jnp.zeros((*shape, head_width), dtype),
        value_slots=jnp.zeros((*shape, value_width), dtype),
        nonfinite_slots=jnp.zeros(shape, bool),
        lengths=jnp.zeros(tuple(batch), jnp.int32),
        ring=ring,
    )


def full_cache(key: Array, value: Array) -> Cache:
    """Return a full cache that is read and not extended, for cross-attention.

    Args:
        key: `[..., S, K, H]`.
        value: `[..., S, K, Hv]`.
    """
    key, value, nonfinite = replace_nonfinite_keys(key, value)
    lengths = jnp.full(key.shape[:-3], key.shape[-3], jnp.int32)
    return Cache(_swap_axes(key), _swap_axes(value), jnp.swapaxes(nonfinite, -2, -1), lengths)


def _swap_axes(array: Array) -> Array:
    """Swap `[..., S, K, H]` and `[..., K, S, H]`."""
    return jnp.swapaxes(array, -3, -2)


@partial(jnp.vectorize, signature="(k,s,h),(t,k,h),(t)->(k,s,h)")
def _write(old: Array, new: Array, slots: Array) -> Array:
    return old.at[:, slots].set(_swap_axes(new), mode="drop")


def _is_known(array: ArrayLike | None) -> bool:
    return not isinstance(array, jax.core.Tracer)
