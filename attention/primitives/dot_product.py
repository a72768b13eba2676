"""The definition of attention: one head, then many heads, groups and batches of it by `vmap`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from attention.primitives.arguments import Arguments
from attention.primitives.batch import over_batch
from attention.primitives.dense_mask import dense_mask
from attention.primitives.dropout import keep_factor
from attention.primitives.nonfinite import nan_rows, nan_where, replace_nonfinite
from attention.primitives.precision import score_dtype
from attention.primitives.scores import Score, apply_scores
from attention.primitives.softmax import share_with_sinks, softmax

Tree = Any


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
    finite_query, key, value, *flags = replace_nonfinite(query, key, value, nonfinite_keys)
    nan = nan_where(flags[0][:, None] | flags[1][None, :], dtype)
    scores = score(scale * product("TH,SH->TS", finite_query, key, dtype, precision)) + nan
    weights, logsumexp = softmax(jnp.where(allowed, scores, -jnp.inf))
    weights = jnp.where(allowed, weights, 0)  # 0 already, unless the row attends to a NaN
    output = product("TS,SH->TH", (keep * weights).astype(value.dtype), value, dtype, precision)
    return nan_rows(output, logsumexp).astype(query.dtype), weights, logsumexp


def product(equation: str, left: Array, right: Array, dtype: jnp.dtype, precision: str) -> Array:
    """Multiply in the dtype of the factors (`dtype` if they differ), and accumulate in `dtype`."""
    factors = left.dtype if left.dtype == right.dtype else dtype
    left, right = left.astype(factors), right.astype(factors)
    return jnp.einsum(equation, left, right, precision=precision, preferred_element_type=dtype)


def multi_head(
    query: Array,
    key: Array,
    value: Array,
    allowed: ArrayLike = True,
    scale: ArrayLike | None = None,
    keep: Array | None = None,
    score: Callable[[Array, Tree], Array] | None = None,
    heads: Tree | None = None,
    nonfinite_keys: Array | None = None,
    precision: str = "highest",
) -> tuple[Array, Array, Array]:
    """`scaled_dot_product` over the head axis.

    query [T, N, H], key [S, N, H], value [S, N, Hv]; allowed [T, S] for all heads, or [N, T, S];
    keep [N, T, S]; nonfinite_keys [S, N]; score maps (scores [T, S], head) to scores, where head is
    an entry of heads [N], 0 to N - 1 by default, or of each array [N, ...] of a tree. Returns
    output [T, N, Hv], weights [N, T, S], logsumexp [N, T].
    """
    heads = jnp.arange(query.shape[1]) if heads is None else heads

    def one_head(
        query: Array,
        key: Array,
        value: Array,
        allowed: ArrayLike,
        keep: Array | None,
        nonfinite_keys: Array | None,
        head: Tree,
    ) -> tuple[Array, Array, Array]:
        change = (lambda scores: scores) if score is None else (lambda scores: score(scores, head))
        keep = 1.0 if keep is None else keep
        return scaled_dot_product(
            query, key, value, allowed, scale, keep, change, nonfinite_keys, precision
        )

    per_head = 0 if jnp.ndim(allowed) == 3 else None
    each = jax.vmap(one_head, in_axes=(1, 1, 1, per_head, 0, 1, 0), out_axes=(1, 0, 0))
    return each(query, key, value, allowed, keep, nonfinite_keys, heads)


def grouped_query(
    query: Array,
    key: Array,
    value: Array,
    allowed: ArrayLike = True,
    scale: ArrayLike | None = None,
    keep: Array | None = None,
    score: Callable[[Array, Tree], Array] | None = None,
    heads: Tree | None = None,
    nonfinite_keys: Array | None = None,
    precision: str = "highest",
) -> tuple[Array, Array, Array]:
    """`multi_head` over the G query heads of each group, with key and value unbatched.

    One key/value head is multi-query attention (Shazeer 2019), one per query head is multi-head
    attention; numbers between are grouped-query attention (Ainslie et al. 2023).

    query [T, N, H], key [S, K, H], value [S, K, Hv]; allowed [T, S] or [N, T, S]; keep [N, T, S];
    score and heads [N] as in `multi_head`; nonfinite_keys [S, K].
    Returns output [T, N, Hv], weights [N, T, S], logsumexp [N, T].
    """
    num_heads, num_kv_heads = query.shape[1], key.shape[1]
    heads = jnp.arange(num_heads) if heads is None else heads
    if num_heads == num_kv_heads:  # an axis of groups of one would only cost time
        return multi_head(
            query, key, value, allowed, scale, keep, score, heads, nonfinite_keys, precision
        )

    def split(array: Array, axis: int) -> Array:  # N -> K, G: query head n reads key head n // G
        groups = num_kv_heads, num_heads // num_kv_heads
        return array.reshape(*array.shape[:axis], *groups, *array.shape[axis + 1 :])

    def merge(array: Array, axis: int) -> Array:
        return array.reshape(*array.shape[:axis], num_heads, *array.shape[axis + 2 :])

    def one_group(
        query: Array, allowed: ArrayLike, keep: Array | None, heads: Tree
    ) -> tuple[Array, Array, Array]:
        return multi_head(
            query, key, value, allowed, scale, keep, score, heads, nonfinite_keys, precision
        )

    per_head = jnp.ndim(allowed) == 3
    axes = (2, 1 if per_head else None, 1, 1)
    groups = jax.vmap(one_group, in_axes=axes, out_axes=(2, 1, 1))
    output, weights, logsumexp = groups(
        split(query, 1),
        split(allowed, 0) if per_head else allowed,
        None if keep is None else split(keep, 0),
        jax.tree.map(lambda array: split(array, 0), heads),
    )
    return merge(output, 1), merge(weights, 0), merge(logsumexp, 0)


@partial(jax.jit, inline=True)
def attend_by_definition(arguments: Arguments) -> dict[str, Array]:
    """`grouped_query` for a batch, with all weights `[..., N, T, S]` in memory."""

    def example(one: Arguments) -> dict[str, Array]:
        rows, columns = one.query_positions[:, None], one.key_positions[None, :]
        allowed = dense_mask(one)
        if allowed is None:
            allowed = True
        elif allowed.shape[0] == 1:
            allowed = allowed[0]
        keep = None
        if one.dropout is not None:
            keep = keep_factor(one.dropout, one.heads, one.query_positions, one.key_positions)

        def change(values: Array, given: tuple[Array, list[Score | None]]) -> Array:
            head, of_head = given
            return apply_scores(one.scores, of_head, values, rows, columns, head)

        output, weights, logsumexp = grouped_query(
            one.query,
            one.key,
            one.value,
            allowed,
            one.scale,
            keep,
            change,
            (one.heads, [score.by_head() for score in one.scores]),
            one.nonfinite_keys,
            one.precision,
        )
        return {"output": output, "weights": weights, "logsumexp": logsumexp}

    return _with_sinks(over_examples(example, arguments), arguments)


def over_examples(example: Callable[[Arguments], Tree], arguments: Arguments) -> Tree:
    """Map a function of the arguments of one example, without batch axes, over the batch axes."""
    return over_batch(example, (arguments,), (None,), arguments.batch)


def _with_sinks(results: dict[str, Array], arguments: Arguments) -> dict[str, Array]:
    if "largest_score" in arguments.returning:  # without sinks, beside which it may round to 0
        largest = jnp.log(jnp.max(results["weights"], axis=-1, initial=0)) + results["logsumexp"]
        empty = jnp.isneginf(results["logsumexp"])
        largest = jnp.where(empty, -jnp.inf, largest)
        results = results | {"largest_score": jax.lax.stop_gradient(largest)}
    return share_with_sinks(results, arguments.sinks)
