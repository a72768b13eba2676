"""Dropout where the presence of a key decides: a key is given, or nothing is dropped."""

from collections.abc import Sequence

import jax
from flax import nnx
from jax import Array


def drop(inputs: Array, rate: float, key: Array | None) -> Array:
    """Zeroes entries with probability `rate` and scales up the rest; the identity without a key."""
    if key is None or not rate:
        return inputs
    return nnx.Dropout(rate)(inputs, rngs=key, deterministic=False)


def split_key(key: Array | None, number: int) -> Sequence[Array | None]:
    """Independent keys, or as many times None."""
    return [None] * number if key is None else list(jax.random.split(key, number))
