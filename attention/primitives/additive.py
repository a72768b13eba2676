"""Additive attention: a key matches a query as well as a small network says (Bahdanau et al. 2015).

All but the score is `attend`: the mask, the softmax, the weighted sum and what else may be asked
for. Multiplicative attention (Luong et al. 2015, equation 8) is `attend` as it stands, with
`scale=1`: their "dot" of queries as they are, their "general" of queries times a matrix.
"""

from collections.abc import Collection

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from attention.primitives import checks
from attention.primitives.attend import attend
from attention.primitives.dropout import Dropout
from attention.primitives.masks import Mask
from attention.primitives.precision import wide
from attention.primitives.pytree_dataclass import array_field, pytree_dataclass
from attention.primitives.scores import Score


def additive_scores(query: Array, key: Array, vector: Array) -> Array:
    """vᵀ tanh(q + k) of every pair (Bahdanau et al. 2015, appendix A.1.2).

    There q = W s and k = U h are projections of a decoder's state and an encoder's annotation.
    Holds T·S·N·H numbers at once, where a product would hold T·S·N.

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
    dropout: Dropout | None = None,
    returning: Collection[str] = (),
    num_strongest: int = 1,
) -> Array | tuple[Array, dict[str, Array]]:
    """`attend` with `additive_scores` in place of the scaled products, under the same contract.

    Args:
        query: `[..., T, N, H]`.
        key: `[..., S, K, H]`; K divides N, and query head n reads key head n // G.
        value: `[..., S, K, Hv]`.
        vector: `[N, H]`.
        mask: as in `attend`, like all that follows.
        score: changes the additive scores.
        positions: of queries and keys.
        dropout: of weights.
        returning: what else to return.
        num_strongest: for "strongest".

    Returns:
        As `attend`.

    Raises:
        ValueError: a vector that is not `[N, H]`; and as `attend`.
        TypeError: as `attend`.
    """
    checks.shapes(query, key, value)
    if vector.shape != query.shape[-2:]:
        raise ValueError(
            f"vector must have the shape {query.shape[-2:]} of heads (N) and their width (H), "
            f"got {vector.shape}"
        )
    # Whoever may see what is not finite still gets NaN: attend looks at the inputs themselves.
    finite = (jnp.where(jnp.isfinite(array), array, 0) for array in (query, key))
    instead = _Instead(additive_scores(*wide(*finite, vector)))
    more = tuple(score) if isinstance(score, tuple | list) else (score,)
    return attend(
        query,
        key,
        value,
        mask=mask,
        score=(instead, *more),
        positions=positions,
        dropout=dropout,
        returning=returning,
        num_strongest=num_strongest,
        implementation="reference",
    )


@pytree_dataclass
class _Instead(Score):
    """Scores that are known already: the products are not looked at, and so never computed.

    They belong to rows and columns wherever those stand: only the reference asks for all at once.
    """

    scores: Array = array_field(rank=3)

    def __call__(
        self, scores: Array, query_position: ArrayLike, key_position: ArrayLike, head: ArrayLike
    ) -> Array:
        del query_position, key_position
        return self.scores[head].astype(scores.dtype)

    def extent(self) -> tuple[int, int, int]:
        return self.scores.shape[-3], self.scores.shape[-2], self.scores.shape[-1]
