"""What decoding remembers: keys and values of the past, each row as far as it has come.

A cache is a frozen pytree, an argument and a result. Rows come first, so that any of them can be
chosen or repeated by one `jax.tree.map`. Where a key stands follows from its slot, and a mask stays
a predicate on positions: prefill, decoding and training share it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from attention.primitives.masks import Mask, window
from attention.primitives.masks import lengths as up_to
from attention.primitives.nonfinite import replace_nonfinite_keys as finite_memory
from attention.primitives.pytree_dataclass import array_field, pytree_dataclass, static

NOWHERE = 2**31 - 1  # the position of an empty slot, which no row ever reaches
PIECE = 8  # slots that are rearranged at a time


class Seen(NamedTuple):
    """What the queries of new tokens attend to.

    Attributes:
        key: `[..., S, K, H]`.
        value: `[..., S, K, Hv]`.
        positions: int32 `[S]` or `[..., S]`.
        mask: hides what is empty; a ring also hides what it is about to forget.
        broken: bool `[..., S, K]`, for `attention.attend`, which would not know of a NaN without.
    """

    key: Array
    value: Array
    positions: Array
    mask: Mask
    broken: Array


@pytree_dataclass
class Cache:
    """Keys and values in S slots, and how many tokens each row has read.

    Position p stands in slot p. In a ring of S slots it stands in slot p % S, where it replaces
    position p - S: to attend through a ring is to attend with `mask & masks.window(S - 1)`.

    What was not read yet cannot be attended to: a mask that looks ahead, `masks.prefix` say, means
    what it says only if all that a query may see is read at once with it or before it.

    A stack of layers has a cache for each, whose buffer is written where it stands.

    Slots are kept head by head, in the order in which the products read them: otherwise every step
    of decoding would copy the whole cache into that order. For the same reason they are looked at
    once, when they are written: they hold finite numbers, and zeros in place of others.

    Attributes:
        key_slots: `[..., K, S, H]`.
        value_slots: `[..., K, S, Hv]`.
        broken_slots: bool `[..., K, S]`, where a key or its value was not finite.
        lengths: int32 `[...]`, tokens read.
        ring: whether a row that is full goes on in its first slot. Without it, writing past the end
            is an error where that is known, and NaN in all that the row says where it is traced.
    """

    key_slots: Array = array_field(rank=3)
    value_slots: Array = array_field(rank=3)
    broken_slots: Array = array_field(rank=2)
    lengths: Array = array_field(rank=0)
    ring: bool = static(default=False)

    @property
    def key(self) -> Array:
        """`[..., S, K, H]`, as `attention.attend` reads them, with `broken`."""
        return _swapped(self.key_slots)

    @property
    def value(self) -> Array:
        """`[..., S, K, Hv]`."""
        return _swapped(self.value_slots)

    @property
    def broken(self) -> Array:
        """Bool `[..., S, K]`, where a zero stands for what was not finite."""
        return jnp.swapaxes(self.broken_slots, -2, -1)

    @property
    def size(self) -> int:
        """S."""
        return self.key_slots.shape[-2]

    @property
    def nbytes(self) -> int:
        """Of keys and values."""
        return sum(
            array.size * array.dtype.itemsize for array in (self.key_slots, self.value_slots)
        )

    @property
    def positions(self) -> Array:
        """Of the key that belongs in each slot: int32 `[S]`, and `[..., S]` for a ring."""
        slots = jnp.arange(self.size, dtype=jnp.int32)
        if not self.ring:
            return slots
        back = jnp.subtract.outer(self.lengths - 1, slots) % self.size  # from the newest
        newest = self.lengths[..., None] - 1 - back
        return jnp.where(newest < 0, NOWHERE, newest)

    def next_positions(self, num_tokens: int) -> Array:
        """Where the next tokens of each row will stand: int32 `[..., T]`."""
        return jnp.add.outer(self.lengths, jnp.arange(num_tokens, dtype=jnp.int32))

    def check_room(self, num_tokens: int, lengths: ArrayLike | None = None) -> None:
        """Checks that T more tokens fit, as far as it is known yet how many there are.

        Raises:
            TypeError: `lengths` that are not integers.
            ValueError: they do not, or `lengths` does not lie in [0, T].
        """
        if lengths is not None:
            check_lengths(lengths, num_tokens)
        with jax.ensure_compile_time_eval():  # under jit too, constants are known
            longest = jnp.max(self.advanced(num_tokens, lengths).lengths, initial=0)
        at_least = num_tokens if lengths is None else 0
        longest = int(longest) if _known(longest) else at_least
        if longest > self.size and not self.ring:
            raise ValueError(
                f"a cache of {self.size} slots has no room for {longest} tokens: make it larger, "
                "or a ring"
            )

    def extend(
        self, key: Array, value: Array, lengths: ArrayLike | None = None
    ) -> tuple["Cache", Seen]:
        """Writes the next tokens of each row.

        Args:
            key: `[..., T, K, H]`.
            value: `[..., T, K, Hv]`.
            lengths: integers `[...]`, how many of the T tokens of each row are tokens and no
                padding behind them; all by default.

        Returns:
            The new cache, and what the T queries attend to.

        Raises:
            TypeError, ValueError: as `check_room`, and for keys or values of another shape.
        """
        num_tokens = key.shape[-3]
        for name, ours, theirs in (
            ("keys", self.key_slots, key),
            ("values", self.value_slots, value),
        ):
            *batch, num_heads, _, width = ours.shape
            expected = (*batch, num_tokens, num_heads, width)
            if theirs.shape != expected:
                raise ValueError(f"this cache reads {name} {expected}, got {theirs.shape}")
        self.check_room(num_tokens, lengths)
        key, value = key.astype(self.key_slots.dtype), value.astype(self.value_slots.dtype)
        finite = finite_memory(key, value)
        positions = self.next_positions(num_tokens)
        after = self.advanced(num_tokens, lengths)
        is_token = positions < after.lengths[..., None]
        if not self.ring:
            slots = jnp.where(is_token, positions, self.size)
            after = after._written(slots, *finite)
            mask = up_to(after.lengths)
            return after, Seen(after.key, after.value, after.positions, mask, after.broken)
        # What the new tokens replace, the first of them may still attend to.
        key, value, broken = finite
        seen = Seen(
            jnp.concatenate([self.key, key], axis=-3),
            jnp.concatenate([self.value, value], axis=-3),
            jnp.concatenate([self.positions, jnp.where(is_token, positions, NOWHERE)], axis=-1),
            up_to(after.lengths) & window(self.size - 1),
            jnp.concatenate([self.broken, broken], axis=-2),
        )
        stays = is_token & (positions >= after.lengths[..., None] - self.size)
        slots = jnp.where(stays, positions % self.size, self.size)
        return after._written(slots, *finite), seen

    def advanced(self, num_tokens: int, lengths: ArrayLike | None = None) -> "Cache":
        """The same after T more tokens, or `lengths` of them."""
        more = jnp.asarray(num_tokens if lengths is None else lengths, jnp.int32)
        return replace(self, lengths=self.lengths + jnp.broadcast_to(more, self.lengths.shape))

    def poison(self, outputs: Array) -> Array:
        """NaN for the rows of `[..., T, N, Hv]` that were written past their end."""
        if self.ring:
            return outputs
        lost = (self.lengths > self.size)[..., None, None, None]
        return jnp.where(lost, jnp.nan, outputs)

    def rearranged(self, choose: Callable[[Array], Array]) -> "Cache":
        """With other rows in place of these, as when hypotheses go on from others.

        On a CPU what moves is as much as was read: slots are rearranged where they stand, a few at
        a time, and those that every row has left empty stay as they are. An accelerator would wait
        for each of those steps longer than for the whole.

        Args:
            choose: of arrays `[..., *]` with the axes of all rows in front, to as many rows.
        """
        if jax.default_backend() != "cpu":
            return jax.tree.map(choose, self)
        piece = min(PIECE, self.size)
        rest = self.size % piece  # which moves in any case, so that pieces divide what is left

        def moved(slots: tuple[Array, ...], start: ArrayLike, size: int) -> tuple[Array, ...]:
            def of_one(array: Array, axis: int) -> Array:
                some = jax.lax.dynamic_slice_in_dim(array, start, size, axis)
                return jax.lax.dynamic_update_slice_in_dim(array, choose(some), start, axis)

            axes = (array.ndim - back for array, back in zip(slots, (2, 2, 1), strict=True))
            return tuple(of_one(array, axis) for array, axis in zip(slots, axes, strict=True))

        used = jnp.minimum(jnp.max(self.lengths, initial=0), self.size)
        slots = moved(self._slots, 0, rest) if rest else self._slots
        slots = jax.lax.fori_loop(
            0,
            -(-(used - rest) // piece),
            lambda number, slots: moved(slots, rest + number * piece, piece),
            slots,
        )
        return Cache(*slots, lengths=choose(self.lengths), ring=self.ring)

    @property
    def _slots(self) -> tuple[Array, Array, Array]:
        return self.key_slots, self.value_slots, self.broken_slots

    def _written(self, slots: Array, key: Array, value: Array, broken: Array) -> "Cache":
        return replace(
            self,
            key_slots=_write(self.key_slots, key, slots),
            value_slots=_write(self.value_slots, value, slots),
            broken_slots=_write(self.broken_slots[..., None], broken[..., None], slots)[..., 0],
        )


def check_lengths(lengths: ArrayLike, num_tokens: int, least: int = 0) -> None:
    """Checks how many of T tokens each row reads, as far as it is known yet.

    Raises:
        TypeError: lengths that are not integers.
        ValueError: lengths outside [least, T].
    """
    if not jnp.issubdtype(jnp.asarray(lengths).dtype, jnp.integer):
        raise TypeError(f"lengths must be integers, got {jnp.asarray(lengths).dtype}")
    with jax.ensure_compile_time_eval():  # under jit too, constants are known
        given = jnp.asarray(lengths)
        outside = jnp.any((given < least) | (given > num_tokens))
    if _known(outside) and outside:
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
    """A cache that has read nothing.

    Args:
        batch: the leading axes.
        size: S.
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
        broken_slots=jnp.zeros(shape, bool),
        lengths=jnp.zeros(tuple(batch), jnp.int32),
        ring=ring,
    )


def full_cache(key: Array, value: Array) -> Cache:
    """Keys `[..., S, K, H]` and values `[..., S, K, Hv]` that will only be read."""
    key, value, broken = finite_memory(key, value)
    lengths = jnp.full(key.shape[:-3], key.shape[-3], jnp.int32)
    return Cache(_swapped(key), _swapped(value), jnp.swapaxes(broken, -2, -1), lengths)


def _swapped(array: Array) -> Array:
    """From `[..., S, K, H]` to `[..., K, S, H]`, and back."""
    return jnp.swapaxes(array, -3, -2)


@partial(jnp.vectorize, signature="(k,s,h),(t,k,h),(t)->(k,s,h)")
def _write(old: Array, new: Array, slots: Array) -> Array:
    return old.at[:, slots].set(_swapped(new), mode="drop")


def _known(array: ArrayLike) -> bool:
    return not isinstance(array, jax.core.Tracer)
