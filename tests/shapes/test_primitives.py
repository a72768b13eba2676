"""Shapes of every public function of arrays.

B batch · T query length · S key length · N query heads · K key/value heads
H head width (Hv of the values) · D model width · `...` any batch axes
"""

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

import attention
from attention import (
    Dropout,
    ShardedAttention,
    additive_attention,
    attend,
    dot_product_attention,
    empty_cache,
    full_cache,
    grouped_query,
    masks,
    merge_attention,
    multi_head,
    ring_attend,
    rotary,
    scaled_dot_product,
    scores,
    sinusoidal,
    zigzag_order,
)
from attention.primitives.additive import additive_scores
from attention.primitives.arguments import RETURNING
from tests.shapes.shapes import SIZE, check, shapes

INPUTS = {"query": "[..., T, N, H]", "key": "[..., S, K, H]", "value": "[..., S, K, Hv]"}
OUTPUT = "[..., T, N, Hv]"
WEIGHTS = (OUTPUT, {"weights": "[..., N, T, S]"})
RESULTS = {
    "weights": "[..., N, T, S]",
    "logsumexp": "[..., N, T]",
    "largest_score": "[..., N, T]",
}
CACHE = {
    "key_slots": "[..., K, S, H]",
    "value_slots": "[..., K, S, Hv]",
    "nonfinite_slots": "bool [..., K, S]",
    "lengths": "int32 [...]",
    "key": "[..., S, K, H]",
    "value": "[..., S, K, Hv]",
    "nonfinite_keys": "bool [..., S, K]",
    "positions": "int32 [..., S]",
}
ONE_DEVICE = AbstractMesh((1,), ("sequence",), axis_types=(AxisType.Auto,))
PIECE = {"lengths": "int32 [...]", "key": "[..., T, K, H]", "value": "[..., T, K, Hv]"}


def masked(make, /, **arrays):
    """Line of attention with `make(**arrays)` as its mask; queries follow the keys before them."""

    def function(query, key, value, **arrays):
        positions = jnp.arange(SIZE.S - SIZE.T, SIZE.S), jnp.arange(SIZE.S)
        mask = make(**arrays)
        return attend(query, key, value, mask=mask, positions=positions, returning=("weights",))

    return shapes(function, **INPUTS, **arrays, returns=WEIGHTS)


def scored(make, /, **arrays):
    """Line of attention with the score function `make(**arrays)`."""

    def function(query, key, value, **arrays):
        return attend(query, key, value, score=make(**arrays), returning=("weights",))

    return shapes(function, **INPUTS, **arrays, returns=WEIGHTS)


def by_token(array):
    """Return the sharding of `[..., T, N, H]` along the sequence."""
    return PartitionSpec(*[None] * (array.ndim - 3), "sequence")


def cache_of(lengths, **options):
    """A cache of S slots that has read these numbers of tokens."""
    sizes = {"num_kv_heads": SIZE.K, "head_width": SIZE.H, "value_width": SIZE.Hv}
    return empty_cache(lengths.shape, SIZE.S, **sizes, **options).advance(0, lengths)


