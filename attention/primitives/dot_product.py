"""The definition of attention: one head, then many heads, groups and batches of it by `vmap`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from attention.primitives.arguments import Arguments
from attention.primitives.dropout import keep_factor
from attention.primitives.numerics import (
    nan_rows,
    nan_where,
    product,
    replace_nonfinite,
    replace_nonfinite_keys,
    score_dtype,
    share_with_sinks,
    softmax,
)
from attention.primitives.pytree_dataclass import array_field, pytree_dataclass
from attention.primitives.vectorize import Cut, over_batch, over_heads, with_axes_of_one

Tree = Any

checkpoint = partial(jax.checkpoint, prevent_cse=False)


def scaled_dot_product(
    query: Array,
    key: Array,
    value: Array,
    allowed: ArrayLike = True,
    scale: ArrayLike | None = None,
    keep: ArrayLike = 1.0,
    score: Callable[[Array], Array] = lambda scores: scores,
    nonfinite_keys: Array | None = None,
    precision: str = "highest",
) -> tuple[Array, Array, Array]:
    """Attention of one head: softmax(q kᵀ / √d + mask) v (Vaswani et al. 2017, equation 1).

    query [T, H], key [S, H], value [S, Hv]; allowed bool [T, S], True = may attend; keep [T, S] for
    dropout; nonfinite_keys [S]. Returns output [T, Hv], weights [T, S], logsumexp [T].
    """
    dtype = score_dtype(query, key, value)
    scale = jnp.asarray(query.shape[-1] ** -0.5 if scale is None else scale, dtype)
    finite_query, nonfinite_queries = replace_nonfinite(query)
    if nonfinite_keys is None:
        key, value, nonfinite_keys = replace_nonfinite_keys(key, value)
    scores = score(scale * product("TH,SH->TS", finite_query, key, dtype, precision))
    scores = scores + nan_where(nonfinite_queries, dtype)[:, None]
    output, *more = attention_from_scores(scores, value, allowed, keep, nonfinite_keys, precision)
    return output.astype(query.dtype), *more


def attention_from_scores(
    scores: Array,
    value: Array,
    allowed: ArrayLike = True,
    keep: ArrayLike = 1.0,
    nonfinite_keys: Array | None = None,
    precision: str = "highest",
) -> tuple[Array, Array, Array]:
    """Softmax over the keys of any scores of one head, and the weighted sum of the values.

    scores [T, S] in float32 or float64; value [S, Hv]; allowed, keep and nonfinite_keys as in
    `scaled_dot_product`, and so are the results, but for the dtype of the output, which is that of
    the scores.
    """
    if nonfinite_keys is None:
        value, nonfinite_keys = replace_nonfinite(value)
    scores = scores + nan_where(nonfinite_keys, scores.dtype)[None, :]
    weights, logsumexp = softmax(jnp.where(allowed, scores, -jnp.inf))
    weights = jnp.where(allowed, weights, 0)  # 0 already, unless the row attends to a NaN
    kept = (keep * weights).astype(value.dtype)
    output = product("TS,SH->TH", kept, value, scores.dtype, precision)
    return nan_rows(output, logsumexp), weights, logsumexp


def multi_head(
    query: Array,
    key: Array,
    value: Array,
    allowed: ArrayLike = True,
    scale: ArrayLike | None = None,
) -> tuple[Array, Array, Array]:
    """`scaled_dot_product` over the head axis.

    query [T, N, H], key [S, N, H], value [S, N, Hv]; allowed [T, S] for all heads, or [N, T, S].
    Returns output [T, N, Hv], weights [N, T, S], logsumexp [N, T].
    """
    one_head = partial(scaled_dot_product, scale=scale)
    per_head = 0 if jnp.ndim(allowed) == 3 else None
    heads = jax.vmap(one_head, in_axes=(1, 1, 1, per_head), out_axes=(1, 0, 0))
    return heads(query, key, value, allowed)


def grouped_query(
    query: Array,
    key: Array,
    value: Array,
    allowed: ArrayLike = True,
    scale: ArrayLike | None = None,
) -> tuple[Array, Array, Array]:
    """`multi_head` over the G query heads of each group, with key and value unbatched.

    One key/value head is multi-query attention (Shazeer 2019), one per query head is multi-head
    attention; numbers between are grouped-query attention (Ainslie et al. 2023).

    query [T, N, H], key [S, K, H], value [S, K, Hv]; allowed [T, S] or [N, T, S]. Returns output
    [T, N, Hv], weights [N, T, S], logsumexp [N, T].
    """
    num_queries, num_heads, _ = query.shape
    groups = key.shape[1], num_heads // key.shape[1]  # K, G: query head n reads key head n // G
    per_head = 0 if jnp.ndim(allowed) == 3 else None
    if per_head == 0:
        allowed = jnp.reshape(allowed, (*groups, *allowed.shape[1:]))

    one_query = jax.vmap(  # over G
        partial(scaled_dot_product, scale=scale),
        in_axes=(1, None, None, per_head),
        out_axes=(1, 0, 0),
    )
    each_group = jax.vmap(one_query, in_axes=(1, 1, 1, per_head), out_axes=(1, 0, 0))
    query = query.reshape(num_queries, *groups, -1)
    output, weights, logsumexp = each_group(query, key, value, allowed)
    return (
        output.reshape(num_queries, num_heads, -1),
        weights.reshape(num_heads, *weights.shape[2:]),
        logsumexp.reshape(num_heads, -1),
    )


@pytree_dataclass
class Products:
    """Numbers `[..., N, T, S]` in place of the scaled products of query and key."""

    array: Array = array_field("NTS")


@partial(jax.jit, static_argnames=("platform", "examples", "kv_heads"), inline=True)
def attend_by_definition(
    arguments: Arguments,
    platform: str | None = None,
    products: Products | None = None,
    examples: tuple[Cut, ...] | None = None,
    kv_heads: Cut | None = None,
) -> dict[str, Array]:
    """Return "output", "logsumexp" and what `arguments.returning` names, from weights in memory.

    With `products`, non-finite queries and keys are flagged in the arguments. With `examples`,
    as many are computed at a time, and derivatives compute each of them again; with `kv_heads` of
    several steps, each head.
    """
    kv_heads = kv_heads or Cut(1, 1, arguments.key.shape[-2])

    one_head = checkpoint(attend_one_head) if kv_heads.steps > 1 else attend_one_head

    def example(one: Arguments, *products: Products) -> dict[str, Array]:
        results = over_heads(one_head, (one.by_index(), *products), kv_heads)
        return results | {"output": jnp.swapaxes(results["output"], 0, 1)}

    trees = (arguments,) if products is None else (arguments, products)
    example = example if examples is None else checkpoint(example)
    results = over_batch(example, trees, arguments.batch, examples)
    return share_with_sinks(results, arguments.sinks)


def attend_one_head(one: Arguments, products: Products | None = None) -> dict[str, Array]:
    """`scaled_dot_product` or `attention_from_scores` of the arguments of one head."""
    one = with_axes_of_one(one)
    rows, columns = one.query_positions[:, None], one.key_positions[None, :]
    allowed, keep = True if one.mask is None else one.mask(rows, columns), 1.0
    if one.dropout is not None:
        keep = keep_factor(one.dropout, one.heads, one.query_positions, one.key_positions)

    def score(scores: Array) -> Array:
        for function in one.scores:
            scores = function(scores, rows, columns, one.heads)
        return scores

    more = one.nonfinite_keys, one.precision
    if products is None:
        inputs = one.query, one.key, one.value
        results = scaled_dot_product(*inputs, allowed, one.scale, keep, score, *more)
    else:
        scores = score(products.array) + nan_where(one.nonfinite_queries, one.dtype)[:, None]
        results = attention_from_scores(scores, one.value, allowed, keep, *more)
    output, weights, logsumexp = results
    results = {"output": output.astype(one.query.dtype), "logsumexp": logsumexp}
    if "weights" in one.returning:
        results["weights"] = weights
    if "largest_score" in one.returning:
        largest = jnp.log(jnp.max(weights, axis=-1, initial=0)) + logsumexp
        largest = jnp.where(jnp.isneginf(logsumexp), -jnp.inf, largest)
        results["largest_score"] = jax.lax.stop_gradient(largest)
    return results
