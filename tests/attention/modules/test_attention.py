"""Self-attention and cross-attention: their own parameters by hand, through the oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention import Dropout, attend, masks, rotary, scores
from attention.modules import CacheSpec, Context, CrossAttention, SelfAttention
from attention.modules.context import DEFAULT_CONTEXT
from attention.primitives.dropout import keep_factor
from tests import oracle
from tests.attention.modules.inputs import assert_close, filled, normalize, project
from tests.attention.primitives.inputs import (
    CAUSAL,
    DIMS,
    POSITIONS,
    K,
    N,
    S,
    T,
    changed,
    draw,
    jitted,
)

B, H = DIMS["BH"]
WIDTH, SOURCE_WIDTH, VALUE_WIDTH = 18, 17, 13
RATE = 0.4
INPUTS, ENCODER_OUTPUT = draw((B, T, WIDTH), (B, S, SOURCE_WIDTH))


def attention(width=WIDTH, **changes):
    return filled(lambda: SelfAttention(width, **({"num_heads": N} | changes), rngs=nnx.Rngs(0)))


def cross_attention(width=WIDTH, **changes):
    sizes = {
        "num_heads": N,
        "num_kv_heads": K,
        "head_width": H,
        "value_width": VALUE_WIDTH,
        "source_width": SOURCE_WIDTH,
    }
    return filled(lambda: CrossAttention(width, **(sizes | changes), rngs=nnx.Rngs(0)))


def apply(module, inputs=INPUTS, context=DEFAULT_CONTEXT):
    return module(inputs, context=context)


run = jitted(apply)


def attend_across(module, inputs=INPUTS, encoder_output=ENCODER_OUTPUT, **fields):
    return run(module, inputs, Context(encoder_output=encoder_output, **fields))


def by_hand(module, inputs, source, allowed=None, keep=None, scale=None):
    """Four matrix products and the oracle, in float64; output and weights."""

    def maybe_normalize(norm, vectors):
        return vectors if norm is None else normalize(norm, vectors)

    query = maybe_normalize(module.query_norm, project(module.query, inputs))
    attended = oracle.attention(
        query if scale is None else query * scale * query.shape[-1] ** 0.5,
        maybe_normalize(module.key_norm, project(module.key, source)),
        project(module.value, source),
        allowed,
        keep=keep,
    )
    return project(module.output, attended.output, num_axes=2), attended.weights


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_kv_heads": 1},
        {"num_kv_heads": K, "use_bias": False},
        {"use_bias": False, "qkv_bias": True, "scale": 0.3},
        {"head_width": H, "value_width": VALUE_WIDTH, "qk_norm": "layer", "norm_epsilon": 0.1},
        {"num_kv_heads": K, "qk_norm": "rms"},
    ],
    ids=["defaults", "multi-query", "grouped-without-bias", "scale", "widths-and-norm", "rms"],
)
def test_self_attention_is_its_projections_and_attend(changes):
    module = attention(**changes)
    output = run(module, context=Context(mask=masks.causal()))
    expected, _ = by_hand(
        module, INPUTS, INPUTS, lambda row, column: column <= row, scale=changes.get("scale")
    )
    assert_close(output.features, expected)
    assert (output.attention, output.cache, output.losses) == (None, None, {})


@pytest.mark.parametrize("use_bias", [True, False])
def test_cross_attention_to_an_encoder_output_of_another_width_and_length(use_bias):
    module = cross_attention(use_bias=use_bias)
    lengths = np.array([3, S])
    output = attend_across(module, encoder_mask=masks.lengths(lengths), returning=("weights",))
    allowed = np.broadcast_to(np.arange(S) < np.array(lengths)[:, None, None], (B, T, S))
    expected, weights = by_hand(module, INPUTS, ENCODER_OUTPUT, allowed)
    assert_close(output.features, expected)
    assert_close(output.attention["weights"], weights)


def test_a_bool_array_is_a_mask():
    module = cross_attention()
    allowed = np.random.default_rng(0).random((B, T, S)) < 0.5
    allowed[0, 0] = False  # a fully masked query gets the output bias
    output = attend_across(module, encoder_mask=allowed[:, None]).features
    assert_close(output, by_hand(module, INPUTS, ENCODER_OUTPUT, allowed)[0])
    assert_close(output[0, 0], module.output.bias[...])


def test_positions_of_queries_and_keys():
    module = cross_attention()
    positions, encoder_positions = POSITIONS
    fields = {"encoder_mask": masks.causal(), "positions": positions}
    output = attend_across(module, encoder_positions=encoder_positions, **fields).features
    allowed = np.broadcast_to(CAUSAL, (B, T, S))
    assert_close(output, by_hand(module, INPUTS, ENCODER_OUTPUT, allowed)[0])
    counted = np.broadcast_to(POSITIONS[0][:, None] >= np.arange(S), (B, T, S))
    output = attend_across(module, **fields).features
    assert_close(output, by_hand(module, INPUTS, ENCODER_OUTPUT, counted)[0])


def test_causal_between_other_lengths_counts_positions_with_and_without_a_cache():
    module, mask = cross_attention(), masks.causal()
    expected, _ = by_hand(module, INPUTS, ENCODER_OUTPUT, np.tri(T, S, dtype=bool))
    assert_close(attend_across(module, encoder_mask=mask).features, expected)
    cache = module.new_cache(CacheSpec(batch=(B,), size=T, encoder_output=ENCODER_OUTPUT))
    assert_close(run(module, INPUTS, Context(cache=cache, encoder_mask=mask)).features, expected)


def test_precision_reaches_attend():
    given = []

    def recorded(*arrays, **options):
        given.append(options["precision"])
        return attend(*arrays, **options)

    context = Context(attend=recorded)
    jax.eval_shape(lambda: attention(precision="high")(INPUTS, context=context))
    assert given == ["high"]


@pytest.mark.parametrize("mask", [None, masks.causal(), np.tri(T, k=1, dtype=bool)], ids=str)
def test_a_window_counts_the_query_itself(mask):
    distance = np.arange(T)[:, None] - np.arange(T)
    allowed = np.abs(distance) < 3
    if mask is not None:
        allowed &= distance >= (0 if isinstance(mask, masks.Mask) else -1)
    output = run(attention(window=3), context=Context(mask=mask)).features
    expected, _ = by_hand(attention(), INPUTS, INPUTS, np.broadcast_to(allowed, (B, T, T)))
    assert_close(output, expected)


def test_window_and_bool_array_with_a_cache():
    """The array has a row for each position, also of the tokens that are still to come."""
    module, allowed = attention(window=3), changed(np.tri(T, dtype=bool), (3, 2), False)
    expected = run(module, context=Context(mask=allowed)).features
    output = run(
        module,
        INPUTS[:, :1],
        Context(mask=allowed, cache=(module.new_cache(CacheSpec(batch=(B,), size=T)))),
    )
    rest = run(module, INPUTS[:, 1:], Context(mask=allowed, cache=output.cache))
    assert_close(np.concatenate([output.features, rest.features], axis=1), expected)


def test_lengths_mask_the_padding():
    lengths = np.array([2, T])
    ours = run(attention(), context=Context(lengths=lengths, mask=np.tri(T, dtype=bool)))
    mask = masks.lengths(lengths) & masks.causal()
    assert_close(ours.features, run(attention(), context=Context(mask=mask)).features)
    assert Context(lengths=lengths).valid(4).tolist() == [[True] * 2 + [False] * 2, [True] * 4]
    assert Context().valid(4) is None


@pytest.mark.parametrize("lengths", [None, np.array([2, T])], ids=["whole", "lengths"])
def test_rows_and_columns_of_a_bool_array_are_not_positions(lengths):
    allowed = np.random.default_rng(0).random((T, T)) < 0.5
    context = Context(mask=allowed, lengths=lengths)
    shifted = Context(mask=allowed, lengths=lengths, positions=np.arange(T) + 10)
    module = attention(window=3)
    assert_close(run(module, context=shifted).features, run(module, context=context).features)


def test_lengths_count_tokens_whatever_their_positions():
    module = attention(head_width=14, rotary=rotary)
    lengths, positions = np.array([2, T]), np.arange(T, 0, -1) + 7
    given = {"positions": positions, "mask": masks.window(T)}
    ours = run(module, context=Context(lengths=lengths, **given)).features
    for row, length in enumerate(lengths):
        part = Context(positions=positions[:length], mask=given["mask"])
        alone = run(module, INPUTS[row, :length], part).features
        assert_close(ours[row, :length], alone)


def test_softcap_bounds_the_scores_after_all_score_functions():
    bias = scores.bias_array(draw((N, T, T))[0])
    given = Context(score=(bias,))
    output = run(attention(softcap=0.7, score=lambda: bias), context=given).features
    plain = Context(score=(bias, bias, scores.softcap(0.7)))
    assert_close(output, run(attention(), context=plain).features)


def test_projections_start_with_variance_one_over_their_inputs():
    @jitted
    def build():
        sizes = {"num_heads": 12, "num_kv_heads": 6, "value_width": 20, "source_width": 90}
        return CrossAttention(120, **sizes, rngs=nnx.Rngs(0))

    module = build()
    inputs = {"query": 120, "key": 90, "value": 90, "output": 12 * 20}
    for name, number in inputs.items():
        linear = getattr(module, name)
        np.testing.assert_allclose(np.var(linear.kernel[...]) * number, 1, rtol=0.1)
        np.testing.assert_array_equal(linear.bias[...], 0)


class TestDropout:
    """An `rng` turns dropout on; each example has its own random key."""

    def test_each_example_has_its_own_key(self):
        module, rng = cross_attention(dropout=RATE), jax.random.key(0)
        output = attend_across(module, rng=rng).features
        dropout = Dropout(jax.random.split(rng, B), RATE)
        keep = jitted(keep_factor)(dropout, *(np.arange(size) for size in (N, T, S)))
        assert (keep[0] != keep[1]).mean() > 0.3  # 0.48 of the pairs differ by chance
        assert_close(output, by_hand(module, INPUTS, ENCODER_OUTPUT, keep=keep)[0])


@pytest.mark.parametrize("dropout", [0.0, RATE], ids=["", "dropout"])
def test_returning_more_never_changes_the_output(dropout):
    module, rng = cross_attention(dropout=dropout), jax.random.key(0)
    alone = attend_across(module, rng=rng).features
    output = attend_across(module, rng=rng, returning=("weights", "logsumexp", "hidden_states"))
    np.testing.assert_array_equal(output.features, alone)
    assert {*output.attention} == {"weights", "logsumexp"}


def test_rotary_positions_are_relative_and_rotate_queries_and_keys():
    module = attention(head_width=14, rotary=rotary)

    def at(start):
        positions = None if start is None else jnp.arange(start, start + T)
        return run(module, context=Context(mask=masks.causal(), positions=positions)).features

    counted = at(None)
    assert_close(counted, at(0))
    assert_close(counted, at(29))
    plain = run(attention(head_width=14), context=Context(mask=masks.causal())).features
    assert abs(counted - plain).max() > 1e-2


ERRORS = {
    "num_heads=6 .* num_kv_heads=4: use one of 1, 2, 3, 6": lambda: attention(num_kv_heads=4),
    "width=20 is not divisible by num_heads=6: .* set head_width": lambda: attention(20),
    "window must be at least 1, got 0": lambda: attention(window=0),
    r"dropout must be in \[0, 1\), got 1.0": lambda: attention(dropout=1.0),
    "softcap must be above 0 and finite, got nan": lambda: attention(softcap=float("nan")),
    "scale must be above 0 and finite, got 0.0": lambda: attention(scale=0.0),
    "norm_epsilon must be at least 0, got -1.0": lambda: attention(norm_epsilon=-1.0),
    "precision must be one of default, .*got 'hihg'": lambda: run(attention(precision="hihg")),
    "a function that returns a score function, got a Soft": lambda: attention(
        score=scores.softcap(3.0)
    ),
    "cross-attention needs an encoder_output": lambda: run(cross_attention()),
}


@pytest.mark.parametrize("words", ERRORS)
def test_errors(words):
    with pytest.raises((TypeError, ValueError), match=words):
        jax.eval_shape(ERRORS[words])
