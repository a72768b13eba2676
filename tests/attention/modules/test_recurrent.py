"""Recurrent encoder-decoder: equations, padding, cache, decoding protocol."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention import masks, scores
from attention.modules.recurrent import (
    ATTENTIONS,
    CELLS,
    AdditiveAttention,
    BahdanauStep,
    RecurrentConfig,
    RecurrentEncoderDecoder,
)
from tests.attention.modules import inputs
from tests.attention.modules.inputs import (
    DIMS,
    LENGTHS,
    B,
    S,
    T,
    double,
    filled,
    project,
    tokens,
    translate,
)
from tests.attention.primitives.inputs import draw, jitted

D, F, V = DIMS["DFV"]
SOURCE, TARGET = tokens(B, S, seed=1), tokens(B, T, seed=2)
SOURCE_MASK = masks.lengths(LENGTHS)
PADDING = np.arange(S) >= LENGTHS[:, None]
# Every cell and every attention occurs once.
MODELS = {
    "additive": {"attention": "additive", "cell": "gru"},
    "multiplicative": {"attention": "multiplicative", "cell": "lstm"},
    "none": {"attention": "none", "cell": "gru"},
}
every_model = pytest.mark.parametrize("kind", MODELS)


@functools.cache
def small(kind, seed=0, **changes):
    given = {"embedding_width": D, "hidden": F, "max_length": 23} | MODELS[kind] | changes
    return filled(lambda: build(given), seed)


def build(given):
    sizes = {"source_vocab_size": DIMS["v"][0], "target_vocab_size": V}
    return RecurrentEncoderDecoder.from_config(RecurrentConfig(**given), **sizes, rngs=nnx.Rngs(0))


@functools.partial(jitted, static_argnames="returning")
def call(model, source, target, lengths, rng=None, returning=()):
    mask = masks.lengths(lengths)
    return model(source, target, source_mask=mask, encoder_mask=mask, rng=rng, returning=returning)


assert_close = functools.partial(inputs.assert_close, tolerance=2e-5)


@jitted
def advance(cell, carry, inputs):
    return cell(carry, inputs)[0]


def equations(model, kind, source, target):
    """Return logits `[T, V]` and weights `[T, S]` of one row; all but the cells is in float64."""
    is_lstm = MODELS[kind]["cell"] == "lstm"

    def initial(vector):
        return (np.float32(vector),) * 2 if is_lstm else np.float32(vector)

    def step(cell, carry, vector):
        carry = advance(cell, carry, np.float32(vector))
        return carry, output(carry)

    def output(carry):
        return np.float64(carry[1] if is_lstm else carry)

    def embed(embedding, ids):
        return double(embedding.tokens)[np.asarray(ids)] * np.sqrt(D)

    def run(cell, vectors):
        carry, outputs = initial(np.zeros(F)), []
        for vector in vectors:
            carry, state = step(cell, carry, vector)
            outputs.append(state)
        return outputs

    vectors = embed(model.source_embedding, source)
    forward = run(model.encoder.forward, vectors)
    backward = run(model.encoder.backward, vectors[::-1])[::-1]
    annotations = np.concatenate([forward, backward], axis=1)
    decoder, attention = model.decoder.step, model.decoder.attention
    final = np.concatenate([forward[-1], backward[0]])
    summary = np.tanh(project(model.decoder.summary, final))

    def attend(state):
        if kind == "none":
            return summary, np.zeros(len(source))
        query = project(attention.query, state)
        if kind == "additive":
            sums = np.tanh(query + project(attention.key, annotations))
            scores = sums @ double(attention.vector)[0]
        else:
            scores = annotations @ query
        weights = np.exp(scores) / np.exp(scores).sum()
        return weights @ annotations, weights

    carry, input_feed, logits, all_weights = initial(summary), np.zeros(F), [], []
    for vector in embed(model.target_embedding, target):
        if kind == "multiplicative":
            carry, state = step(decoder.cell, carry, np.concatenate([vector, input_feed]))
            context, weights = attend(state)
            input_feed = features = np.tanh(project(decoder.join, np.concatenate([context, state])))
        else:
            context, weights = attend(output(carry))
            inputs = np.concatenate([vector, context])
            carry, state = step(decoder.cell, carry, inputs)
            features = np.concatenate([state, inputs])
        logits.append(project(model.output, features))
        all_weights.append(weights)
    return np.array(logits), np.array(all_weights)


@every_model
def test_values_equal_the_equations_without_padding(kind):
    """Padding is an id out of range, which is embedded as NaN."""
    model, returning = small(kind), () if kind == "none" else ("weights",)
    source = np.where(PADDING, np.int32(1000), SOURCE)
    output = call(model, source, TARGET, LENGTHS, returning=returning)
    np.testing.assert_array_equal(output.logits, translate(model, source, TARGET, LENGTHS))
    weights = np.zeros((B, T, S))
    if returning:
        weights = output.attention[0]["cross_attention"]["weights"][:, 0]
        assert not np.where(PADDING[:, None], weights, 0).any()
    for row, length in enumerate(LENGTHS):
        expected, expected_weights = equations(model, kind, SOURCE[row, :length], TARGET[row])
        assert_close(output.logits[row], expected)
        assert_close(weights[row, :, :length], expected_weights)


def test_padding_on_both_sides():
    model = small("additive")
    end, begin = masks.lengths(LENGTHS + 2), ~masks.lengths(2)
    given = {"mask": begin, "lengths": LENGTHS + 2}

    @jitted
    def run(source):
        features = model.encode(source, **given).features
        return model.logits(model.decode(TARGET, features, encoder_mask=begin & end).features)

    shifted = np.pad(SOURCE, ((0, 0), (2, 4)), constant_values=1000)
    assert_close(run(shifted), translate(model, SOURCE, TARGET, LENGTHS))


@every_model
def test_gradient_is_finite_with_an_empty_source_and_padding_of_nan(kind):
    lengths = np.array([S, 0, 2])
    source = np.where(np.arange(S) >= lengths[:, None], np.int32(1000), SOURCE)

    @jitted
    @jax.value_and_grad
    def loss(model):
        scores = translate(model, source, TARGET, lengths)
        return -jnp.take_along_axis(jax.nn.log_softmax(scores), TARGET[..., None], -1).mean()

    value, gradient = loss(small(kind))
    assert np.isfinite(value)
    for path, slopes in jax.tree_util.tree_leaves_with_path(gradient):
        assert np.isfinite(slopes).all()
        assert np.abs(slopes).max() > 1e-6, jax.tree_util.keystr(path)


class TestCache:
    """Cached decoding equals the full pass."""

    @every_model
    def test_pieces_of_several_lengths_per_row(self, kind):
        model = small(kind)
        first = np.array([3, 0, 2])  # lengths of the first piece; others are valid in all rows
        rows = jnp.arange(B)[:, None]

        @jitted
        def in_pieces(model, first):
            encoded = model.encode(SOURCE, mask=SOURCE_MASK).features
            cache = model.new_cache((B,), T, encoder_output=encoded)
            logits, options = jnp.full((B, T + 1, V), jnp.nan), {"encoder_mask": SOURCE_MASK}
            for size, lengths in ((3, first), (1, None), (1, None)):
                columns = cache.lengths[:, None] + jnp.arange(size)[None]
                piece = jnp.asarray(TARGET).at[rows, columns].get(mode="clip")
                output = model.decode(piece, None, cache=cache, lengths=lengths, **options)
                cache = output.cache
                columns = jnp.where(columns < cache.lengths[:, None], columns, T)
                logits = logits.at[rows, columns].set(model.logits(output.features))
            return logits[:, :T], cache.lengths

        whole = translate(model, SOURCE, TARGET, LENGTHS)
        pieces, read = in_pieces(model, first)
        np.testing.assert_array_equal(read, first + 2)
        for row in range(B):
            assert_close(pieces[row, : read[row]], whole[row, : read[row]])

    def test_encoder_mask_may_depend_on_positions(self):
        model = small("multiplicative")
        allowed = np.random.default_rng(0).random((T, S)) < 0.5
        mask = masks.from_array(allowed)

        @jitted
        def both(model):
            encoder_output = model.encode(SOURCE, mask=None).features
            # Column p of the mask is the encoder output at S - 1 - p.
            at = {"encoder_positions": jnp.arange(S)[::-1]}
            options = at | {"encoder_mask": mask, "returning": ("weights",)}
            whole = model.decode(TARGET, encoder_output, **options)
            cache, pieces = model.new_cache((B,), T, encoder_output=encoder_output, **at), []
            for piece in (slice(0, 3), slice(3, T)):
                output = model.decode(TARGET[:, piece], None, encoder_mask=mask, cache=cache)
                cache = output.cache
                pieces.append(output.features)
            return whole, jnp.concatenate(pieces, axis=1)

        whole, pieces = both(model)
        assert_close(pieces, whole.features)
        weights = whole.attention[0]["cross_attention"]["weights"]
        expected = np.broadcast_to(allowed[:, ::-1], (B, T, S))
        np.testing.assert_array_equal(weights[:, 0] > 0, expected)


@functools.partial(jitted, static_argnames="returning")
def decode_steps(model, target, returning=()):
    """Return the outputs of T steps, stacked on a leading axis, and the last state."""
    state, first = model.prefill(SOURCE, LENGTHS, max_tokens=T)
    assert first is None

    def step(state, tokens):
        output, state = model.step(state, tokens, returning=returning)
        return state, (output.logits, output.attention)

    state, outputs = jax.lax.scan(step, state, target.T)
    return *outputs, state


@jitted
def prefill(model):
    return model.prefill(SOURCE, LENGTHS, max_tokens=T)[0]


class TestDecodingProtocol:
    """`prefill` and `step`, which `attention.decoding.generate` calls."""

    @every_model
    def test_steps_equal_the_full_pass(self, kind):
        returning = () if kind == "none" else ("weights",)
        logits, attention, _ = decode_steps(small(kind), TARGET, returning)
        whole = call(small(kind), SOURCE, TARGET, LENGTHS, returning=returning)
        assert_close(jnp.swapaxes(logits, 0, 1), whole.logits)
        if returning:
            weights = attention[0]["cross_attention"]["weights"]
            expected = whole.attention[0]["cross_attention"]["weights"]
            assert_close(weights[:, :, 0, 0], jnp.moveaxis(expected[:, 0], 1, 0))
        assert not small(kind).is_prompted

    def test_keys_are_computed_once(self, monkeypatch):
        model = small("additive")
        state = prefill(model)
        (key, value), _ = state[1].encoder_output.value
        assert_close(key, model.decoder.attention.key(value))
        monkeypatch.delattr(AdditiveAttention, "precompute")
        jax.eval_shape(model.step, state, TARGET[:, 0])

    @every_model
    def test_cache_dtype_is_that_of_the_encoder_output(self, kind):
        def read(model):
            encoded = model.encode(SOURCE, lengths=LENGTHS).features
            cache = model.new_cache((B,), T, encoder_output=encoded, dtype="bfloat16")
            output = model.decode(TARGET, None, encoder_mask=SOURCE_MASK, cache=cache)
            return model.logits(output.features), output.cache

        logits, cache = jax.eval_shape(read, small(kind))
        precomputed, _ = cache.encoder_output.value
        chex.assert_type(jax.tree.leaves(precomputed), jnp.bfloat16)
        chex.assert_type([*jax.tree.leaves(cache.carry), logits], jnp.float32)


@every_model
def test_bfloat16_computation_with_float32_parameters(kind):
    half = small(kind, dtype="bfloat16")
    chex.assert_type(jax.tree.leaves(half), jnp.float32)
    logits = translate(half, SOURCE, TARGET, LENGTHS)
    chex.assert_type(logits, jnp.bfloat16)
    expected = translate(small(kind), SOURCE, TARGET, LENGTHS)
    assert_close(logits.astype(jnp.float32), expected, tolerance=0.2)
    parameters = jax.eval_shape(lambda: build({"param_dtype": "bfloat16"} | MODELS[kind]))
    chex.assert_type(jax.tree.leaves(parameters), jnp.bfloat16)


def test_dropout_is_applied_to_embeddings_of_both_sides():
    model = small("additive", dropout=0.3)
    plain = translate(model, SOURCE, TARGET, LENGTHS)
    np.testing.assert_array_equal(plain, translate(small("additive"), SOURCE, TARGET, LENGTHS))
    first, again, other = (
        call(model, SOURCE, TARGET, LENGTHS, jax.random.key(seed), ("hidden_states",))
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first.logits, again.logits)
    for one, two in ((first, other), (first.encoder, other.encoder)):
        lost, others = one.hidden_states[0] == 0, two.hidden_states[0] == 0
        assert lost.any() and (lost != others).any()


class MeanAttention(nnx.Module):
    """Uniform weights: a user's attention."""

    def __init__(self, *sizes, **options):
        """Make no parameters."""

    def precompute(self, encoder_output):
        return encoder_output

    def __call__(self, state, precomputed, **options):
        return precomputed.mean(-2)[..., None, None, :]


