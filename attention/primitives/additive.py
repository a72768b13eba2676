"""Additive attention: scores from a small network (Bahdanau et al. 2015).

Only the scores differ from `attend`; mask, softmax, weighted sum and returned results are the
same. For multiplicative attention (Luong et al. 2015, equation 8) call `attend` with `scale=1`:
"dot" uses the queries, "general" the queries times a matrix.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.arguments import Arguments, check_arguments
from attention.primitives.cache import CacheView
from attention.primitives.dot_product import Products, attend_by_definition
from attention.primitives.numerics import replace_nonfinite, replace_nonfinite_keys, wide


def additive_scores(query: Array, key: Array, vector: Array) -> Array:
    """Return vᵀ tanh(q + k) of every pair (Bahdanau et al. 2015, appendix A.1.2).

    There q = W s and k = U h are projections of a decoder state and an encoder output. Takes
    T·S·N·H numbers of memory, where a product takes T·S·N.

    Args:
        query: `[..., T, N, H]`.
        key: `[..., S, K, H]`; query head n reads key head n // G.
        vector: v of each head, `[N, H]`.

    Returns:
        `[..., N, T, S]`.
    """
    *batch, num_queries, num_heads, width = query.shape
    num_keys, num_kv_heads = key.shape[-3:-1]
    groups = num_kv_heads, num_heads // num_kv_heads  # N -> K, G
    query = query.reshape(*batch, num_queries, *groups, width)
    sums = query[..., :, None, :, :, :] + key[..., None, :, :, None, :]  # [..., T, S, K, G, H]
    vector = vector.reshape(*groups, width)
    scores = jnp.einsum("...TSKGH,KGH->...KGTS", jnp.tanh(sums), vector, precision="highest")
    return scores.reshape(*batch, num_heads, num_queries, num_keys)


def additive_attention(
    query: Array,
    key: Array | CacheView,
    value: Array | None = None,
    vector: Array | None = None,
    **options: Any,  # noqa: ANN401 - those of attend
) -> Array | tuple[Array, dict[str, Array]]:
    """Compute `attend` with `additive_scores` in place of the scaled products.

    Args:
        query: `[..., T, N, H]`.
        key: `[..., S, K, H]`, or a view, as in `attend`.
        value: `[..., S, K, Hv]`.
        vector: `[N, H]`.
        options: the other arguments of `attend` but `scale`, `tile_sizes` and `implementation`.

    Returns:
        As `attend`.

    Raises:
        ValueError: a vector that is not `[N, H]`; and as `attend`.
        TypeError: as `attend`.
    """
    for name in ("scale", "tile_sizes"):
        if name in options:
            raise TypeError(f"additive_attention has no {name}")
    arguments = check_arguments(query, key, value, **options)
    if jnp.shape(vector) != query.shape[-2:]:
        raise ValueError(
            f"vector must have the shape {query.shape[-2:]} of heads (N) and their width (H), "
            f"got {jnp.shape(vector)}"
        )
    results = _attend_additively(arguments, vector)
    output, names = results["output"], arguments.returning
    return (output, {name: results[name] for name in names}) if names else output


@jax.jit
def _attend_additively(arguments: Arguments, vector: Array) -> dict[str, Array]:
    """Return the results of the definition with additive scores."""
    finite, nonfinite_queries = replace_nonfinite(arguments.query)
    arguments = replace(arguments, nonfinite_queries=nonfinite_queries)
    if arguments.nonfinite_keys is None:
        key, value, nonfinite_keys = replace_nonfinite_keys(arguments.key, arguments.value)
        arguments = replace(arguments, key=key, value=value, nonfinite_keys=nonfinite_keys)
    products = additive_scores(*wide(finite, arguments.key, vector))
    return attend_by_definition(arguments, products=Products(products))
