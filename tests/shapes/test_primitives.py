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
from attention import attend, dot_product_attention, empty_cache, full_cache, masks, rotary, scores
from attention.primitives.additive import additive_scores
from attention.primitives.arguments import RETURNING
from tests.shapes.shapes import SIZE, check, shapes

INPUTS = "query: [..., T, N, H], key: [..., S, K, H], value: [..., S, K, Hv]"
NARROW = INPUTS.replace("[", "bfloat16 [")
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
PIECE = "lengths: int32 [...], key: [..., T, K, H], value: [..., T, K, Hv]"


def masked(make, arrays="", /):
    """Line of attention with `make(**arrays)` as its mask; queries follow the keys before them."""

    def function(query, key, value, **arrays):
        positions = jnp.arange(SIZE.S - SIZE.T, SIZE.S), jnp.arange(SIZE.S)
        mask = make(**arrays)
        return attend(query, key, value, mask=mask, positions=positions, returning=("weights",))

    return shapes(function, f"{INPUTS}, {arrays}", returns=WEIGHTS)


def scored(make, arrays="", /):
    """Line of attention with the score function `make(**arrays)`."""

    def function(query, key, value, **arrays):
        return attend(query, key, value, score=make(**arrays), returning=("weights",))

    return shapes(function, f"{INPUTS}, {arrays}", returns=WEIGHTS)


def by_token(array):
    """Return the sharding of `[..., T, N, H]` along the sequence."""
    return PartitionSpec(*[None] * (array.ndim - 3), "sequence")


def cache_of(lengths, **options):
    """A cache of S slots that has read these numbers of tokens."""
    sizes = {"num_kv_heads": SIZE.K, "head_width": SIZE.H, "value_width": SIZE.Hv}
    return empty_cache(lengths.shape, SIZE.S, **sizes, **options).advance(0, lengths)


def view_after_piece(size):
    """Results of `Cache.extend`: the new cache, and a view of this number of keys."""
    view = {
        "key": f"[..., {size}, K, H]",
        "value": f"[..., {size}, K, Hv]",
        "positions": ("int32 [..., T]", f"int32 [..., {size}]"),
        "nonfinite_keys": f"bool [..., {size}, K]",
    }
    return CACHE, view


