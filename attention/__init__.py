"""Attention is a small pure function; everything else here is a transformation of it.

    one head:        softmax(q kᵀ / √d + mask) v
    many heads:      vmap over the head axis
    grouped queries: vmap over the query heads of a group, with k and v unbatched
    a batch:         vmap again

The letters used in every docstring, einsum, comment and test:

    B batch · T query length · S key length · N query heads · K key/value heads
    G = N/K queries per group · H head width (Hv of the values) · V vocabulary
    D model width · F hidden width

    query [..., T, N, H]   key [..., S, K, H]   value [..., S, K, Hv]   weights [..., N, T, S]
    query head n reads key head n // G

    >>> import jax
    >>> from attention import attend, masks
    >>> query = key = value = jax.numpy.ones((6, 2, 4))  # T = S = 6, N = K = 2, H = 4
    >>> attend(query, key, value, mask=masks.causal()).shape
    (6, 2, 4)
"""

from attention.primitives import masks, scores
from attention.primitives.additive import additive_attention
from attention.primitives.attend import attend, explain_attend
from attention.primitives.cache import Cache, empty_cache, full_cache
from attention.primitives.dot_product import grouped_query, multi_head, scaled_dot_product
from attention.primitives.dot_product_attention import dot_product_attention
from attention.primitives.dropout import Dropout
from attention.primitives.masks import Mask
from attention.primitives.merge import merge_attention
from attention.primitives.positions import (
    linear_scaling,
    llama3_scaling,
    ntk_scaling,
    rotary,
    sinusoidal,
    yarn_scaling,
)
from attention.primitives.scores import Score
from attention.primitives.sharded_attention import ShardedAttention, ring_attend, zigzag_order
from attention.show import show

__version__ = "0.1.0"

__all__ = [
    "Cache",
    "Dropout",
    "Mask",
    "Score",
    "ShardedAttention",
    "additive_attention",
    "attend",
    "dot_product_attention",
    "empty_cache",
    "explain_attend",
    "full_cache",
    "grouped_query",
    "linear_scaling",
    "llama3_scaling",
    "masks",
    "merge_attention",
    "multi_head",
    "ntk_scaling",
    "ring_attend",
    "rotary",
    "scaled_dot_product",
    "scores",
    "show",
    "sinusoidal",
    "yarn_scaling",
    "zigzag_order",
]
