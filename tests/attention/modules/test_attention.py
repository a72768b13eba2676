"""The attention module against its own parameters, by hand and through the oracle."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention import Dropout, masks, rotary
from attention.modules import Attention
from attention.primitives.dropout import keep_factor
from tests import oracle
from tests.attention.modules.inputs import filled
from tests.attention.primitives.inputs import CAUSAL, DIMS, POSITIONS, K, N, S, T, draw

B, H = DIMS["BH"]
WIDTH, MEMORY_WIDTH, VALUE_WIDTH = 18, 17, 13
RATE = 0.4
INPUTS, MEMORY = draw((B, T, WIDTH), (B, S, MEMORY_WIDTH))

run = jax.jit(Attention.__call__, static_argnames="returning")


def attention(width=WIDTH, **changes):
    return filled(lambda: Attention(width, **({"num_heads": N} | changes), rngs=nnx.Rngs(0)))


cross_attention = functools.partial(
    attention, num_kv_heads=K, head_width=H, value_width=VALUE_WIDTH, memory_width=MEMORY_WIDTH
)


def by_hand(module, inputs, memory, allowed=None, keep=None):
    """Four matrix products and the oracle, in float64; output and weights."""

    def project(linear, array, equation):
        bias = 0 if linear.bias is None else np.asarray(linear.bias[...], np.float64)
        kernel = np.asarray(linear.kernel[...], np.float64)
        return np.einsum(equation, np.asarray(array, np.float64), kernel) + bias

    def normal(norm, vectors):
        if isinstance(norm, nnx.LayerNorm):
            vectors = vectors - vectors.mean(-1, keepdims=True)
        elif norm is None:
            return vectors
        vectors = vectors / np.sqrt((vectors**2).mean(-1, keepdims=True) + 1e-6)
        bias = 0 if getattr(norm, "bias", None) is None else np.asarray(norm.bias[...])
        return vectors * np.asarray(norm.scale[...]) + bias

    attended = oracle.attention(
        normal(module.query_norm, project(module.query, inputs, "BTD,DNH->BTNH")),
        normal(module.key_norm, project(module.key, memory, "BSD,DKH->BSKH")),
        project(module.value, memory, "BSD,DKH->BSKH"),
        allowed,
        keep=keep,
    )
    return project(module.output, attended.output, "BTNH,NHD->BTD"), attended.weights


def assert_close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_kv_heads": 1},
        {"num_kv_heads": K, "use_bias": False},
        {"head_width": H, "value_width": VALUE_WIDTH, "qk_norm": "layer"},
        {"num_kv_heads": K, "qk_norm": "rms"},
    ],
    ids=["defaults", "multi-query", "grouped-without-bias", "widths-and-norm", "grouped-rms"],
)
def test_self_attention_is_its_projections_and_the_primitive(changes):
    module = attention(**changes)
    output, extras = run(module, INPUTS, mask=masks.causal())
    expected, _ = by_hand(module, INPUTS, INPUTS, lambda row, column: column <= row)
    assert_close(output, expected)
    assert extras == {}


@pytest.mark.parametrize("use_bias", [True, False])
def test_cross_attention_reads_a_memory_of_another_width_and_length(use_bias):
    module = cross_attention(use_bias=use_bias)
    lengths = [3, S]
    output, extras = run(
        module, INPUTS, MEMORY, mask=masks.lengths(lengths), returning=("weights",)
    )
    allowed = np.broadcast_to(np.arange(S) < np.array(lengths)[:, None, None], (B, T, S))
    expected, weights = by_hand(module, INPUTS, MEMORY, allowed)
    assert output.shape == (B, T, WIDTH)
    assert_close(output, expected)
    assert_close(extras["weights"], weights)


def test_a_bool_array_is_a_mask():
    module = cross_attention()
    allowed = np.random.default_rng(0).random((B, T, S)) < 0.5
    allowed[0, 0] = False  # a query that sees nothing gets the output's bias alone
    output, _ = run(module, INPUTS, MEMORY, mask=jnp.asarray(allowed))
    assert_close(output, by_hand(module, INPUTS, MEMORY, allowed)[0])
    assert_close(output[0, 0], module.output.bias[...])


def test_positions_say_where_the_queries_stand_among_the_keys():
    module = cross_attention()
    output, _ = run(module, INPUTS, MEMORY, mask=masks.causal(), positions=POSITIONS)
    allowed = np.broadcast_to(CAUSAL, (B, T, S))
    assert_close(output, by_hand(module, INPUTS, MEMORY, allowed)[0])


def test_causal_between_lengths_that_differ_is_refused_without_positions():
    with pytest.raises(ValueError, match=r"5.*7"):
        jax.eval_shape(functools.partial(cross_attention(), mask=masks.causal()), INPUTS, MEMORY)


@pytest.mark.parametrize(
    "changes, shapes",
    [
        ({}, {"query": (18, 6, 3), "key": (18, 6, 3), "value": (18, 6, 3), "output": (6, 3, 18)}),
        (
            {"num_kv_heads": 2, "head_width": 7, "memory_width": 5},
            {"query": (18, 6, 7), "key": (5, 2, 7), "value": (5, 2, 7), "output": (6, 7, 18)},
        ),
        (
            {"num_kv_heads": 1, "value_width": 11},
            {"query": (18, 6, 3), "key": (18, 1, 3), "value": (18, 1, 11), "output": (6, 11, 18)},
        ),
    ],
    ids=["defaults", "widths", "value-width"],
)
def test_what_is_not_given_follows_from_the_rest(changes, shapes):
    build = functools.partial(Attention, 18, num_heads=6, **changes)
    module = jax.eval_shape(lambda: build(rngs=nnx.Rngs(0)))
    bare = jax.eval_shape(lambda: build(use_bias=False, rngs=nnx.Rngs(0)))
    for name, shape in shapes.items():
        # A kernel has its inputs' axes first: one for the heads to come, two for the heads behind.
        bias = shape[2:] if name == "output" else shape[1:]
        assert getattr(module, name).kernel.shape == shape
        assert getattr(module, name).bias.shape == bias
        assert getattr(bare, name).bias is None


def test_projections_start_with_variance_one_over_their_inputs():
    module = Attention(
        120, num_heads=12, num_kv_heads=6, value_width=20, memory_width=90, rngs=nnx.Rngs(0)
    )
    inputs = {"query": 120, "key": 90, "value": 90, "output": 12 * 20}
    for name, number in inputs.items():
        linear = getattr(module, name)
        np.testing.assert_allclose(np.var(linear.kernel[...]) * number, 1, rtol=0.1)
        np.testing.assert_array_equal(linear.bias[...], 0)


class TestDropout:
    """A key drops, no key does not; whose key, whose pairs."""

    def test_without_a_key_nothing_is_dropped(self):
        output, _ = run(cross_attention(dropout=RATE), INPUTS, MEMORY)
        np.testing.assert_array_equal(output, run(cross_attention(), INPUTS, MEMORY)[0])

    def test_a_rate_of_zero_drops_nothing(self):
        module, key = cross_attention(), jax.random.key(0)
        output, _ = run(module, INPUTS, MEMORY, key=key)
        np.testing.assert_array_equal(output, run(module, INPUTS, MEMORY)[0])

    def test_the_key_decides(self):
        module = cross_attention(dropout=RATE)
        first, again, other = (
            run(module, INPUTS, MEMORY, key=jax.random.key(seed))[0] for seed in (0, 0, 1)
        )
        np.testing.assert_array_equal(first, again)
        assert not np.allclose(first, other)

    def test_each_example_drops_by_a_key_of_its_own(self):
        module, key = cross_attention(dropout=RATE), jax.random.key(0)
        output, _ = run(module, INPUTS, MEMORY, key=key)
        dropout = Dropout(jax.random.split(key, B), RATE)
        keep = np.asarray(keep_factor(dropout, *(jnp.arange(size) for size in (N, T, S))))
        assert (keep[0] != keep[1]).mean() > 0.3  # 0.48 of the pairs differ by chance
        assert_close(output, by_hand(module, INPUTS, MEMORY, keep=keep)[0])

    def test_a_single_example_drops_too(self):
        module = cross_attention(dropout=RATE)
        output, _ = run(module, INPUTS[0], MEMORY[0], key=jax.random.key(0))
        assert output.shape == (T, WIDTH)
        assert not np.allclose(output, run(module, INPUTS[0], MEMORY[0])[0])

    def test_the_mean_over_keys_is_the_output_without_dropout(self):
        module = cross_attention(dropout=RATE)
        keys = jax.random.split(jax.random.key(0), 4000)
        outputs = jax.jit(jax.vmap(lambda key: module(INPUTS, MEMORY, key=key)[0]))(keys)
        error = outputs.mean(0) - run(module, INPUTS, MEMORY)[0]
        assert np.abs(error / (outputs.std(0) / len(keys) ** 0.5)).max() < 5  # standard errors


@pytest.mark.parametrize("dropout", [0.0, RATE], ids=["", "dropout"])
def test_asking_for_more_never_changes_the_output(dropout):
    module, key = cross_attention(dropout=dropout), jax.random.key(0)
    alone, _ = run(module, INPUTS, MEMORY, key=key)
    everything = ("weights", "logsumexp")
    output, extras = run(module, INPUTS, MEMORY, key=key, returning=everything)
    np.testing.assert_array_equal(output, alone)
    assert {name: array.shape for name, array in extras.items()} == {
        "weights": (B, N, T, S),
        "logsumexp": (B, N, T),
    }
    np.testing.assert_allclose(extras["weights"].sum(-1), 1, rtol=1e-5)  # before any dropout


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"num_kv_heads": 4}, r"num_heads=6 .* num_kv_heads=4: use one of 1, 2, 3, 6"),
        ({"num_kv_heads": 0}, r"num_heads=6 .* num_kv_heads=0: use one of 1, 2, 3, 6"),
        ({"width": 20}, r"width=20 is not divisible by num_heads=6: .* set head_width"),
        ({"head_width": 0}, r"head_width must be at least 1, got 0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_in_one_sentence(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        attention(**changes)


def test_a_word_that_attention_cannot_return_is_refused():
    with pytest.raises(ValueError, match=r"weight'.*weights"):
        jax.eval_shape(functools.partial(attention(), returning=("weight",)), INPUTS)


def test_rotary_positions_are_relative_and_heard():
    module = attention(head_width=14, turn=rotary)
    unturned = attention(head_width=14)

    def at(start):
        positions = jnp.arange(start, start + T)
        return run(module, INPUTS, mask=masks.causal(), positions=(positions, positions))[0]

    counted, _ = run(module, INPUTS, mask=masks.causal())
    assert_close(counted, at(0))
    assert_close(counted, at(29))
    assert abs(counted - run(unturned, INPUTS, mask=masks.causal())[0]).max() > 1e-2


def test_rotary_positions_are_never_guessed():
    module = attention(head_width=14, memory_width=MEMORY_WIDTH, turn=rotary)
    with pytest.raises(ValueError, match="5 queries and 7 keys leave open where they stand"):
        module(INPUTS, MEMORY)
