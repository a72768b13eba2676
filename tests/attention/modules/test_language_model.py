"""Decoder-only and encoder-only language models, and decoding with `prefill` and `step`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import masks
from tests.attention.modules.inputs import (
    DIMS,
    LENGTHS,
    B,
    S,
    assert_close,
    assert_no_leaks,
    call,
    language_model,
    masked_language_model,
    small_translator,
    tokens,
)
from tests.attention.primitives.inputs import jitted

V, T = DIMS["V"][0], 7
TOKENS, SENTENCES = tokens(2, T), tokens(B, S)
MASK = masks.lengths(LENGTHS)
PADDING = np.arange(S) >= LENGTHS[:, None]


def score(model, given, **fields):
    return call(model, given, **fields).logits


@pytest.mark.parametrize("tie", ["none", "output"])
@pytest.mark.parametrize("make", [language_model, masked_language_model])
def test_embedding_layers_and_output(make, tie):
    model = make(tie=tie)
    assert (model.output is None) == (tie == "output")
    layers = model.decoder if make is language_model else model.encoder
    features = jitted(lambda: layers(model.embedding(TOKENS)).features)()
    kernel = model.embedding.tokens[...].T if tie == "output" else model.output.kernel[...]
    assert_close(score(model, TOKENS), features @ np.asarray(kernel))


def test_a_logit_depends_on_earlier_tokens_or_on_its_sentence_alone():
    model, masked = language_model(), masked_language_model()
    assert_no_leaks(lambda given: score(model, given), TOKENS, np.tri(T, dtype=bool))

    def may_see(output, given):
        (row, place), (other_row, other) = output, given
        return row == other_row and (other < LENGTHS[row] or other == place)

    assert_no_leaks(lambda given: score(masked, given, mask=MASK), SENTENCES, may_see)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_packed_texts_are_scored_like_separate_ones(positions):
    model = language_model(positions=positions, decoder_layers=1)
    mask = masks.segments(np.array([1, 1, 1, 2, 2, 2, 2]))
    counted = np.array([0, 1, 2, 0, 1, 2, 3])
    packed = score(model, TOKENS, mask=mask, embedding_positions=counted)
    assert_close(packed[:, 3:], score(model, TOKENS[:, 3:]))
    assert_close(packed[:, :3], score(model, TOKENS)[:, :3])  # the decoder is causal


@pytest.mark.parametrize("kind", ["sinusoidal", "rotary", "alibi"])
def test_positions_are_those_of_every_encoding(kind):
    model = language_model(positions=kind, decoder_layers=1)
    stretched = {"positions": 3 * jnp.arange(T)}
    assert np.abs(score(model, TOKENS, **stretched) - score(model, TOKENS)).max() > 1e-3


@pytest.mark.parametrize("positions", ["rotary", "alibi", "none"])
def test_other_positions_never_end_and_decoding_attends_to_the_last_tokens(positions):
    model = language_model(positions=positions, max_length=3, decoder_layers=1)
    assert model.max_input_length(4) is None

    @jitted
    def decode(model):
        state, first = model.prefill(TOKENS[:, :3], np.array([3, 3]), max_tokens=4)

        def step(state, token):
            output, state = model.step(state, token)
            return state, output.logits

        return first, jax.lax.scan(step, state, TOKENS[:, 2:6].T)[1]

    first, logits = decode(model)
    np.testing.assert_array_equal(first, TOKENS[:, 2])
    expected = score(model, TOKENS[:, :6], mask=masks.window(2))[:, 5]
    assert_close(logits[-1], expected, 2e-5)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_positions_of_embeddings_end_at_max_length(positions):
    model, translator = language_model(positions=positions), small_translator(positions=positions)
    assert model.max_input_length(18) == 6
    for call_of in (
        lambda: model(tokens(1, 24)),
        lambda: model.prefill(TOKENS, np.array([7, 7]), max_tokens=18),
        lambda: translator.prefill(SENTENCES, LENGTHS, max_tokens=24),
    ):
        with pytest.raises(ValueError, match="24 tokens is longer than max_length"):
            jax.eval_shape(call_of)
