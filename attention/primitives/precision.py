"""Precision of sums and statistics: at least float32."""

import jax.numpy as jnp
from jax import Array


def wide(*arrays: Array) -> tuple[Array, ...]:
    """Return the arrays in float32, or all in float64 if one of them is float64."""
    is_double = any(array.dtype == jnp.float64 for array in arrays)
    return tuple(array.astype(jnp.float64 if is_double else jnp.float32) for array in arrays)
