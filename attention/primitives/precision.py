"""Precision of scores, sums and statistics: at least float32."""

import jax.numpy as jnp
from jax import Array


def score_dtype(*arrays: Array) -> jnp.dtype:
    """Return float64 if any array is float64, else float32."""
    is_double = any(array.dtype == jnp.float64 for array in arrays)
    return jnp.dtype(jnp.float64 if is_double else jnp.float32)


def wide(*arrays: Array) -> tuple[Array, ...]:
    """Return the arrays in float32, or all in float64 if one of them is float64."""
    return tuple(array.astype(score_dtype(*arrays)) for array in arrays)
