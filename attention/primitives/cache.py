"""Key/value cache for decoding, with a separate length for each row of the batch.

A cache is a frozen pytree: `extend` takes one and returns a new one. The batch axes come first, so
`jax.tree.map` can select or repeat rows. The position of a key follows from its slot, so the same
masks on positions serve prefill, decoding and training.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from attention.primitives import masks
from attention.primitives.masks import Mask, to_int32
from attention.primitives.numerics import replace_nonfinite_keys
from attention.primitives.pytree_dataclass import array_field, map_arrays, pytree_dataclass, static

EMPTY_SLOT = 2**31 - 1  # the position of an empty slot, larger than that of any token
CHUNK = 8  # slots that `gather_rows` reorders at a time on a CPU


class CacheView(NamedTuple):
    """Keys and values for the queries of the tokens that were written last.

    Pass it to `attention.attend` in place of the key. Non-finite numbers are replaced by 0.

    Attributes:
        key: `[..., S, K, H]`.
        value: `[..., S, K, Hv]`.
        mask: masks empty slots; for a ring, also keys outside its window. None if all are visible.
        positions: int32, of queries `[..., T]` and keys `[..., S]`; None if both count from 0.
        nonfinite_keys: bool `[..., S, K]`, as `Cache.nonfinite_keys`.
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
    row that is longer than S become non-finite, and its queries past the end get position S - 1, so
    `attend` returns NaN for every query of the row to which the mask allows a key.

    A key can be attended to after it was written. A mask that allows future keys, such as
    `masks.prefix`, gives the result of a full pass only if all keys that a query may attend to are
    written together with it or before it.

    Slots are stored head by head, in the order in which the products read them; in any other order,
    each decoding step would copy the whole cache. Only new keys and values are checked for
    non-finite numbers.

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
        return flags if self.ring else flags | (self.lengths > self.size)[..., None, None]

    def view(self, positions: tuple[Array, Array] | None = None) -> CacheView:
        """Return all slots, for cross-attention.

        Args:
            positions: of the queries `[..., T]` and of the keys `[..., S]`.
        """
        return CacheView(self.key, self.value, None, positions, self.nonfinite_keys)

    @property
    def size(self) -> int:
        """S."""
        return self.key_slots.shape[-2]

    @property
    def positions(self) -> Array:
        """Position of the key of each slot: int32 `[..., S]`, sharded like the lengths."""
        slots = jnp.add.outer(jnp.zeros_like(self.lengths), jnp.arange(self.size, dtype=jnp.int32))
        if not self.ring:
            return slots
        newest = self.lengths[..., None] - 1
        positions = newest - (newest - slots) % self.size
        return jnp.where(positions < 0, EMPTY_SLOT, positions)

    def next_positions(self, num_tokens: int) -> Array:
        """Return the positions of the next T tokens of each row: int32 `[..., T]`."""
        return jnp.add.outer(self.lengths, jnp.arange(num_tokens, dtype=jnp.int32))

    def check_capacity(self, num_tokens: int, lengths: ArrayLike | None = None) -> None:
        """Check that T more tokens fit, or `lengths` `[...]` of them, as far as this is known.

        Raises:
            TypeError: `lengths` that are not integers.
            ValueError: too many tokens, or `lengths` outside [0, T].
        """
        if lengths is not None:
            check_lengths(lengths, num_tokens)
        longest = num_tokens if lengths is None else 0
        if not any(isinstance(each, jax.core.Tracer) for each in (self.lengths, lengths)):
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
            lengths: integers `[...]`, valid tokens per row, before padding; T by default.

        Returns:
            The new cache, and the keys and values that the T queries attend to.

        Raises:
            TypeError, ValueError: as `check_capacity`, and for keys or values of another shape.
        """
        num_tokens = key.shape[-3]
        for name, old, new in ("keys", self.key_slots, key), ("values", self.value_slots, value):
            expected = (*old.shape[:-3], num_tokens, old.shape[-3], old.shape[-1])
            if new.shape != expected:
                raise ValueError(f"this cache needs {name} of shape {expected}, got {new.shape}")
        self.check_capacity(num_tokens, lengths)
        key, value = key.astype(self.key_slots.dtype), value.astype(self.value_slots.dtype)
        key, value, nonfinite = replace_nonfinite_keys(key, value)
        positions, after = self.next_positions(num_tokens), self.advance(num_tokens, lengths)
        stored, slots = positions < after.lengths[..., None], positions
        if self.ring:
            stored &= positions >= after.lengths[..., None] - self.size
            slots = positions % self.size
        slots = jnp.where(stored, slots, self.size)  # a slot out of range is not written
        flags = _write(self.nonfinite_slots[..., None], nonfinite[..., None], slots)
        after = replace(
            after,
            key_slots=_write(self.key_slots, key, slots),
            value_slots=_write(self.value_slots, value, slots),
            nonfinite_slots=flags[..., 0],
        )
        mask = masks.lengths(after.lengths)
        if not self.ring:
            positions = jnp.minimum(positions, self.size - 1)
            return after, after.view((positions, self.positions))._replace(mask=mask)
        # The first of the new tokens still attend to keys that the last ones replace.
        return after, CacheView(
            jnp.concatenate([self.key, key], axis=-3),
            jnp.concatenate([self.value, value], axis=-3),
            mask & masks.window(self.size - 1, None),
            (positions, jnp.concatenate([self.positions, positions], axis=-1)),
            jnp.concatenate([self.nonfinite_keys, nonfinite], axis=-2),
        )

    def advance(self, num_tokens: int, lengths: ArrayLike | None = None) -> "Cache":
        """Return the cache with T more tokens, or `lengths` `[...]` of them, and the same slots."""
        more = to_int32("lengths", num_tokens if lengths is None else lengths, 0)
        return replace(self, lengths=self.lengths + jnp.broadcast_to(more, self.lengths.shape))

    def gather_rows(self, gather: Callable[[Array], Array]) -> "Cache":
        """Reorder rows, for beam search.

        On a CPU only the slots that the longest row uses are reordered, in place and `CHUNK` at a
        time. Elsewhere whole arrays are, since each step of a loop costs more than the copy.

        Args:
            gather: maps an array `[..., *]` with the batch axes in front to one of the same shape
                with other rows.
        """
        return jax.lax.platform_dependent(
            self,
            cpu=lambda cache: cache._gather_in_place(gather),
            default=lambda cache: jax.tree.map(gather, cache),
        )

    def _gather_in_place(self, gather: Callable[[Array], Array]) -> "Cache":
        chunk = min(CHUNK, self.size)
        rest = self.size % chunk  # always gathered, so that chunks divide the other slots

        def gather_slots(cache: Cache, start: ArrayLike, size: int) -> Cache:
            def one(array: Array, axes: str) -> Array:
                if "S" not in axes:
                    return array
                axis = axes.index("S") - len(axes)
                part = jax.lax.dynamic_slice_in_dim(array, start, size, axis)
                return jax.lax.dynamic_update_slice_in_dim(array, gather(part), start, axis)

            return map_arrays(cache, one)

        used = jnp.minimum(jnp.max(self.lengths, initial=0), self.size)
        cache = jax.lax.fori_loop(
            0,
            -(-(used - rest) // chunk),
            lambda number, cache: gather_slots(cache, rest + number * chunk, chunk),
            gather_slots(self, 0, rest) if rest else self,
        )
        return replace(cache, lengths=gather(self.lengths))


@pytree_dataclass
class Constant:
    """A part of a decode state that steps read and never change, such as an encoder output.

    All hypotheses of a row share its value, a pytree with leaves `[B, *]`: beam search neither
    repeats nor reorders it.
    """

    value: Any


def check_lengths(lengths: ArrayLike, num_tokens: int, least: int = 0) -> None:
    """Check the numbers of valid tokens per row `[...]`, as far as they are known.

    Raises:
        TypeError: lengths that are not integers.
        ValueError: lengths outside [least, T].
    """
    with jax.ensure_compile_time_eval():  # inside jit, constants are known
        given = to_int32("lengths", lengths, 0)
        largest = num_tokens if isinstance(num_tokens, int) else given  # a symbol of `jax.export`
        outside = jnp.any((given < least) | (given > largest))
    if not isinstance(outside, jax.core.Tracer) and outside:
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
    """
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
