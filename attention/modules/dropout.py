"""Dropout that is on if a random key is given."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.dropout import is_kept


def drop(inputs: Array, rate: float, rng: Array | None) -> Array:
    """Zero entries with probability `rate` and scale up the rest; the identity without a key.

    The entries are chosen by the hash of `attention.Dropout`: on a CPU, random bits of JAX would
    take a tenth of a training step.

    Args:
        inputs: `[..., D]`.
        rate: in [0, 1).
        rng: a JAX random key, or None.

    Raises:
        ValueError: several keys; `jax.vmap` gives each example its own.
    """
    if rng is None or not rate:
        return inputs
    words = jax.random.key_data(rng)
    if words.ndim > 1:
        raise ValueError(f"drop takes one key, got {words.shape[:-1]} of them: use jax.vmap")
    *rows, width = inputs.shape
    row = jnp.arange(math.prod(rows)).reshape(*rows, 1)
    kept = is_kept(words, rate, row, jnp.arange(width))
    return jnp.where(kept, inputs / (1 - rate), 0)


def split_rng(rng: Array | None, number: int) -> Sequence[Array | None]:
    """Return independent keys, or as many times None."""
    return [None] * number if rng is None else list(jax.random.split(rng, number))
