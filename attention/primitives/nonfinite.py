"""NaN and infinities in the inputs: they reach the queries that may attend to them, and no others.

A weight of 0 does not remove a NaN: 0 · NaN is NaN in the sum over values, and again in the
products of the backward pass. So the products use inputs whose non-finite numbers are replaced
by 0, and a NaN is added to the score of every pair with a non-finite query, key or value, before
the mask. The softmax spreads it over the visible pairs of that query, forward and backward.
"""

import jax
import jax.numpy as jnp
from jax import Array


@jax.custom_jvp
def _replaced(array: Array) -> Array:
    return jnp.where(jnp.isfinite(array), array, 0)


@_replaced.defjvp
def _replaced_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """Pass tangents through, so that a visible NaN gets the gradient of its pair, which is NaN."""
    return _replaced(*primals), tangents[0]


def replace_nonfinite(
    query: Array, key: Array, value: Array, nonfinite_keys: Array | None = None
) -> tuple[Array, Array, Array, Array, Array]:
    """Replace non-finite numbers by 0, and return where they were.

    Args:
        query: `[..., T, H]`.
        key: `[..., S, H]`.
        value: `[..., S, Hv]`.
        nonfinite_keys: bool `[..., S]`. If given, `key` and `value` are assumed finite and are not
            checked.

    Returns:
        Finite query, key and value; bool `[..., T]`, True for queries that were not finite; bool
        `[..., S]`, True for keys that were not finite or whose value was not.
    """
    nonfinite_queries = ~jnp.isfinite(query).all(axis=-1)
    if nonfinite_keys is None:
        key, value, nonfinite_keys = replace_nonfinite_keys(key, value)
    return _replaced(query), key, value, nonfinite_queries, nonfinite_keys


def replace_nonfinite_keys(key: Array, value: Array) -> tuple[Array, Array, Array]:
    """Replace non-finite numbers by 0 in keys and values that are attended to many times.

    Args:
        key: `[..., S, H]`.
        value: `[..., S, Hv]`.

    Returns:
        Finite key and value, and bool `[..., S]`, True where one of them was not finite.
    """
    finite = jnp.isfinite(key).all(axis=-1) & jnp.isfinite(value).all(axis=-1)
    return _replaced(key), _replaced(value), ~finite


def nan_where(flags: Array, dtype: jnp.dtype) -> Array:
    """Return NaN where a flag is True and 0 elsewhere: the number to add to scores."""
    return jnp.where(flags, jnp.nan, 0.0).astype(dtype)


def nan_rows(output: Array, logsumexp: Array) -> Array:
    """Set the output `[..., Hv]` to NaN where the logsumexp is NaN, and block its cotangent there.

    That cotangent is NaN too, and 0 · NaN would reach the values of masked keys.
    """
    return jnp.where(jnp.isnan(logsumexp)[..., None], jnp.nan, output)
