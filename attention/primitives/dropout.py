"""Counter-based dropout: a hash of (rng, head, query position, key position)."""

from numbers import Real

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.pytree_dataclass import array_field, pytree_dataclass, static


@pytree_dataclass
class Dropout:
    """Drop each attention weight with probability `rate`; scale the others by 1 / (1 - rate).

    Attributes:
        rng: a JAX random key, or keys with the batch axes of the query. Examples that share a key
            drop the same pairs; `jax.random.split(rng, B)` gives each example its own.
        rate: a number in [0, 1).
    """

    rng: Array = array_field("w")  # of the data of a key
    rate: float = static()

    def __post_init__(self) -> None:
        """Refuse a traced rate, and one outside [0, 1)."""
        if not isinstance(self.rate, Real):
            raise TypeError(
                f"dropout rate must be a Python number, which is compiled in, got {self.rate!r}"
            )
        if not 0 <= self.rate < 1:
            raise ValueError(f"dropout rate must lie in [0, 1), got {self.rate}")


def keep_factor(
    dropout: Dropout, heads: Array, query_positions: Array, key_positions: Array
) -> Array:
    """Return the factor of each weight: 0 if dropped, 1 / (1 - rate) if kept; float32.

    It depends on (rng, head, query position, key position) alone, so every implementation, tile
    size, cache length and sharding drops the same pairs; and it is cheap to compute again.

    It is `[..., N, T, S]` for the global numbers `[N]` of heads, `[..., T, S]` for one number, and
    for positions `[..., T]` and `[..., S]`.
    """
    of_heads = (1,) * heads.ndim
    words = jnp.moveaxis(key_words(dropout.rng), -1, 0)
    words = words.reshape(*words.shape, *of_heads, 1, 1)
    rows = query_positions.reshape(*query_positions.shape[:-1], *of_heads, -1, 1)
    columns = key_positions.reshape(*key_positions.shape[:-1], *of_heads, 1, -1)
    kept = is_kept(words, dropout.rate, heads[..., None, None], rows, columns)
    return jnp.where(kept, 1 / (1 - dropout.rate), 0.0)


def key_words(rng: Array) -> Array:
    """Return the data of random keys, uint32 `[..., words]`, also of keys that are data already."""
    return rng if rng.dtype == jnp.uint32 else jax.random.key_data(rng)


def is_kept(words: Array, rate: float, *numbers: Array) -> Array:
    """Return whether the entry with these numbers is kept: bool, of their broadcast shape.

    The same numbers in the same order are the same entry: another mask needs another key. Each
    half of the key starts a separate 32-bit state, into which every number but the last is hashed;
    the last step hashes the last number with both, so that all 64 bits count.

    Args:
        words: uint32 `[2 or more, ...]`, the data of a random key.
        rate: probability of dropping.
        numbers: integers that identify an entry and broadcast; the smallest arrays first, since
            their hashes are computed once for all entries that share them.
    """
    *first, last = (number.astype(jnp.uint32) for number in numbers)
    rank = max(*(number.ndim for number in numbers), words[0].ndim)
    words, first, last = jax.tree.map(
        lambda x: jnp.expand_dims(x, tuple(range(rank - x.ndim))), (list(words), first, last)
    )
    add, factor = words[0], words[-1]
    for number in (*words[1:-1], *first):
        add, factor = _hash(add, number), _hash(factor, ~number)
    state = (_hash(add ^ factor, jnp.uint32(0)) + _hash(last, jnp.uint32(1))) * (factor | 1)
    return _mix(state) >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))


def _hash(state: Array, number: Array) -> Array:
    """Fold a number into a 32-bit state."""
    return _mix(state ^ (number * jnp.uint32(0x9E3779B9) + jnp.uint32(0x85EBCA6B)))


def _mix(state: Array) -> Array:
    """Let each bit flip any other: the finalizer of MurmurHash3 (Appleby 2011)."""
    state = (state ^ (state >> 16)) * jnp.uint32(0x85EBCA6B)
    state = (state ^ (state >> 13)) * jnp.uint32(0xC2B2AE35)
    return state ^ (state >> 16)
