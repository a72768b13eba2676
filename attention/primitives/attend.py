"""What attention means: one head, then many heads, groups and batches of it by `vmap` alone."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from attention.primitives import dispatch, statistics
from attention.primitives.batch import over_batch
from attention.primitives.pytree_dataclass import array_field, pytree_dataclass, static
from attention.primitives.dispatch import Choice, Implementation
from attention.primitives.dropout import Dropout, keep_factor
from attention.primitives.kernels import flash
from attention.primitives.masks import Mask
from attention.primitives.quarantine import quarantine
from attention.primitives.request import Request, checked
from attention.primitives.scores import Score
from attention.primitives.sinks import share_with_sinks
from attention.primitives.softmax import softmax
from attention.primitives.tiled.attention import attend_in_tiles
from attention.primitives.vendor import cudnn, jax_nn, splash


def scaled_dot_product(
    query: Array,
    key: Array,
    value: Array,
    allowed: ArrayLike = True,
    scale: ArrayLike | None = None,
    keep: ArrayLike = 1.0,
    score: Callable[[Array], Array] = lambda scores: scores,
    broken: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Attention of one head: softmax(q kᵀ / √d + mask) v (Vaswani et al. 2017, equation 1).

    query [T, H], key [S, H], value [S, Hv]; allowed bool [T, S], True = may attend; keep [T, S]
    multiplies the weights (dropout); broken bool [S] as in `attend`.
    Returns output [T, Hv], weights [T, S], logsumexp [T].
    """
    dtype = query.dtype
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    query, key, value, poison = quarantine(query, key, value, allowed, broken)  # float32 at least
    scores = score(scale * jnp.einsum("TH,SH->TS", query, key, precision="highest"))
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
    score: Callable[[Array, Array], Array] | None = None,
    heads: Array | None = None,
    broken: Array | None = None,
) -> tuple[Array, Array, Array]:
    """`scaled_dot_product` over the head axis; all heads share the mask.

    query [T, N, H], key [S, N, H], value [S, N, Hv], allowed [T, S], keep [N, T, S]; score maps
    (scores [T, S], head) to scores, with heads [N], 0 to N - 1 by default; broken [S, N].
    Returns output [T, N, Hv], weights [N, T, S], logsumexp [N, T].
    """
    heads = jnp.arange(query.shape[1]) if heads is None else heads

    def one_head(
        query: Array,
        key: Array,
        value: Array,
        keep: Array | None,
        broken: Array | None,
        head: Array,
    ) -> tuple[Array, Array, Array]:
        change = (lambda scores: scores) if score is None else (lambda scores: score(scores, head))
        kept = 1.0 if keep is None else keep
        return scaled_dot_product(query, key, value, allowed, scale, kept, change, broken)

    axes = (1, 1, 1, None if keep is None else 0, None if broken is None else 1, 0)
    each = jax.vmap(one_head, in_axes=axes, out_axes=(1, 0, 0))
    return each(query, key, value, keep, broken, heads)


def grouped_query(
    query: Array,
    key: Array,
    value: Array,
    allowed: ArrayLike = True,
    scale: ArrayLike | None = None,
    keep: Array | None = None,
    score: Callable[[Array, Array], Array] | None = None,
    broken: Array | None = None,
) -> tuple[Array, Array, Array]:
    """`multi_head` over the G query heads of a group, with key and value held still.

    One key/value head is multi-query attention (Shazeer 2019), one per query head is multi-head
    attention; between them lies grouped-query attention (Ainslie et al. 2023).

    query [T, N, H], key [S, K, H], value [S, K, Hv], allowed [T, S], keep [N, T, S]; score as in
    `multi_head`, broken [S, K]. Returns output [T, N, Hv], weights [N, T, S], logsumexp [N, T].
    """
    num_heads, num_kv_heads = query.shape[1], key.shape[1]
    if num_heads == num_kv_heads:  # an axis of groups of one would only cost time
        return multi_head(query, key, value, allowed, scale, keep, score, broken=broken)

    def split(array: Array, axis: int) -> Array:  # N -> K, G: query head n reads key head n // G
        groups = num_kv_heads, num_heads // num_kv_heads
        return array.reshape(*array.shape[:axis], *groups, *array.shape[axis + 1 :])

    def merge(array: Array, axis: int) -> Array:
        return array.reshape(*array.shape[:axis], num_heads, *array.shape[axis + 2 :])

    def one_group(query: Array, keep: Array | None, heads: Array) -> tuple[Array, Array, Array]:
        return multi_head(query, key, value, allowed, scale, keep, score, heads, broken)

    dropped = None if keep is None else 1
    groups = jax.vmap(one_group, in_axes=(2, dropped, 1), out_axes=(2, 1, 1))
    keep = None if keep is None else split(keep, 0)
    output, weights, logsumexp = groups(split(query, 1), keep, split(jnp.arange(num_heads), 0))
    return merge(output, 1), merge(weights, 0), merge(logsumexp, 0)


