"""What libraries get wrong at the edges of a mask, mended around their call."""

from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp
from jax import Array

from attention.primitives.quarantine import finite
from attention.primitives.request import Request
from attention.primitives.tiled.poison import sees_non_finite


def repaired(
    request: Request, attention: Callable[[Request], Array], sees: Array | None = None
) -> Array:
    """The output of `attention`, which may know nothing of empty rows and of NaN behind a mask.

    Args:
        request: what to compute.
        attention: of a request with finite inputs, to `[..., T, N, Hv]`; what it returns for a
            query that sees nothing is finite, and does not matter.
        sees: bool `[..., T, N]` or one that broadcasts to it, false for a query that may see
            nothing; None if there is no such query.
    """
    query, key, value, query_ok, key_ok = finite(
        request.query, request.key, request.value, request.broken
    )
    output = attention(replace(request, query=query, key=key, value=value, broken=None))
    if sees is not None:
        sees = jnp.broadcast_to(sees, request.query.shape[:-1])
        output = jnp.where(sees[..., None], output, 0)
    poisoned = sees_non_finite(request, query_ok, key_ok)
    return jnp.where(poisoned[..., None], jnp.nan, output)
