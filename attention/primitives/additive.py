"""Additive attention: scores from a small network (Bahdanau et al. 2015).

Everything but the scores is as in `attend`. For multiplicative attention (Luong et al. 2015,
equation 8) call `attend` with `scale=1`: "dot" uses the queries, "general" queries times a matrix.
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
    """Return vᵀ tanh(q + k) `[..., N, T, S]` (Bahdanau et al. 2015, appendix A.1.2).

    There q = W s and k = U h are projections of a decoder state and an encoder output. Takes
    T·S·N·H numbers of memory, where a product takes T·S·N.

    Args:
        query: `[..., T, N, H]`.
        key: `[..., S, K, H]`; query head n reads key head n // G.
        vector: v of each head, `[N, H]`.
    """
    num_heads, num_kv_heads = query.shape[-2], key.shape[-2]
    groups = num_kv_heads, num_heads // num_kv_heads  # N -> K, G
    query, vector = (x.reshape(*x.shape[:-2], *groups, x.shape[-1]) for x in (query, vector))
    sums = query[..., :, None, :, :, :] + key[..., None, :, :, None, :]  # [..., T, S, K, G, H]
    scores = jnp.einsum("...TSKGH,KGH->...KGTS", jnp.tanh(sums), vector, precision="highest")
    return scores.reshape(*scores.shape[:-4], num_heads, *scores.shape[-2:])


def additive_attention(
    query: Array,
    key: Array | CacheView,
    value: Array | None = None,
    vector: Array | None = None,
    **options: Any,  # noqa: ANN401 - those of attend
) -> Any:  # noqa: ANN401 - a union would need a check at each call
    """Return what `attend` returns, with `additive_scores` in place of the scaled products.

    Args:
        query: `[..., T, N, H]`.
        key: `[..., S, K, H]`, or a view, as in `attend`.
        value: `[..., S, K, Hv]`.
        vector: `[N, H]`.
        options: the other arguments of `attend` but `scale`, `tile_sizes` and `implementation`.

    Raises:
        ValueError, TypeError: a vector that is not `[N, H]`, and as `attend`.
    """
    for name in ("scale", "tile_sizes", "implementation"):
        if name in options:
            raise TypeError(f"additive_attention has no {name}")
    arguments = check_arguments(query, key, value, **options)
    if jnp.shape(vector) != query.shape[-2:]:
        shapes = f"{query.shape[-2:]} of heads (N) and their width (H), got {jnp.shape(vector)}"
        raise ValueError(f"vector must have the shape {shapes}")
    results = _attend_additively(arguments, vector)
    more = {name: results[name] for name in arguments.returning}
    return (results["output"], more) if more else results["output"]


@jax.jit
def _attend_additively(arguments: Arguments, vector: Array) -> dict[str, Array]:
    finite, nonfinite_queries = replace_nonfinite(arguments.query)
    arguments = replace(arguments, nonfinite_queries=nonfinite_queries)
    if arguments.nonfinite_keys is None:
        key, value, nonfinite_keys = replace_nonfinite_keys(arguments.key, arguments.value)
        arguments = replace(arguments, key=key, value=value, nonfinite_keys=nonfinite_keys)
    products = additive_scores(*wide(finite, arguments.key, vector))
    return attend_by_definition(arguments, products=Products(products))