def attend(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Mask | ArrayLike | None = None,
    score: Score | Collection[Score] = (),
    positions: tuple[ArrayLike, ArrayLike] | None = None,
    scale: float | Array | None = None,
    dropout: Dropout | None = None,
    returning: Collection[str] = (),
    num_strongest: int = 1,
    broken: ArrayLike | None = None,
    implementation: str | None = None,
) -> Array | tuple[Array, dict[str, Array]]:
    """Attention of every query head over the key/value head of its group, for a batch.

    Args:
        query: `[..., T, N, H]`.
        key: `[..., S, K, H]`; K divides N, and query head n reads key head n // G.
        value: `[..., S, K, Hv]`.
        mask: who may attend to whom. A mask of `attention.masks`, a predicate on positions; or a
            bool array `[..., T, S]` (row = query, column = key, True = may attend).
        score: changes the scaled products before the mask: one of `attention.scores`, or a tuple of
            them, applied in its order.
        positions: `(query_positions [..., T], key_positions [..., S])`, integers. Without them
            both count from 0, which a mask that compares the two accepts only when T = S.
        scale: factor of the products, one number for all; 1/√H by default.
        dropout: drops weights after the softmax; there is none without it.
        returning: what else to return, by name (before dropout). Asking never changes the output.

            - "weights" `[..., N, T, S]`, "logsumexp" `[..., N, T]`;
            - "entropy" `[..., N, T]` of the weights, in nats;
            - "mean_distance" `[..., N, T]`, of the positions of query and key, by weight;
            - "largest_score" `[..., N, T]`, without gradient; -inf for a query that sees nothing;
            - "strongest": a pair of weights and key indices `[..., N, T, num_strongest]`, the
              largest first and -1 for a key without weight; without gradient.
        num_strongest: for "strongest".
        broken: bool `[..., S, K]`, True where a key or its value held a NaN or an infinity, in
            whose place zeros stand, as in a `Cache`; whoever sees such a key gets NaN. Who gives it
            vouches that all are finite, and none is looked at. None: they are looked at here, which
            costs as much as attending to them a few times.
        implementation: "reference", "tiled", "jax", "cudnn", "pallas" or "splash": that one, or an
            error that says why not. None chooses; `explain` tells what and why. "cudnn" (GPU)
            and "splash" (TPU) have a gradient of their own, and other derivatives from "tiled".

    Returns:
        The output `[..., T, N, Hv]` in the query's dtype, or with `returning` a pair of it and a
        dict with the names asked for. A query that may see nothing gets output 0, weights 0 and
        logsumexp -inf; one that may see a NaN or an infinity gets NaN, and no other query does.

    Raises:
        ValueError: shapes that do not fit, in a sentence that names the axis and both sizes; an
            implementation that cannot do this, with the reason and those that could.
        TypeError: a mask that is neither a predicate nor bool, inputs that are not floats.
    """
    asked = checked(
        query,
        key,
        value,
        mask=mask,
        score=score,
        positions=positions,
        scale=scale,
        dropout=dropout,
        returning=returning,
        num_strongest=num_strongest,
        broken=broken,
    )
    found = dispatch.choose(asked, implementation, IMPLEMENTATIONS).implementation.run(asked)
    output = found["output"]
    return (output, {name: found[name] for name in returning}) if returning else output


