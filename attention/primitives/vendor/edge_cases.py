"""Fully masked queries and non-finite inputs, around the call of a library."""

from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp
from jax import Array

from attention.primitives.arguments import Arguments
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
    rows = attends_to_nonfinite(arguments, nonfinite_queries, nonfinite_keys)
    return set_nonfinite_rows(output, rows, query)
