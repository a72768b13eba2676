"""One call of `attend`, checked: what every implementation is given, and what it may refuse."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

import jax
from jax import Array
from jax.typing import ArrayLike

from attention.primitives import checks
from attention.primitives.batch import check_broadcasts
from attention.primitives.dense_mask import allowed_pairs, check_mask
from attention.primitives.dropout import Dropout
from attention.primitives.masks import Mask
from attention.primitives.scores import AttentionSinks, Score

STATISTICS = ("entropy", "mean_distance", "largest_score", "strongest")
RETURNING = ("weights", "logsumexp", *STATISTICS)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=(
        "query",
        "key",
        "value",
        "mask",
        "scores",
        "sinks",
        "query_positions",
        "key_positions",
        "scale",
        "dropout",
        "broken",
    ),
    meta_fields=("counted", "returning", "num_strongest"),
)
@dataclass(frozen=True)
class Request:
    """What to compute. Shapes fit, names are known, positions and scale are given.

    Attributes:
        query: `[..., T, N, H]`.
        key: `[..., S, K, H]`.
        value: `[..., S, K, Hv]`.
        mask: a predicate, a bool array `[..., T, S]`, or None.
        scores: applied in this order.
        sinks: take their share of the sum of the softmax.
        query_positions: int32 `[T]` or `[..., T]`.
        key_positions: int32 `[S]` or `[..., S]`.
        counted: whether both positions count from 0 because none were given.
        scale: factor of the products.
        dropout: or None.
        broken: bool `[..., S, K]`, or None.
        returning: names of what to return beside the output.
        num_strongest: how many sources "strongest" returns.
    """

    query: Array
    key: Array
    value: Array
    mask: Mask | Array | None
    scores: tuple[Score, ...]
    sinks: tuple[AttentionSinks, ...]
    query_positions: Array
    key_positions: Array
    counted: bool
    scale: float | Array
    dropout: Dropout | None
    broken: Array | None
    returning: tuple[str, ...]
    num_strongest: int

    @property
    def batch(self) -> tuple[int, ...]:
        """The leading axes."""
        return self.query.shape[:-3]

    def allowed(self) -> Array | None:
        """The mask as a bool array `[..., T, S]`."""
        return allowed_pairs(self.mask, self.query_positions, self.key_positions)


def checked(
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
) -> Request:
    """Checks the arguments of `attend`, which says what they are.

    Raises:
        TypeError: an argument of another kind.
        ValueError: shapes that do not fit, unknown names.
    """
    checks.shapes(query, key, value)
    checks.scale(scale)
    checks.names("returning", returning, RETURNING)
    *batch, num_queries, num_heads, head_width = query.shape
    num_keys = key.shape[-3]
    if "strongest" in returning and not 1 <= num_strongest <= num_keys:
        raise ValueError(f"num_strongest must lie in 1 to {num_keys} keys, got {num_strongest}")
    if dropout is not None and not isinstance(dropout, Dropout):
        raise TypeError(f"dropout must be Dropout(key, rate), got {type(dropout).__name__}")
    if dropout is not None:
        key_batch = jax.random.key_data(dropout.key).shape[:-1]
        check_broadcasts("dropout.key", key_batch, batch)
    query_positions, key_positions = checks.positions(positions, batch, num_queries, num_keys)
    counted = positions is None
    mask = check_mask(mask, batch, (num_queries, num_keys), counted=counted)
    scores = checks.scores(score, batch, (num_heads, num_queries, num_keys), counted=counted)
    return Request(
        query=query,
        key=key,
        value=value,
        mask=mask,
        scores=tuple(part for part in scores if not isinstance(part, AttentionSinks)),
        sinks=tuple(part for part in scores if isinstance(part, AttentionSinks)),
        query_positions=query_positions,
        key_positions=key_positions,
        counted=counted,
        scale=head_width**-0.5 if scale is None else scale,
        dropout=dropout,
        broken=checks.broken(broken, key.shape[:-1]),
        returning=tuple(returning),
        num_strongest=num_strongest,
    )
