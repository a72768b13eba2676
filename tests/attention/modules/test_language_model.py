"""Decoder-only and encoder-only language models, and decoding with `prefill` and `step`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import masks
from attention.modules import Context
from tests.attention.modules.inputs import (
    DIMS,
    LENGTHS,
    B,
    S,
    assert_close,
    assert_no_leaks,
    language_model,
    masked_language_model,
    project,
    small_translator,
    tokens,
)
from tests.attention.primitives.inputs import jitted

D, V = DIMS["DV"]
T = 7
TOKENS = tokens(2, T)
SENTENCES = tokens(B, S)
MASK = masks.lengths(LENGTHS)
PADDING = np.arange(S) >= LENGTHS[:, None]


@jitted
def score(model, given, **fields):
    return model(given, **fields).logits


class TestLanguageModel:
    @pytest.mark.parametrize("tie", ["none", "output"])
    def test_a_logit_depends_on_earlier_tokens_alone(self, tie):
        model = language_model(tie=tie)
        assert (model.output is None) == (tie == "output")
        assert_no_leaks(lambda given: score(model, given), TOKENS, np.tri(T, dtype=bool))

    def test_embedding_decoder_and_output(self):
        model = language_model(tie="none")
        features = jitted(lambda model: model.decoder(model.embedding(TOKENS)).features)(model)
        assert_close(score(model, TOKENS), project(model.output, features))

    @pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
    def test_packed_texts_are_scored_like_separate_ones(self, positions):
        model = language_model(positions=positions, decoder_layers=1)
        mask = masks.segments(np.array([1, 1, 1, 2, 2, 2, 2]))
        counted = np.array([0, 1, 2, 0, 1, 2, 3])
        packed = score(model, TOKENS, mask=mask, embedding_positions=counted)
        alone = score(model, TOKENS[:, 3:])
        assert_close(packed[:, 3:], alone)
        first = score(model, TOKENS)[:, :3]  # the decoder is causal
        assert_close(packed[:, :3], first)

    @pytest.mark.parametrize("kind", ["sinusoidal", "rotary", "alibi"])
    def test_positions_are_those_of_every_encoding(self, kind):
        model = language_model(positions=kind, decoder_layers=1)
        stretched = {"positions": 3 * jnp.arange(T)}
        changed = score(model, TOKENS, **stretched) - score(model, TOKENS)
        assert np.abs(changed).max() > 1e-3


class TestDecoding:
    """Limits of positions; tests/attention/decoding compares decoding with full passes."""

    @pytest.mark.parametrize("positions", ["rotary", "alibi", "none"])
    def test_other_positions_never_end_and_decoding_attends_to_the_last_max_length_tokens(
        self, positions
    ):
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

    def test_lengths_above_the_number_of_tokens(self):
        with pytest.raises(ValueError, match=r"lengths must lie in 0 to 7 tokens, got .*8 2"):
            masked_language_model()(TOKENS, lengths=np.array([8, 2]))

    @pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
    def test_positions_of_embeddings_end_at_max_length(self, positions):
        model, sentence = language_model(positions=positions), "24 tokens is longer than max_length"
        assert model.max_input_length(18) == 6
        with pytest.raises(ValueError, match=sentence):
            model(tokens(1, 24))
        with pytest.raises(ValueError, match=sentence):
            model.prefill(TOKENS, np.array([7, 7]), max_tokens=18)
        translator = small_translator(positions=positions)
        with pytest.raises(ValueError, match=sentence):
            translator.prefill(SENTENCES, LENGTHS, max_tokens=24)


class TestMaskedLanguageModel:
    @pytest.mark.parametrize("tie", ["none", "output"])
    def test_embedding_encoder_and_output(self, tie):
        model = masked_language_model(tie=tie)
        assert (model.output is None) == (tie == "output")

        context = Context(mask=MASK)
        encode = jitted(lambda m: m.encoder(m.embedding(SENTENCES), context=context).features)
        table = model.embedding.tokens[...].T if tie == "output" else model.output.kernel[...]
        assert_close(score(model, SENTENCES, mask=MASK), encode(model) @ np.asarray(table))

    def test_every_position_depends_on_its_sentence_without_padding(self):
        model = masked_language_model()

        def may_see(output, given):
            (row, place), (other_row, other) = output, given
            return row == other_row and (other < LENGTHS[row] or other == place)

        assert_no_leaks(lambda given: score(model, given, mask=MASK), SENTENCES, may_see)

    def test_padding_may_be_nan(self):
        model = masked_language_model()
        outside = np.where(PADDING, V, SENTENCES)  # an id out of range: its vector is NaN
        ours, theirs = (np.asarray(score(model, each, mask=MASK)) for each in (SENTENCES, outside))
        assert np.isnan(theirs[PADDING]).all()
        np.testing.assert_array_equal(ours[~PADDING], theirs[~PADDING])