SHAPES = {
    # One head, many heads, groups of heads.
    "scaled_dot_product": shapes(
        attention.scaled_dot_product,
        "query: [T, H], key: [S, H], value: [S, Hv], allowed: bool [T, S] -> [T, Hv], [T, S], [T]",
    ),
    "multi_head": shapes(
        attention.multi_head,
        "query: [T, N, H], key: [S, N, H], value: [S, N, Hv], allowed: bool [N, T, S] "
        "-> [T, N, Hv], [N, T, S], [N, T]",
    ),
    "grouped_query": shapes(
        attention.grouped_query,
        "query: [T, N, H], key: [S, K, H], value: [S, K, Hv], allowed: bool [T, S] "
        "-> [T, N, Hv], [N, T, S], [N, T]",
    ),
    # A batch: the public function, its results and options.
    "attend": shapes(attend, f"{INPUTS} -> {OUTPUT}"),
    "attend: results": shapes(
        partial(attend, returning=RETURNING), INPUTS, returns=(OUTPUT, RESULTS)
    ),
    "attend: mask per example": shapes(attend, f"{INPUTS}, mask: bool [..., 1, T, S] -> {OUTPUT}"),
    "attend: mask per head": shapes(attend, f"{INPUTS}, mask: bool [..., N, T, S] -> {OUTPUT}"),
    "attend: bfloat16": shapes(
        partial(attend, returning=("weights", "logsumexp")),
        NARROW,
        returns=(f"bfloat16 {OUTPUT}", {"weights": "[..., N, T, S]", "logsumexp": "[..., N, T]"}),
    ),
    "attend: dtypes of its own for key and value": shapes(
        attend,
        "query: bfloat16 [..., T, N, H], key: [..., S, K, H], value: float16 [..., S, K, Hv] "
        "-> bfloat16 [..., T, N, Hv]",
    ),
    "attend: scale": shapes(attend, f"{INPUTS}, scale: [] -> {OUTPUT}"),
    "attend: heads": shapes(attend, f"{INPUTS}, heads: int32 [N] -> {OUTPUT}"),
    "attend: positions": shapes(
        lambda t, s, **inputs: attend(**inputs, positions=(t, s)),
        f"{INPUTS}, t: int32 [..., T], s: int32 [..., S] -> {OUTPUT}",
    ),
    "attend: a view of a cache": shapes(
        lambda query, key, value: attend(query, full_cache(key, value).view()),
        f"{INPUTS} -> {OUTPUT}",
    ),
    "attend: bias": shapes(attend, f"{INPUTS}, bias: [..., N, T, S] -> {OUTPUT}"),
    "attend: tiles": shapes(
        partial(attend, implementation="tiled", tile_sizes=(2, 3), returning=("logsumexp",)),
        INPUTS,
        returns=(OUTPUT, {"logsumexp": "[..., N, T]"}),
    ),
    "attend: no keys": shapes(
        partial(attend, returning=("weights",)),
        "query: [..., T, N, H], key: [..., 0, K, H], value: [..., 0, K, Hv]",
        returns=(OUTPUT, {"weights": "[..., N, T, 0]"}),
    ),
    "Dropout": shapes(
        lambda rng, **inputs: attend(**inputs, dropout=attention.Dropout(rng, 0.1)),
        f"{NARROW}, rng: key [...] -> bfloat16 {OUTPUT}",
    ),
    "additive_attention": shapes(
        partial(attention.additive_attention, returning=RETURNING),
        f"{INPUTS}, vector: [N, H]",
        returns=(OUTPUT, RESULTS),
    ),
    "additive_scores": shapes(
        additive_scores,
        "query: [..., T, N, H], key: [..., S, K, H], vector: [N, H] -> [..., N, T, S]",
    ),
    "merge_attention": shapes(
        lambda output, logsumexp: attention.merge_attention([(output, logsumexp)] * 3),
        "output: bfloat16 [..., T, N, Hv], logsumexp: [..., N, T] "
        "-> bfloat16 [..., T, N, Hv], [..., N, T]",
    ),
    "ShardedAttention": shapes(
        lambda query, key, value: attention.ShardedAttention(ONE_DEVICE, by_token(query))(
            query, key, value, returning=("logsumexp", "largest_score")
        ),
        INPUTS,
        returns=(OUTPUT, {name: RESULTS[name] for name in ("logsumexp", "largest_score")}),
    ),
    "ring_attend": shapes(
        lambda query, key, value: jax.shard_map(
            partial(attention.ring_attend, axis_name="sequence"),
            mesh=ONE_DEVICE,
            in_specs=by_token(query),
            out_specs=by_token(query),
        )(query, key, value),
        f"{INPUTS} -> {OUTPUT}",
    ),
    "zigzag_order": shapes(
        lambda: jax.ShapeDtypeStruct((6,), attention.zigzag_order(6, 3).dtype), "-> int32 [6]"
    ),
    # The arguments of jax.nn and flax.
    "dot_product_attention": shapes(dot_product_attention, f"{INPUTS} -> {OUTPUT}"),
    "dot_product_attention: all options": shapes(
        partial(
            dot_product_attention, is_causal=True, local_window_size=(2, 1), return_residual=True
        ),
        f"{INPUTS}, bias: [..., N, T, S], mask: bool [..., 1, T, S], "
        "query_seq_lengths: int32 [...], key_value_seq_lengths: int32 [...] "
        f"-> {OUTPUT}, [..., T, N]",
    ),
    # Masks: a predicate on positions, with arrays of any batch axes.
    "masks: a predicate": shapes(
        masks.causal(),
        "query_position: int32 [T, 1], key_position: int32 [1, S] -> bool [T, S]",
    ),
    "masks.full": masked(masks.full),
    "masks.to_array": shapes(
        lambda segments, positions: masks.to_array(masks.segments(segments), positions, SIZE.S),
        "segments: int32 [..., S], positions: int32 [T] -> bool [..., T, S]",
    ),
    "masks.causal": masked(masks.causal),
    "masks.window": masked(lambda: masks.window(2, after=1)),
    "masks.block": masked(lambda: masks.block(3)),
    "masks.lengths": masked(masks.lengths, "lengths: int32 [...], query_lengths: int32 [...]"),
    "masks.segments": masked(
        masks.segments, "query_segments: int32 [..., S], key_segments: int32 [..., S]"
    ),
    "masks.cu_seqlens": masked(
        masks.cu_seqlens, "query_offsets: int32 [..., 3], key_offsets: int32 [..., 3]"
    ),
    "masks.prefix": masked(masks.prefix, "length: int32 [...]"),
    "masks.from_array": masked(masks.from_array, "array: bool [..., N, S, S]"),
    "masks.from_function": masked(
        lambda groups: masks.from_function(lambda q, k, groups: groups[q] == groups[k], groups),
        "groups: int32 [S]",
    ),
    "masks: &, | and ~": masked(
        lambda lengths: masks.causal() & masks.lengths(lengths) | ~masks.window(1),
        "lengths: int32 [...]",
    ),
    # Score functions.
    "scores.alibi": scored(scores.alibi, "slopes: [N]"),
    "scores.alibi_slopes": shapes(lambda: scores.alibi_slopes(SIZE.N), "-> [N]"),
    "scores.relative_bias": scored(scores.relative_bias, "table: [..., N, 6]"),
    "scores.softcap": scored(lambda: scores.softcap(5.0)),
    "scores.bias_array": scored(scores.bias_array, "array: [..., N, T, S]"),
    "scores.attention_sinks": scored(scores.attention_sinks, "logits: [N]"),
    "scores.from_function": scored(
        lambda slopes: scores.from_function(
            lambda score, q, k, head, slopes: score - slopes[head] * abs(q - k).astype(score.dtype),
            slopes,
        ),
        "slopes: [N]",
    ),
    # The cache of decoding. A piece of T tokens is written to S slots.
    "empty_cache": shapes(cache_of, "lengths: int32 [...]", returns=CACHE),
    "full_cache": shapes(full_cache, "key: [..., S, K, H], value: [..., S, K, Hv]", returns=CACHE),
    "Cache": shapes(
        lambda lengths, key, value: cache_of(lengths).extend(key, value),
        PIECE,
        returns=view_after_piece("S"),
    ),
    "Cache: a ring": shapes(
        lambda lengths, key, value: cache_of(lengths, ring=True).extend(key, value),
        PIECE,
        returns=view_after_piece("S + T"),
    ),
    "Cache: next_positions": shapes(
        lambda lengths: cache_of(lengths).next_positions(SIZE.T),
        "lengths: int32 [...] -> int32 [..., T]",
    ),
    "Cache: gather_rows": shapes(
        lambda lengths: cache_of(lengths).gather_rows(lambda array: array[::-1]),
        "lengths: int32 [B] -> key: [B, S, K, H], value: [B, S, K, Hv], lengths: int32 [B]",
    ),
    # Positions.
    "sinusoidal": shapes(
        lambda positions: attention.sinusoidal(positions, SIZE.D),
        "positions: int32 [..., T] -> [..., T, D]",
    ),
    "rotary": shapes(
        rotary,
        "vectors: bfloat16 [..., T, N, H], positions: int32 [..., T] -> bfloat16 [..., T, N, H]",
    ),
    **{
        name: shapes(
            partial(rotary, scaling=scaling),
            "vectors: [..., T, N, H], positions: int32 [..., T] -> [..., T, N, H]",
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
