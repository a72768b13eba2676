"""Self-attention and cross-attention: their own parameters by hand, through the oracle."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from flax import nnx

from attention import Dropout, masks, scores
from attention.modules import CacheSpec, Context, CrossAttention, Output, SelfAttention
from attention.modules.context import DEFAULT_CONTEXT
from attention.primitives.dropout import keep_factor
from tests import oracle
from tests.attention.modules.inputs import assert_close, call, filled, normalize, project
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
INPUTS, ENCODER_OUTPUT = draw((B, T, WIDTH), (B, S, SOURCE_WIDTH))


def attention(width=WIDTH, **changes):
    return filled(lambda: SelfAttention(width, **({"num_heads": N} | changes), rngs=nnx.Rngs(0)))


def cross_attention(width=WIDTH, **changes):
    sizes = {"num_kv_heads": K, "head_width": H, "value_width": VALUE_WIDTH}
    sizes |= {"num_heads": N, "source_width": SOURCE_WIDTH}
    return filled(lambda: CrossAttention(width, **(sizes | changes), rngs=nnx.Rngs(0)))


def run(module, inputs=INPUTS, context=DEFAULT_CONTEXT):
    return call(module, inputs, context=context)


def by_hand(module, inputs, source, allowed=True, keep=None):
    """Four matrix products and the oracle, in float64; output and weights."""

    def maybe_normalize(norm, vectors):
        return vectors if norm is None else normalize(norm, vectors)

    query = maybe_normalize(module.query_norm, project(module.query, inputs))
    attended = oracle.attention(
        query if module.scale is None else query * module.scale * query.shape[-1] ** 0.5,
        maybe_normalize(module.key_norm, project(module.key, source)),
        project(module.value, source),
        np.broadcast_to(allowed, (B, T, source.shape[1])),
        keep=keep,
    )
    return project(module.output, attended.output, num_axes=2), attended.weights


LENGTHS = np.array([2, T])
VALID = np.arange(T) < LENGTHS[:, None, None]
TRI, NEAR = np.tri(T, dtype=bool), np.abs(np.arange(T)[:, None] - np.arange(T)) < 3
SOME = changed(np.random.default_rng(0).random((B, T, S)) < 0.5, (0, 0), False)
CAUSAL_MASK = {"mask": masks.causal()}
# Changes of the module, fields of the context, and the pairs that they allow.
SELF = {
    "defaults": ({}, {}, True),
    "grouped without bias": ({"num_kv_heads": K, "use_bias": False}, CAUSAL_MASK, TRI),
    "scale": ({"use_bias": False, "qkv_bias": True, "scale": 0.3}, CAUSAL_MASK, TRI),
    "widths and norm": (
        {"head_width": H, "value_width": VALUE_WIDTH, "qk_norm": "layer", "norm_epsilon": 0.1},
        {"lengths": LENGTHS},
        VALID,
    ),
    "rms": ({"num_kv_heads": K, "qk_norm": "rms"}, {"mask": TRI, "lengths": LENGTHS}, TRI & VALID),
    "window": ({"window": 2}, {}, NEAR),
    # Rows and columns of an array, and lengths, are not positions.
    "array": (
        {"window": 2},
        {"mask": SOME[1, :, :T], "lengths": LENGTHS, "positions": np.arange(T) + 10},
        SOME[1, :, :T] & NEAR & VALID,
    ),
}


@pytest.mark.parametrize("name", SELF)
def test_self_attention_is_its_projections_and_attend(name):
    changes, fields, allowed = SELF[name]
    module = attention(**changes)
    output = run(module, context=Context(**fields))
    assert_close(output.features, by_hand(module, INPUTS, INPUTS, allowed)[0])
    assert (output.attention, output.cache, output.losses) == (None, None, {})


AT = {"encoder_mask": masks.causal(), "positions": POSITIONS[0]}
CROSS = {
    "lengths": ({"encoder_mask": masks.lengths([3, S])}, np.arange(S) < [[[3]], [[S]]]),
    "array": ({"encoder_mask": SOME[:, None]}, SOME),  # a query that sees nothing gets the bias
    "positions": (AT | {"encoder_positions": POSITIONS[1] + 1}, np.tri(T, S, 1, bool)),
    "counted keys": (AT, CAUSAL),
    "counted": ({"encoder_mask": masks.causal()}, np.tri(T, S, dtype=bool)),
}


@jitted
def with_and_without_a_cache(module, context):
    given = {name: getattr(context, name) for name in ("encoder_output", "encoder_positions")}
    cache = module.new_cache(CacheSpec(batch=(B,), size=T, **given))
    cached = replace(context, **dict.fromkeys(given), cache=cache)
    return [module(INPUTS, context=each)._replace(cache=None) for each in (context, cached)]


@pytest.mark.parametrize("name", CROSS)
def test_cross_attention_to_an_encoder_output_of_another_width_and_length(name):
    fields, allowed = CROSS[name]
    module = cross_attention()
    context = Context(encoder_output=ENCODER_OUTPUT, returning=("weights",), **fields)
    expected, weights = by_hand(module, INPUTS, ENCODER_OUTPUT, allowed)
    for output in with_and_without_a_cache(module, context):
        assert_close(output.features, expected)
        assert_close(output.attention["weights"], weights)


def test_no_mask_is_causal_with_a_cache():
    module = attention()
    cache = module.new_cache(CacheSpec(batch=(B,), size=T))
    output = run(module, context=Context(cache=cache))
    assert_close(output.features, by_hand(module, INPUTS, INPUTS, TRI)[0])


def test_each_example_has_its_own_random_key():
    module, rng = cross_attention(dropout=0.4), jax.random.key(0)
    output = run(module, context=Context(encoder_output=ENCODER_OUTPUT, rng=rng)).features
    dropout = Dropout(jax.random.split(rng, B), 0.4)
    keep = jitted(keep_factor)(dropout, *(np.arange(size) for size in (N, T, S)))
    assert (keep[0] != keep[1]).mean() > 0.3  # 0.48 of the pairs differ by chance
    assert_close(output, by_hand(module, INPUTS, ENCODER_OUTPUT, keep=keep)[0])


def test_softcap_bounds_the_scores_after_all_score_functions():
    bias = scores.bias_array(draw((N, T, T))[0])
    output = run(attention(softcap=0.7, score=lambda: bias), context=Context(score=bias))
    plain = Context(score=(bias, bias, scores.softcap(0.7)))
    assert_close(output.features, run(attention(), context=plain).features)


def test_projections_start_with_variance_one_over_their_inputs():
    sizes = {"num_heads": 12, "num_kv_heads": 6, "value_width": 20, "source_width": 90}
    module = jitted(lambda: CrossAttention(120, **sizes, rngs=nnx.Rngs(0)))()
    inputs = {"query": 120, "key": 90, "value": 90, "output": 12 * 20}
    for name, number in inputs.items():
        linear = getattr(module, name)
        np.testing.assert_allclose(np.var(linear.kernel[...]) * number, 1, rtol=0.1)
        np.testing.assert_array_equal(linear.bias[...], 0)


ERRORS = {
    "a function that returns a score function, got a Soft": lambda: attention(
        score=scores.softcap(3.0)
    ),
    "cross-attention needs an encoder_output, an array": lambda: run(
        cross_attention(), context=Context(encoder_output=Output(ENCODER_OUTPUT))
    ),
}


@pytest.mark.parametrize("words", ERRORS)
def test_errors(words):
    with pytest.raises((TypeError, ValueError), match=words):
        jax.eval_shape(ERRORS[words])
