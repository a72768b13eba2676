"""Decoder-only and encoder-only language models, and decoding with `prefill` and `step`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import masks
from tests.attention.modules.inputs import (
    LENGTHS,
    B,
    S,
    assert_close,
    call,
    language_model,
    small_translator,
    tokens,
)
from tests.attention.primitives.inputs import jitted

T = 7
TOKENS, SENTENCES = tokens(2, T), tokens(B, S)


def score(model, given, **fields):
    return call(model, given, **fields).logits


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
