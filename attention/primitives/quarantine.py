"""Keeps a NaN or an infinity from reaching anyone who may not attend to it."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike


def quarantine(
    query: Array, key: Array, value: Array, allowed: ArrayLike
) -> tuple[Array, Array, Array, Callable[[Array], Array]]:
    """Replaces non-finite numbers by zeros and returns how to give them back to those who see them.

    A weight of zero does not silence a NaN: 0 · NaN is NaN, in the sum over the values and again
    in the products of the backward pass. So the products only ever meet finite numbers, and the
    rows of the queries that may attend to a non-finite number are set to NaN at the very end. Such
    a row sends no gradient back: look for NaN in what is computed, not in its gradients.

    Args:
        query: `[T, H]`.
        key: `[S, H]`.
        value: `[S, Hv]`.
        allowed: bool `[T, S]` or one that broadcasts to it.

    Returns:
        Finite query, key and value in float32 at least, and a function that sets the poisoned
        rows of an array `[T, ...]` to NaN.
    """
    wide = any(array.dtype == jnp.float64 for array in (query, key, value))
    dtype = jnp.float64 if wide else jnp.float32
    finite = [jnp.isfinite(array) for array in (query, key, value)]
    query_ok, key_ok, value_ok = (ok.all(axis=-1) for ok in finite)
    pair_ok = query_ok[:, None] & (key_ok & value_ok)[None, :]
    poisoned_rows = jnp.any(allowed & ~pair_ok, axis=-1)

    def poison(array: Array) -> Array:
        rows = poisoned_rows.reshape(-1, *[1] * (array.ndim - 1))
        return jnp.where(rows, jnp.nan, array)

    query, key, value = (
        jnp.where(ok, array, 0).astype(dtype)
        for ok, array in zip(finite, (query, key, value), strict=True)
    )
    return query, key, value, poison
