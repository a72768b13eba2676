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


def replace_nonfinite(array: Array) -> tuple[Array, Array]:
    """Replace non-finite numbers of `[..., H]` by 0; return also which rows `[...]` had one."""
    return _replaced(array), ~jnp.isfinite(array).all(axis=-1)


def replace_nonfinite_keys(key: Array, value: Array) -> tuple[Array, Array, Array]:
    """Replace non-finite numbers of `[..., S, H]` and `[..., S, Hv]` by 0.

    Returns:
        Finite key and value, and bool `[..., S]`, True where one of them was not finite.
    """
    (key, of_key), (value, of_value) = replace_nonfinite(key), replace_nonfinite(value)
    return key, value, of_key | of_value


def nan_where(flags: Array, dtype: jnp.dtype) -> Array:
    """Return NaN where a flag is True and 0 elsewhere: the number to add to scores."""
    return jnp.where(flags, jnp.nan, 0.0).astype(dtype)


def nan_rows(output: Array, logsumexp: Array) -> Array:
    """Set the output `[..., Hv]` to NaN where the logsumexp is NaN, and block its cotangent there.

    That cotangent is NaN too, and 0 · NaN would reach the values of masked keys.
    """
    return jnp.where(jnp.isnan(logsumexp)[..., None], jnp.nan, output)