SHAPES = {
    # One head, many heads, groups of heads.
    "scaled_dot_product": shapes(
        scaled_dot_product,
        query="[T, H]",
        key="[S, H]",
        value="[S, Hv]",
        allowed="bool [T, S]",
        returns=("[T, Hv]", "[T, S]", "[T]"),
    ),
    "multi_head": shapes(
        multi_head,
        query="[T, N, H]",
        key="[S, N, H]",
        value="[S, N, Hv]",
        allowed="bool [N, T, S]",
        returns=("[T, N, Hv]", "[N, T, S]", "[N, T]"),
    ),
    "grouped_query": shapes(
        grouped_query,
        query="[T, N, H]",
        key="[S, K, H]",
        value="[S, K, Hv]",
        allowed="bool [T, S]",
        returns=("[T, N, Hv]", "[N, T, S]", "[N, T]"),
    ),
    # A batch: the public function, its results and options.
    "attend": shapes(attend, **INPUTS, returns=OUTPUT),
    "attend: results": shapes(
        partial(attend, returning=RETURNING), **INPUTS, returns=(OUTPUT, RESULTS)
    ),
    "attend: mask per example": shapes(
        attend, **INPUTS, mask="bool [..., 1, T, S]", returns=OUTPUT
    ),
    "attend: mask per head": shapes(attend, **INPUTS, mask="bool [..., N, T, S]", returns=OUTPUT),
    "attend: bfloat16": shapes(
        partial(attend, returning=("weights", "logsumexp")),
        query="bfloat16 [..., T, N, H]",
        key="bfloat16 [..., S, K, H]",
        value="bfloat16 [..., S, K, Hv]",
        returns=(
            "bfloat16 [..., T, N, Hv]",
            {"weights": "[..., N, T, S]", "logsumexp": "[..., N, T]"},
        ),
    ),
    "attend: scale": shapes(attend, **INPUTS, scale="[]", returns=OUTPUT),
    "attend: heads": shapes(attend, **INPUTS, heads="int32 [N]", returns=OUTPUT),
    "attend: positions": shapes(
        attend, **INPUTS, positions=("int32 [..., T]", "int32 [..., S]"), returns=OUTPUT
    ),
    "attend: a view of a cache": shapes(
        lambda query, key, value: attend(query, full_cache(key, value).view()),
        **INPUTS,
        returns=OUTPUT,
    ),
    "attend: bias": shapes(attend, **INPUTS, bias="[..., N, T, S]", returns=OUTPUT),
    "attend: tiles": shapes(
        partial(attend, implementation="tiled", tile_sizes=(2, 3), returning=("logsumexp",)),
        **INPUTS,
        returns=(OUTPUT, {"logsumexp": "[..., N, T]"}),
    ),
    "attend: no keys": shapes(
        partial(attend, returning=("weights",)),
        query="[..., T, N, H]",
        key="[..., 0, K, H]",
        value="[..., 0, K, Hv]",
        returns=(OUTPUT, {"weights": "[..., N, T, 0]"}),
    ),
    "Dropout": shapes(
        lambda rng, **inputs: attend(**inputs, dropout=Dropout(rng, 0.1)),
        **INPUTS,
        rng="key [...]",
        returns=OUTPUT,
    ),
    "additive_attention": shapes(
        partial(additive_attention, returning=RETURNING),
        **INPUTS,
        vector="[N, H]",
        returns=(OUTPUT, RESULTS),
    ),
    "additive_scores": shapes(
        additive_scores,
        query="[..., T, N, H]",
        key="[..., S, K, H]",
        vector="[N, H]",
        returns="[..., N, T, S]",
    ),
    "merge_attention": shapes(
        merge_attention,
        partials=[("[..., T, N, Hv]", "[..., N, T]")] * 3,
        returns=(OUTPUT, "[..., N, T]"),
    ),
    "ShardedAttention": shapes(
        lambda query, key, value: ShardedAttention(ONE_DEVICE, by_token(query))(
            query, key, value, returning=("logsumexp", "largest_score")
        ),
        **INPUTS,
        returns=(OUTPUT, {name: RESULTS[name] for name in ("logsumexp", "largest_score")}),
    ),
    "ring_attend": shapes(
        lambda query, key, value: jax.shard_map(
            partial(ring_attend, axis_name="sequence"),
            mesh=ONE_DEVICE,
            in_specs=by_token(query),
            out_specs=by_token(query),
        )(query, key, value),
        **INPUTS,
        returns=OUTPUT,
    ),
    "zigzag_order": shapes(
        lambda: jax.ShapeDtypeStruct((6,), zigzag_order(6, 3).dtype), returns="int32 [6]"
    ),
    # The arguments of jax.nn and flax.
    "dot_product_attention": shapes(dot_product_attention, **INPUTS, returns=OUTPUT),
    "dot_product_attention: all options": shapes(
        partial(
            dot_product_attention, is_causal=True, local_window_size=(2, 1), return_residual=True
        ),
        **INPUTS,
        bias="[..., N, T, S]",
        mask="bool [..., 1, T, S]",
        query_seq_lengths="int32 [...]",
        key_value_seq_lengths="int32 [...]",
        returns=(OUTPUT, "[..., T, N]"),
    ),
    # Masks: a predicate on positions, with arrays of any batch axes.
    "masks: a predicate": shapes(
        lambda query, key: masks.causal()(query, key),
        query="int32 [T, 1]",
        key="int32 [1, S]",
        returns="bool [T, S]",
    ),
    "masks.full": masked(masks.full),
    "masks.to_array": shapes(
        lambda segments, positions: masks.to_array(masks.segments(segments), positions, SIZE.S),
        segments="int32 [..., S]",
        positions="int32 [T]",
        returns="bool [..., T, S]",
    ),
    "masks.causal": masked(masks.causal),
    "masks.window": masked(lambda: masks.window(2, after=1)),
    "masks.block": masked(lambda: masks.block(3)),
    "masks.lengths": masked(masks.lengths, lengths="int32 [...]", query_lengths="int32 [...]"),
    "masks.segments": masked(
        masks.segments, query_segments="int32 [..., S]", key_segments="int32 [..., S]"
    ),
    "masks.cu_seqlens": masked(
        masks.cu_seqlens, query_offsets="int32 [..., 3]", key_offsets="int32 [..., 3]"
    ),
    "masks.prefix": masked(masks.prefix, length="int32 [...]"),
    "masks.from_array": masked(masks.from_array, array="bool [..., N, S, S]"),
    "masks.from_function": masked(
        lambda groups: masks.from_function(lambda q, k, groups: groups[q] == groups[k], groups),
        groups="int32 [S]",
    ),
    "masks: &, | and ~": masked(
        lambda lengths: masks.causal() & masks.lengths(lengths) | ~masks.window(1),
        lengths="int32 [...]",
    ),
    # Score functions.
    "scores.alibi": scored(scores.alibi, slopes="[N]"),
    "scores.alibi_slopes": shapes(lambda: scores.alibi_slopes(SIZE.N), returns="[N]"),
    "scores.relative_bias": scored(scores.relative_bias, table="[..., N, 6]"),
    "scores.softcap": scored(lambda: scores.softcap(5.0)),
    "scores.bias_array": scored(scores.bias_array, array="[..., N, T, S]"),
    "scores.attention_sinks": scored(scores.attention_sinks, logits="[N]"),
    "scores.from_function": scored(
        lambda slopes: scores.from_function(
            lambda score, q, k, head, slopes: score - slopes[head] * abs(q - k).astype(score.dtype),
            slopes,
        ),
        slopes="[N]",
    ),
    # The cache of decoding. A piece of T tokens is written to S slots.
    "empty_cache": shapes(lambda lengths: cache_of(lengths), lengths="int32 [...]", returns=CACHE),
    "full_cache": shapes(full_cache, key="[..., S, K, H]", value="[..., S, K, Hv]", returns=CACHE),
    "Cache": shapes(
        lambda lengths, key, value: cache_of(lengths).extend(key, value),
        **PIECE,
        returns=(
            CACHE,
            {
                "key": "[..., S, K, H]",
                "value": "[..., S, K, Hv]",
                "positions": ("int32 [..., T]", "int32 [..., S]"),
                "nonfinite_keys": "bool [..., S, K]",
            },
        ),
    ),
    "Cache: a ring": shapes(
        lambda lengths, key, value: cache_of(lengths, ring=True).extend(key, value),
        **PIECE,
        returns=(
            CACHE,
            {
                "key": "[..., S + T, K, H]",
                "value": "[..., S + T, K, Hv]",
                "positions": ("int32 [..., T]", "int32 [..., S + T]"),
                "nonfinite_keys": "bool [..., S + T, K]",
            },
        ),
    ),
    "Cache: next_positions": shapes(
        lambda lengths: cache_of(lengths).next_positions(SIZE.T),
        lengths="int32 [...]",
        returns="int32 [..., T]",
    ),
    "Cache: gather_rows": shapes(
        lambda lengths: cache_of(lengths).gather_rows(lambda array: array[::-1]),
        lengths="int32 [B]",
        returns={"key": "[B, S, K, H]", "value": "[B, S, K, Hv]", "lengths": "int32 [B]"},
    ),
    # Positions.
    "sinusoidal": shapes(
        lambda positions: sinusoidal(positions, SIZE.D),
        positions="int32 [..., T]",
        returns="[..., T, D]",
    ),
    "rotary": shapes(
        rotary,
        vectors="bfloat16 [..., T, N, H]",
        positions="int32 [..., T]",
        returns="bfloat16 [..., T, N, H]",
    ),
    **{
        name: shapes(
            lambda vectors, positions, scaling=scaling: rotary(vectors, positions, scaling=scaling),
            vectors="[..., T, N, H]",
            positions="int32 [..., T]",
            returns="[..., T, N, H]",
        )
        for name, scaling in {
            "linear_scaling": attention.linear_scaling(2.0),
            "ntk_scaling": attention.ntk_scaling(2.0),
            "llama3_scaling": attention.llama3_scaling(2.0, original_length=8),
            "yarn_scaling": attention.yarn_scaling(2.0, original_length=8),
        }.items()
    },
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    check(SHAPES[name])


def test_every_public_function_has_a_line():
    """Two functions return no arrays; base classes have the lines of their subclasses."""
    kinds = {masks: masks.Mask, scores: scores.Score}
    members = {
        f"{module.__name__.split('.')[-1]}.{name}"
        for module, kind in kinds.items()
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if not name.startswith("_") and inspect.signature(function).return_annotation is kind
    }
    others = {"Mask", "Score", "explain_attend", "masks", "scores", "show"}
    names = {*attention.__all__, *members} - others - {"masks.as_mask", "masks.map_leaves"}
    assert names <= {line.split(":")[0] for line in SHAPES}
    assert {*RESULTS} == {*RETURNING}
