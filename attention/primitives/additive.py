"""Additive attention: scores from a small network (Bahdanau et al. 2015).

Only the scores differ from `attend`; mask, softmax, weighted sum and returned results are the
same. For multiplicative attention (Luong et al. 2015, equation 8) call `attend` with `scale=1`:
"dot" uses the queries, "general" the queries times a matrix.
"""

from collections.abc import Collection

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from attention.primitives.arguments import check_shapes
from attention.primitives.attend import attend
from attention.primitives.dropout import Dropout
from attention.primitives.masks import Mask
from attention.primitives.nonfinite import replace_nonfinite
from attention.primitives.precision import wide
from attention.primitives.pytree_dataclass import array_field, pytree_dataclass
from attention.primitives.scores import Score


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
    key: Array,
    value: Array,
    vector: Array,
    *,
    mask: Mask | ArrayLike | None = None,
    score: Score | Collection[Score] = (),
    positions: tuple[ArrayLike, ArrayLike] | None = None,
    heads: ArrayLike | None = None,
    dropout: Dropout | None = None,
    returning: Collection[str] = (),
    nonfinite_keys: ArrayLike | None = None,
) -> Array | tuple[Array, dict[str, Array]]:
    """Compute `attend` with `additive_scores` in place of the scaled products.

    Args:
        query: `[..., T, N, H]`.
        key: `[..., S, K, H]`; K divides N, and query head n reads key head n // G.
        value: `[..., S, K, Hv]`.
        vector: `[N, H]`.
        mask: as in `attend`, like all arguments that follow.
        score: functions of the additive scores.
        positions: of queries and keys.
        heads: integers `[N]`, global numbers of the heads, for `score` and `dropout`.
        dropout: of the weights.
        returning: names of what to return beside the output.
        nonfinite_keys: bool `[..., S, K]`, as in a `CacheView`. If given, `key` and `value` are
            assumed finite and are not checked.

    Returns:
        As `attend`.

    Raises:
        ValueError: a vector that is not `[N, H]`; and as `attend`.
        TypeError: as `attend`.
    """
    check_shapes(query, key, value)
    if vector.shape != query.shape[-2:]:
        raise ValueError(
            f"vector must have the shape {query.shape[-2:]} of heads (N) and their width (H), "
            f"got {vector.shape}"
        )
    finite_query, key, value, _, nonfinite_keys = replace_nonfinite(
        query, key, value, nonfinite_keys
    )
    known = _KnownScores(additive_scores(*wide(finite_query, key, vector)))
    more = tuple(score) if isinstance(score, tuple | list) else (score,)
    return attend(
        query,
        key,
        value,
        mask=mask,
        score=(known, *more),
        positions=positions,
        heads=heads,
        dropout=dropout,
        returning=returning,
        nonfinite_keys=nonfinite_keys,
        implementation="reference",
    )


@pytree_dataclass
class _KnownScores(Score):
    """Scores that replace the products of a head, which the compiler then removes.

    They are indexed by row and column and not by position, so only an implementation that computes
    all pairs of a head at once can use them.
    """

    scores: Array = array_field(rank=3)
    per_head = True

    def extent(self) -> tuple[int, None, None]:
        return self.scores.shape[-3], None, None

    def for_heads(self, heads: Array) -> Score:
        del heads  # there are no others
        return self

    def __call__(
        self, scores: Array, query_position: ArrayLike, key_position: ArrayLike, head: ArrayLike
    ) -> Array:
        del query_position, key_position, head
        return self.scores[0].astype(scores.dtype)
