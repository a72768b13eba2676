"""Keeps a NaN or an infinity from reaching anyone who may not attend to it."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from attention.primitives.precision import wide


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
    *inputs, query_ok, key_ok = finite(query, key, value)
    query, key, value = wide(*inputs)
    poisoned_rows = jnp.any(allowed & ~(query_ok[:, None] & key_ok[None, :]), axis=-1)

    def poison(array: Array) -> Array:
        rows = poisoned_rows.reshape(-1, *[1] * (array.ndim - 1))
        return jnp.where(rows, jnp.nan, array)

    return query, key, value, poison


def finite(query: Array, key: Array, value: Array) -> tuple[Array, Array, Array, Array, Array]:
    """Zeros in place of what is not finite, and where there was nothing such.

    Args:
        query: `[..., T, H]`.
        key: `[..., S, H]`.
        value: `[..., S, Hv]`.

    Returns:
        Finite query, key and value; bool `[..., T]`, true for finite queries; and bool `[..., S]`,
        true for keys that are finite and have a finite value.
    """
    ok = [jnp.isfinite(array) for array in (query, key, value)]
    query, key, value = (
        jnp.where(where, array, 0) for where, array in zip(ok, (query, key, value), strict=True)
    )
    query_ok, key_ok, value_ok = (where.all(axis=-1) for where in ok)
    return query, key, value, query_ok, key_ok & value_ok
