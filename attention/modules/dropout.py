"""Dropout where the presence of a key decides: a key is given, or nothing is dropped."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.dropout import is_kept


def drop(inputs: Array, rate: float, key: Array | None) -> Array:
    """Zeroes entries with probability `rate` and scales up the rest; the identity without a key.

    Which entries, the hash of `attention.Dropout` decides: random bits of JAX would cost a tenth of
    a training step on a CPU, where they are made apart from the sums that read them.

    Args:
        inputs: `[..., D]`.
        rate: in [0, 1).
        key: a JAX random key, or None.

    Raises:
        ValueError: several keys; `jax.vmap` gives each example its own.
    """
    if key is None or not rate:
        return inputs
    words = jax.random.key_data(key)
    if words.ndim > 1:
        raise ValueError(f"drop takes one key, got {words.shape[:-1]} of them: use jax.vmap")
    *rows, width = inputs.shape
    row = jnp.arange(math.prod(rows)).reshape(*rows, 1)
    kept = is_kept(words, rate, row, jnp.arange(width))
    return jnp.where(kept, inputs / (1 - rate), 0)


def split_key(key: Array | None, number: int) -> Sequence[Array | None]:
    """Independent keys, or as many times None."""
    return [None] * number if key is None else list(jax.random.split(key, number))