def explain(
    query: Array,
    key: Array,
    value: Array,
    **arguments: Any,  # noqa: ANN401 - those of attend
) -> Choice:
    """What `attend` would compute these arguments with, and why; printed, it says so in words.

    >>> from attention import explain
    >>> query = key = value = jax.numpy.ones((6, 2, 4))
    >>> print(explain(query, key, value, implementation="reference"))
    reference: asked for by name
    """
    name = arguments.pop("implementation", None)
    return dispatch.choose(checked(query, key, value, **arguments), name, IMPLEMENTATIONS)


@partial(jax.jit, inline=True)
def attend_by_definition(request: Request) -> dict[str, Array]:
    """`grouped_query` for a batch, with the whole `[..., N, T, S]` in memory."""
    score_arrays = [pair for score in request.scores for pair in arrays(score)]
    keep = None
    if request.dropout is not None:
        num_heads, positions = (
            request.query.shape[-2],
            (request.query_positions, request.key_positions),
        )
        keep = keep_factor(request.dropout, num_heads, *positions)

    def example(
        query: Array,
        key: Array,
        value: Array,
        allowed: Array | None,
        keep: Array | None,
        broken: Array | None,
        query_positions: Array,
        key_positions: Array,
        *score_arrays: Array,
    ) -> tuple[Array, Array, Array]:
        given = iter(score_arrays)
        scores = [map_arrays(score, lambda _, rank: next(given)) for score in request.scores]

        def change(values: Array, head: Array) -> Array:
            for score in scores:
                values = score(values, query_positions[:, None], key_positions[None, :], head)
            return values

        everything = True if allowed is None else allowed
        return grouped_query(query, key, value, everything, request.scale, keep, change, broken)

    output, weights, logsumexp = over_batch(
        example,
        {
            "query": (request.query, 3),
            "key": (request.key, 3),
            "value": (request.value, 3),
            "mask": (request.allowed(), 2),
            "dropout.key": (keep, 3),
            "broken": (request.broken, 2),
            "query_positions": (request.query_positions, 1),
            "key_positions": (request.key_positions, 1),
            **{f"score array {n}": pair for n, pair in enumerate(score_arrays)},
        },
        request.batch,
    )
    found = {"output": output, "weights": weights, "logsumexp": logsumexp}
    if "largest_score" in request.returning:  # which a sink does not change
        found["largest_score"] = statistics.largest_score(found)
    found = share_with_sinks(found, request.sinks)
    return found | {
        name: statistics.BY_NAME[name](found, request)
        for name in request.returning
        if name in statistics.BY_NAME
    }


def _few_pairs(request: Request) -> str | None:
    if request.query.shape[-3] * request.key.shape[-3] <= FEW_PAIRS:
        return "so few pairs fit a cache as they are"
    return None


def _fills_a_block(request: Request) -> str | None:
    return None if request.query.shape[-3] < FEW_QUERIES else "its kernel computes all of this"


def _empty(request: Request) -> str | None:
    if 0 in (*request.query.shape, *request.key.shape, *request.value.shape):
        return "there is nothing to cut into tiles"
    return None


# Up to this many pairs of one head, tiles cost more than they save (measured on a CPU).
FEW_PAIRS = 64 * 64

# So few queries, as when decoding one at a time, fill no block of a kernel.
FEW_QUERIES = 16

IMPLEMENTATIONS = (
    Implementation(
        "cudnn",
        refusal=cudnn.refusal,
        run=cudnn.attend_by_cudnn,
        preference=_fills_a_block,
    ),
    Implementation(
        "splash",
        refusal=splash.refusal,
        run=splash.attend_by_splash,
        preference=_fills_a_block,
    ),
    Implementation(
        "pallas",
        refusal=flash.refusal,
        run=flash.attend_by_kernel,
        preference=_fills_a_block,
    ),
    Implementation(
        "tiled",
        refusal=_empty,
        run=attend_in_tiles,
        preference=lambda request: (
            None if _few_pairs(request) else "linear in memory, and never visits a ruled-out tile"
        ),
    ),
    Implementation(
        "jax",
        refusal=jax_nn.refusal,
        run=jax_nn.attend_by_jax_nn,
        preference=lambda request: None,  # holds every score in memory, as the reference does
    ),
    Implementation(
        "reference",
        refusal=lambda request: None,
        run=attend_by_definition,
        preference=lambda request: _few_pairs(request) or "there is nothing to cut into tiles",
    ),
)