def test_attention_and_cell_of_a_user(monkeypatch):
    monkeypatch.setitem(ATTENTIONS, "mean", (MeanAttention, BahdanauStep))
    monkeypatch.setitem(CELLS, "simple", nnx.SimpleCell)
    model = small("additive", attention="mean", cell="simple")
    logits, _, _ = decode_steps(model, TARGET)
    whole = translate(model, SOURCE, TARGET, LENGTHS)
    assert_close(logits.swapaxes(0, 1), whole)
    assert not np.allclose(whole, translate(small("additive"), SOURCE, TARGET, LENGTHS))


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"embedding_width": 0}, "embedding_width must be at least 1, got 0"),
        ({"cell": "gro"}, "cell must be one of gru, lstm, .*; did you mean 'gru'[?]"),
        ({"attention": "adaptive"}, "attention must be one of .*; did you mean 'additive'[?]"),
    ],
)
def test_invalid_values_of_a_config(changes, words):
    with pytest.raises(ValueError, match=words):
        RecurrentConfig(**changes)


@pytest.mark.parametrize(
    "given, words",
    [
        ({"mask": masks.causal() & SOURCE_MASK}, "can only hide padding"),
        ({"mask": masks.lengths(S, query_lengths=2)}, "can only hide padding"),
        ({"mask": np.ones((S, S), bool)}, "can only hide padding"),
        ({"positions": np.arange(S)}, "reads in order: no positions or score"),
    ],
)
def test_arguments_of_encode_that_do_not_fit(given, words):
    with pytest.raises(ValueError, match=words):
        small("none").encode(SOURCE, **given)


@pytest.mark.parametrize(
    "given, words",
    [
        ({"mask": masks.causal()}, "reads in order: no mask, positions or score"),
        ({"positions": np.arange(T)}, "reads in order: no mask, positions or score"),
        ({"score": scores.softcap(5.0)}, "reads in order: no mask, positions or score"),
        ({"returning": ("weights",)}, "without attention cannot return weights"),
        ({"encoder_output": None}, "needs an encoder output or a cache of one"),
        ({"lengths": jnp.ones(B)}, "lengths must be integers"),
        ({"lengths": np.array([0, 6, 1])}, "must lie in 0 to 5 tokens"),
    ],
)
def test_arguments_of_decode_that_do_not_fit(given, words):
    options = {"encoder_output": draw((B, S, 2 * F))[0], "encoder_mask": None} | given
    with pytest.raises((TypeError, ValueError), match=words):
        small("none").decode(TARGET, **options)
