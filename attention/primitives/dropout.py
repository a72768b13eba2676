"""Dropout of attention weights, decided pair by pair and not by where a random stream stands."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Dropout:
    """Drops each attention weight with probability `rate`; the rest grow by 1 / (1 - rate).

    Attributes:
        key: a JAX random key, or keys with the leading (batch) axes of the query. Examples that
            share a key share the dropped positions; `jax.random.split(key, B)` sets them apart.
        rate: a number in [0, 1).
    """

    key: Array
    rate: float = field(metadata={"static": True})

    def __post_init__(self) -> None:
        """Refuses a rate that is traced, or would drop everything or less than nothing."""
        if isinstance(self.rate, jax.Array):
            raise TypeError("dropout rate must be a number of Python: programs are made for it")
        if not 0 <= self.rate < 1:
            raise ValueError(f"dropout rate must lie in [0, 1), got {self.rate}")


def keep_factor(
    dropout: Dropout, num_heads: int, query_positions: Array, key_positions: Array
) -> Array:
    """What each weight is multiplied by: 0 if dropped, 1 / (1 - rate) if kept.

    Whether a weight is kept depends on (key, head, query position, key position) and on nothing
    else, so that every implementation, tile size and cache length drops the same pairs. Hence a
    hash of these numbers, cheap enough to be computed again wherever it is needed.

    Args:
        dropout: rate and key(s) `[...]`.
        num_heads: N.
        query_positions: `[..., T]`.
        key_positions: `[..., S]`.

    Returns:
        float32 `[..., N, T, S]`.
    """
    words = jax.random.key_data(dropout.key)
    return keep_pairs(
        jnp.moveaxis(words, -1, 0)[..., None, None, None],
        dropout.rate,
        jnp.arange(num_heads)[:, None, None],
        query_positions[..., None, :, None],
        key_positions[..., None, None, :],
    )


def keep_pairs(words: Array, rate: float, head: Array, query: Array, key: Array) -> Array:
    """`keep_factor` elementwise, for arrays that broadcast.

    Args:
        words: uint32 `[words, ...]`, the data of a random key.
        rate: of dropping.
        head: integers.
        query: its position.
        key: its position.
    """
    return jnp.where(is_kept(words, rate, head, query, key), 1 / (1 - rate), 0.0)


def is_kept(words: Array, rate: float, *numbers: Array) -> Array:
    """Whether the entry with these numbers is kept: bool, of the shape they broadcast to.

    The same numbers in the same order are the same entry: what shall drop others needs another key.

    Args:
        words: uint32 `[words, ...]`, the data of a random key.
        rate: of dropping.
        numbers: integers that name an entry, which broadcast; the smallest arrays first, for what
            they make of the words is computed once for all entries that share it.
    """
    numbers = [number.astype(jnp.uint32) for number in (*words, *numbers)]
    rank = max(number.ndim for number in numbers)
    state, *numbers = (jnp.expand_dims(x, range(rank - x.ndim)) for x in numbers)
    for number in numbers:
        state = _scramble(state, number)
    return state >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))


def _scramble(state: Array, number: Array) -> Array:
    """Folds a number into a 32-bit state, so that each bit of it may flip any bit of the result.

    The finalizer of MurmurHash3 (Appleby 2011) after a step of the golden-ratio sequence.
    """
    state = state ^ (number * jnp.uint32(0x9E3779B9) + jnp.uint32(0x85EBCA6B))
    state = (state ^ (state >> 16)) * jnp.uint32(0x85EBCA6B)
    state = (state ^ (state >> 13)) * jnp.uint32(0xC2B2AE35)
    return state ^ (state >> 16)
