"""Keeps a NaN or an infinity from reaching anyone who may not attend to it."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from attention.primitives.precision import wide


def quarantine(
    query: Array, key: Array, value: Array, allowed: ArrayLike, broken: Array | None = None
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
        broken: bool `[S]`, as in `finite`.

    Returns:
        Finite query, key and value in float32 at least, and a function that sets the poisoned
        rows of an array `[T, ...]` to NaN.
    """
    *inputs, query_ok, key_ok = finite(query, key, value, broken)
    query, key, value = wide(*inputs)
    poisoned_rows = jnp.any(allowed & ~(query_ok[:, None] & key_ok[None, :]), axis=-1)

    def poison(array: Array) -> Array:
        rows = poisoned_rows.reshape(-1, *[1] * (array.ndim - 1))
        return jnp.where(rows, jnp.nan, array)

    return query, key, value, poison


def finite(
    query: Array, key: Array, value: Array, broken: Array | None = None
) -> tuple[Array, Array, Array, Array, Array]:
    """Zeros in place of what is not finite, and where there was nothing such.

    Args:
        query: `[..., T, H]`.
        key: `[..., S, H]`.
        value: `[..., S, Hv]`.
        broken: bool `[..., S]`, of keys and values that were made finite before: where zeros stand
            in place of something else. None: nobody looked yet.

    Returns:
        Finite query, key and value; bool `[..., T]`, true for finite queries; and bool `[..., S]`,
        true for keys that are finite and have a finite value.
    """
    query, query_ok = _zeroed(query)
    if broken is None:
        key, value, broken = finite_memory(key, value)
    return query, key, value, query_ok, ~broken


def finite_memory(key: Array, value: Array) -> tuple[Array, Array, Array]:
    """Keys and values to attend to often, looked at once.

    Args:
        key: `[..., S, H]`.
        value: `[..., S, Hv]`.

    Returns:
        Both, with zeros in place of what is not finite, and bool `[..., S]`: where that was.
    """
    key, key_ok = _zeroed(key)
    value, value_ok = _zeroed(value)
    return key, value, ~(key_ok & value_ok)


def _zeroed(array: Array) -> tuple[Array, Array]:
    ok = jnp.isfinite(array)
    return jnp.where(ok, array, 0), ok.all(axis=-1)
