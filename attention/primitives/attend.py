"""What attention means: one head, then many heads, groups and batches of it by `vmap` alone."""

from collections.abc import Collection

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from attention.primitives import checks
from attention.primitives.batch import over_batch
from attention.primitives.dense_mask import allowed_pairs
from attention.primitives.dropout import Dropout, keep_factor
from attention.primitives.masks import Mask
from attention.primitives.quarantine import quarantine
from attention.primitives.softmax import softmax


def scaled_dot_product(
    query: Array,
    key: Array,
    value: Array,
    allowed: ArrayLike = True,
    scale: ArrayLike | None = None,
    keep: ArrayLike = 1.0,
) -> tuple[Array, Array, Array]:
    """Attention of one head: softmax(q kᵀ / √d + mask) v (Vaswani et al. 2017, equation 1).

    query [T, H], key [S, H], value [S, Hv]; allowed bool [T, S], True = may attend; keep [T, S]
    multiplies the weights (dropout). Returns output [T, Hv], weights [T, S], logsumexp [T].
    """
    dtype = query.dtype
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    query, key, value, poison = quarantine(query, key, value, allowed)  # at least float32
    scores = scale * jnp.einsum("TH,SH->TS", query, key, precision="highest")
    weights, logsumexp = softmax(jnp.where(allowed, scores, -jnp.inf))
    weights = jnp.where(allowed, weights, 0)  # 0 already, and so is now all that comes back
    output = jnp.einsum("TS,SH->TH", keep * weights, value, precision="highest")
    return poison(output).astype(dtype), poison(weights), poison(logsumexp)


def multi_head(
    query: Array,
    key: Array,
    value: Array,
    allowed: ArrayLike = True,
    scale: ArrayLike | None = None,
    keep: Array | None = None,
) -> tuple[Array, Array, Array]:
    """`scaled_dot_product` over the head axis; all heads share the mask.

    query [T, N, H], key [S, N, H], value [S, N, Hv], allowed [T, S], keep [N, T, S].
    Returns output [T, N, Hv], weights [N, T, S], logsumexp [N, T].
    """
    dropped = None if keep is None else 0
    heads = jax.vmap(scaled_dot_product, in_axes=(1, 1, 1, None, None, dropped), out_axes=(1, 0, 0))
    return heads(query, key, value, allowed, scale, 1.0 if keep is None else keep)


def grouped_query(
    query: Array,
    key: Array,
    value: Array,
    allowed: ArrayLike = True,
    scale: ArrayLike | None = None,
    keep: Array | None = None,
) -> tuple[Array, Array, Array]:
    """`multi_head` over the G query heads of a group, with key and value held still.

    One key/value head is multi-query attention (Shazeer 2019), one per query head is multi-head
    attention; between them lies grouped-query attention (Ainslie et al. 2023).

    query [T, N, H], key [S, K, H], value [S, K, Hv], allowed [T, S], keep [N, T, S].
    Returns output [T, N, Hv], weights [N, T, S], logsumexp [N, T].
    """
    num_heads, num_kv_heads = query.shape[1], key.shape[1]

    def split(array: Array, axis: int) -> Array:  # N -> K, G: query head n reads key head n // G
        groups = num_kv_heads, num_heads // num_kv_heads
        return array.reshape(*array.shape[:axis], *groups, *array.shape[axis + 1 :])

    def merge(array: Array, axis: int) -> Array:
        return array.reshape(*array.shape[:axis], num_heads, *array.shape[axis + 2 :])

    groups = jax.vmap(multi_head, in_axes=(2, None, None, None, None, 1), out_axes=(2, 1, 1))
    output, weights, logsumexp = groups(
        split(query, 1), key, value, allowed, scale, None if keep is None else split(keep, 0)
    )
    return merge(output, 1), merge(weights, 0), merge(logsumexp, 0)


def attend(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Mask | ArrayLike | None = None,
    positions: tuple[ArrayLike, ArrayLike] | None = None,
    scale: float | Array | None = None,
    dropout: Dropout | None = None,
    returning: Collection[str] = (),
) -> Array | tuple[Array, dict[str, Array]]:
    """Attention of every query head over the key/value head of its group, for a batch.

    Args:
        query: `[..., T, N, H]`.
        key: `[..., S, K, H]`; K divides N, and query head n reads key head n // G.
        value: `[..., S, K, Hv]`.
        mask: who may attend to whom. A mask of `attention.masks`, a predicate on positions; or a
            bool array `[..., T, S]` (row = query, column = key, True = may attend).
        positions: `(query_positions [..., T], key_positions [..., S])`, integers. Without them
            both count from 0, which a mask that compares the two accepts only when T = S.
        scale: factor of the scores, one number for all; 1/√H by default.
        dropout: drops weights after the softmax; there is none without it.
        returning: what else to return, any of "weights" `[..., N, T, S]` (before dropout) and
            "logsumexp" `[..., N, T]`. Asking never changes the output.

    Returns:
        The output `[..., T, N, Hv]` in the query's dtype, or with `returning` a pair of it and a
        dict with the names asked for. A query that may see nothing gets output 0, weights 0 and
        logsumexp -inf; one that may see a NaN or an infinity gets NaN, and no other query does.

    Raises:
        ValueError: shapes that do not fit, in a sentence that names the axis and both sizes.
        TypeError: a mask that is neither a predicate nor bool, inputs that are not floats.
    """
    checks.shapes(query, key, value)
    checks.scale(scale)
    checks.names("returning", returning, ("weights", "logsumexp"))
    *batch, num_queries, num_heads, _ = query.shape
    query_positions, key_positions = checks.positions(positions, batch, num_queries, key.shape[-3])
    allowed = allowed_pairs(mask, query_positions, key_positions, explicit=positions is not None)
    keep = None
    if dropout is not None:
        if not isinstance(dropout, Dropout):
            raise TypeError(f"dropout must be Dropout(key, rate), got {type(dropout).__name__}")
        keep = keep_factor(dropout, num_heads, query_positions, key_positions)

    def example(
        query: Array, key: Array, value: Array, allowed: Array | None, keep: Array | None
    ) -> tuple[Array, Array, Array]:
        everything = True if allowed is None else allowed
        return grouped_query(query, key, value, everything, scale, keep)

    output, weights, logsumexp = over_batch(
        example,
        {
            "query": (query, 3),
            "key": (key, 3),
            "value": (value, 3),
            "mask": (allowed, 2),
            "dropout.key": (keep, 3),
        },
        batch,
    )
    extras = {"weights": weights, "logsumexp": logsumexp}
    return (output, {name: extras[name] for name in returning}) if returning else output
