"""Fully masked queries and non-finite inputs, around the call of a library."""

from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp
from jax import Array

from attention.primitives.arguments import Arguments
from attention.primitives.dense_mask import dense_mask
from attention.primitives.nonfinite import (
    attends_to_nonfinite,
    replace_nonfinite,
    set_nonfinite_rows,
)


def handle_edge_cases(
    arguments: Arguments, attention: Callable[[Arguments], Array], visible: Array | None = None
) -> Array:
    """Return the output of `attention`: 0 for fully masked queries, NaN for visible NaN.

    Args:
        arguments: the validated arguments.
        attention: a function of arguments with finite inputs, to finite `[..., T, N, Hv]`.
        visible: bool that broadcasts to `[..., T, N]`, False for fully masked queries; None = there
            is none.
    """
    query, key, value, nonfinite_queries, nonfinite_keys = replace_nonfinite(
        arguments.query, arguments.key, arguments.value, arguments.nonfinite_keys
    )
    arguments = replace(arguments, query=query, key=key, value=value, nonfinite_keys=None)
    output = attention(arguments)
    if visible is not None:
        visible = jnp.broadcast_to(visible, query.shape[:-1])
        output = jnp.where(visible[..., None], output, 0)
    dense = with_dense_mask(arguments)
    rows = attends_to_nonfinite(dense, nonfinite_queries, nonfinite_keys)
    return set_nonfinite_rows(output, rows, _affected_inputs(dense, rows))


def _affected_inputs(arguments: Arguments, rows: Array) -> Array:
    """Return a sum of the inputs that need a NaN gradient: `[..., T, N, 1]`.

    These are the queries of NaN output rows, and the keys and values that they attend to. `where`
    gives all others gradient 0; a product with NaN would give them 0 · NaN.

    Args:
        arguments: with the mask as `allowed`, and finite inputs.
        rows: bool `[..., T, N]`, True for output rows that are NaN.
    """
    query, key, value = (
        array.astype(jnp.float32).sum(axis=-1, keepdims=True)
        for array in (arguments.query, arguments.key, arguments.value)
    )
    affected = jnp.swapaxes(rows, -1, -2)[..., None]  # [..., N, T, 1]
    if arguments.allowed is not None:
        affected = affected & arguments.allowed
    affected = affected.any(axis=-2)  # [..., N, S|1]
    groups = (*affected.shape[:-2], key.shape[-2], -1, affected.shape[-1])
    keys = jnp.swapaxes(affected.reshape(groups).any(axis=-2), -1, -2)  # [..., S|1, K]
    total = jnp.where(keys[..., None], key + value, 0).sum(axis=-3, keepdims=True)
    total = jnp.repeat(total, rows.shape[-1] // key.shape[-2], axis=-2)  # [..., 1, N, 1]
    return jnp.where(rows[..., None], query, 0) + total


def with_dense_mask(arguments: Arguments) -> Arguments:
    """Return the arguments with any mask as `allowed`, with all batch axes (which may be 1)."""
    allowed = dense_mask(arguments)
    if allowed is None:
        return arguments
    missing = len(arguments.batch) + 3 - allowed.ndim
    allowed = allowed.reshape((1,) * missing + allowed.shape)
    return replace(arguments, mask=None, block_mask=None, allowed=allowed)
