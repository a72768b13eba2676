"""The precision that sums are computed in, whatever comes in."""

import jax.numpy as jnp
from jax import Array


def wide(*arrays: Array) -> tuple[Array, ...]:
    """The arrays in float32, or in float64 if any of them is."""
    is_double = any(array.dtype == jnp.float64 for array in arrays)
    return tuple(array.astype(jnp.float64 if is_double else jnp.float32) for array in arrays)
