"""Decoder-only and encoder-only language models, and decoding with `prefill` and `step`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention import attend, masks
from attention.modules import Context, MaskedLanguageModel
from attention.testing import find_leaks
from tests.attention.modules.inputs import (
    DIMS,
    LENGTHS,
    B,
    S,
    call,
    filled,
    language_model,
    small_config,
    small_translator,
    tokens,
    translate,
)
from tests.attention.primitives.inputs import changed, jitted

D, V = DIMS["DV"]
T = 7
TOKENS = tokens(2, T)
SENTENCES = tokens(B, S)
MASK = masks.lengths(LENGTHS)
PADDING = np.arange(S) >= LENGTHS[:, None]


@jitted
def score(model, given, **fields):
    return model(given, **fields).logits


def masked_language_model(has_head=False, **changes):
    build = functools.partial(MaskedLanguageModel.from_config, small_config(**changes))
    return filled(lambda: build(vocab_size=V, has_head=has_head, rngs=nnx.Rngs(0)))


class TestLanguageModel:
    @pytest.mark.parametrize("tie", ["none", "output"])
    def test_a_logit_depends_on_no_later_token(self, tie):
        model = language_model(tie=tie)
        assert (model.output is None) == (tie == "output")
        before = score(model, TOKENS)
        assert before.shape == (2, T, V)
        after = score(model, changed(TOKENS, np.s_[:, 4], (TOKENS[:, 4] + 1) % V))
        np.testing.assert_array_equal(after[:, :4], before[:, :4])
        assert (after[:, 4:] != before[:, 4:]).any(-1).all()

    def test_layers_call_the_attention_of_the_context(self):
        calls = []

        def recorded(*arrays, **options):
            calls.append(options["implementation"])
            return attend(*arrays, **options)

        model = language_model()
        jax.eval_shape(lambda: model(TOKENS, attend=recorded))
        assert calls

    def test_embedding_decoder_and_output(self):
        model = language_model(tie="none")
        features = jitted(lambda model: model.decoder(model.embedding(TOKENS)).features)(model)
        expected = np.asarray(features) @ np.asarray(model.output.kernel[...])
        np.testing.assert_allclose(score(model, TOKENS), expected, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
    def test_packed_texts_are_scored_like_separate_ones(self, positions):
        model = language_model(positions=positions, decoder_layers=1)
        mask = masks.segments(np.array([1, 1, 1, 2, 2, 2, 2]))
        counted = np.array([0, 1, 2, 0, 1, 2, 3])
        packed = score(model, TOKENS, mask=mask, embedding_positions=counted)
        alone = score(model, TOKENS[:, 3:])
        np.testing.assert_allclose(packed[:, 3:], alone, rtol=1e-4, atol=1e-4)
        first = score(model, TOKENS)[:, :3]  # the decoder is causal
        np.testing.assert_allclose(packed[:, :3], first, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("kind", ["sinusoidal", "rotary", "alibi"])
    def test_positions_are_those_of_every_encoding(self, kind):
        model = language_model(positions=kind, decoder_layers=1)
        stretched = {"positions": 3 * jnp.arange(T)}
        changed = score(model, TOKENS, **stretched) - score(model, TOKENS)
        assert np.abs(changed).max() > 1e-3

    def test_the_rng_turns_dropout_on(self):
        model = language_model(dropout=0.2, attention_dropout=0.2)
        plain, keys = score(language_model(), TOKENS), jax.random.split(jax.random.key(0))
        np.testing.assert_array_equal(score(model, TOKENS), plain)
        first, again, other = (score(model, TOKENS, rng=keys[i]) for i in (0, 0, 1))
        np.testing.assert_array_equal(first, again)
        assert not np.allclose(first, plain, atol=1e-2)
        assert not np.allclose(first, other, atol=1e-2)

    def test_the_embedding_has_dropout(self):
        model = language_model(dropout=0.5, decoder_layers=0)
        dropped = score(model, TOKENS, rng=jax.random.key(0))
        assert not np.allclose(dropped, score(model, TOKENS), atol=1e-2)


class TestDecoding:
    """`prefill` and `step` equal the full pass."""

    def test_ragged_prompts(self):
        changes = {"positions": "rotary", "per_layer": [{"window": 2}]}
        model, rows = language_model(**changes, decoder_layers=2), jnp.arange(2)
        lengths = np.array([3, 1])

        @jitted
        def decode(model, prompts, lengths):
            state, first = model.prefill(prompts, lengths, max_tokens=3)

            def step(state, place):
                output, state = model.step(
                    state, jnp.asarray(TOKENS)[rows, place], returning=("weights",)
                )
                assert output.logits.shape == (2, V)
                assert len(output.attention) == 2
                return state, output.logits

            places = lengths[None] - 1 + jnp.arange(2)[:, None]
            return first, jax.lax.scan(step, state, places)[1]

        first, logits = decode(model, TOKENS[:, :4], lengths)
        assert first.tolist() == [int(TOKENS[0, 2]), int(TOKENS[1, 0])]
        expected = score(model, TOKENS)
        for row, length in enumerate([3, 1]):
            part = expected[row, length - 1 : length + 1]
            np.testing.assert_allclose(logits[:, row], part, rtol=2e-5, atol=2e-5)

    @pytest.mark.parametrize("positions", ["rotary", "sinusoidal"])
    def test_positions_that_continue_attend_to_the_last_max_length_tokens(self, positions):
        model = language_model(positions=positions, max_length=3, decoder_layers=1)

        @jitted
        def decode(model):
            state, first = model.prefill(TOKENS[:, :3], np.array([3, 3]), max_tokens=4)

            def step(state, token):
                output, state = model.step(state, token)
                return state, output.logits

            return first, jax.lax.scan(step, state, TOKENS[:, 2:6].T)[1]

        first, logits = decode(model)
        np.testing.assert_array_equal(first, TOKENS[:, 2])
        model.embedding.max_length = None
        expected = score(model, TOKENS[:, :6], mask=masks.window(2))[:, 5]
        np.testing.assert_allclose(logits[-1], expected, rtol=2e-5, atol=2e-5)

    @pytest.mark.parametrize("changes", [{"tie": "none"}, {}], ids=["output", "embedding"])
    def test_an_output_of_another_width(self, changes):
        model = language_model(**changes)
        with pytest.raises(ValueError, match=r"^the output has width 14, and .* have width 7$"):
            model.logits(jnp.ones((2, 7)))

    @pytest.mark.parametrize("make", [language_model, masked_language_model])
    def test_lengths_above_the_number_of_tokens(self, make):
        with pytest.raises(ValueError, match=r"lengths must lie in 0 to 7 tokens, got .*8 2"):
            make()(TOKENS, lengths=np.array([8, 2]))

    def test_an_unknown_argument(self):
        with pytest.raises(TypeError, match=r"no argument 'maks'; did you mean 'mask'[?]$"):
            language_model()(TOKENS, maks=masks.window(2))

    def test_more_tokens_than_learned_positions(self):
        model = language_model(positions="learned")
        sentence = "a prompt of 7 tokens and max_tokens=18 need 24 positions, .* max_length=23"
        with pytest.raises(ValueError, match=sentence):
            model.prefill(TOKENS, np.array([7, 7]), max_tokens=18)
        with pytest.raises(ValueError, match="max_tokens=24 is longer than max_length=23"):
            small_translator().prefill(SENTENCES, LENGTHS, max_tokens=24)

    def test_encoder_decoder(self):
        model, target = small_translator(decoder_layers=1), tokens(B, 5, seed=2)

        @jitted
        def decode(model, source, lengths):
            state, first = model.prefill(source, lengths, max_tokens=5)
            assert first is None

            def step(state, token):
                output, state = model.step(state, token)
                return state, output.logits

            return jax.lax.scan(step, state, target.T)[1]

        expected = translate(model, SENTENCES, target, LENGTHS)
        ours = jnp.swapaxes(decode(model, SENTENCES, LENGTHS), 0, 1)
        np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=2e-5)


class TestMaskedLanguageModel:
    @pytest.mark.parametrize("tie", ["none", "output"])
    def test_embedding_encoder_and_output(self, tie):
        model = masked_language_model(tie=tie)
        assert (model.output is None) == (tie == "output")

        @jitted
        def encode(model):
            encoded = model.encoder(model.embedding(SENTENCES), context=Context(mask=MASK))
            return model.encode(SENTENCES, mask=MASK).features, encoded.features

        features, encoded = encode(model)
        assert features.shape == (B, S, D)
        np.testing.assert_allclose(features, encoded, rtol=1e-4, atol=1e-4)
        tokens = np.asarray(model.embedding.tokens[...])
        table = tokens.T if tie == "output" else np.asarray(model.output.kernel[...])
        expected = features @ table
        ours = score(model, SENTENCES, mask=MASK)
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)

    def test_the_head_of_bert(self):
        """Linear, activation, norm, tied table and a bias."""
        changes = {"output_bias": True, "activation": "gelu_exact", "num_token_types": 2}
        changes |= {"embedding_norm": True, "norm_placement": "post"}
        model = masked_language_model(has_head=True, **changes)
        types = np.array([[0] * 4 + [1] * 3] * B)

        @jitted
        def expected(model, features):
            wide = features @ model.head.linear.kernel[...]
            wide = wide + model.head.linear.bias[...][None, None]
            features = model.head.norm(jax.nn.gelu(wide, approximate=False))
            return features @ model.embedding.tokens[...].T + model.embedding.bias[...][None, None]

        output = call(model, SENTENCES, mask=MASK, token_types=types)
        np.testing.assert_allclose(
            output.logits, expected(model, output.features), rtol=1e-4, atol=1e-4
        )
        other = call(model, SENTENCES, mask=MASK).logits
        assert np.abs(other - output.logits).max() > 1e-2

    def test_every_position_depends_on_its_sentence_without_padding(self):
        model = masked_language_model()

        def may_see(output, given):
            (row, place), (other_row, other) = output, given
            return row == other_row and (other < LENGTHS[row] or other == place)

        report = find_leaks(
            lambda given: score(model, given, mask=MASK), SENTENCES, may_see, vocab_size=V
        )
        report.raise_if_failed()
        assert not report.blind_spots

    def test_padding_may_be_nan(self):
        model = masked_language_model()
        outside = np.where(PADDING, V, SENTENCES)  # an id out of range: its vector is NaN
        ours, theirs = (np.asarray(score(model, each, mask=MASK)) for each in (SENTENCES, outside))
        assert np.isnan(theirs[PADDING]).all()
        np.testing.assert_array_equal(ours[~PADDING], theirs[~PADDING])

    @pytest.mark.parametrize("changes", [{"attention_dropout": 0.5}, {"dropout": 0.5}], ids=str)
    def test_dropout_in_the_encoder_and_in_the_embedding(self, changes):
        layers = 0 if "dropout" in changes else 2  # without layers only the embedding has dropout
        model = masked_language_model(encoder_layers=layers, **changes)
        plain = score(model, SENTENCES)
        dropped = score(model, SENTENCES, rng=jax.random.key(0))
        assert not np.allclose(dropped, plain, atol=1e-2)
        never = score(masked_language_model(encoder_layers=layers), SENTENCES)
        np.testing.assert_array_equal(plain, never)
