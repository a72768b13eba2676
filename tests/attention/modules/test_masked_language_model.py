"""An encoder alone: both sides are seen, and padding never."""

import jax
import numpy as np
import pytest
from flax import nnx

from attention import masks
from attention.modules import MaskedLanguageModel
from attention.testing import find_leaks
from tests.attention.modules.inputs import DIMS, LENGTHS, B, S, filled, small_config, tokens

D, V = DIMS["DV"]
TOKENS = tokens(B, S)
MASK = masks.lengths(LENGTHS)
PADDING = np.arange(S) >= LENGTHS[:, None]

score = jax.jit(MaskedLanguageModel.__call__)


def masked_language_model(**changes):
    config = small_config(**changes)
    return filled(lambda: MaskedLanguageModel(config, vocab_size=V, rngs=nnx.Rngs(0)))


@pytest.mark.parametrize("tie", ["none", "output"])
def test_is_its_embedding_its_encoder_and_its_output(tie):
    model = masked_language_model(tie=tie)
    assert (model.output is None) == (tie == "output")
    vectors = model.encode(TOKENS, mask=MASK)
    assert vectors.shape == (B, S, D)
    expected, _ = model.encoder(model.embedding(TOKENS), mask=MASK)
    np.testing.assert_allclose(vectors, expected, rtol=1e-4, atol=1e-4)
    table = model.embedding.tokens[...].T if tie == "output" else model.output.kernel[...]
    expected = np.asarray(vectors) @ np.asarray(table)
    np.testing.assert_allclose(score(model, TOKENS, mask=MASK), expected, rtol=1e-4, atol=1e-4)


def test_each_place_sees_its_whole_sentence_and_neither_padding_nor_other_rows():
    model = masked_language_model()

    def may_see(output, given):
        (row, place), (other_row, other) = output, given
        return row == other_row and (other < LENGTHS[row] or other == place)

    report = find_leaks(lambda given: model(given, mask=MASK), TOKENS, may_see, vocab_size=V)
    report.raise_if_failed()
    assert not report.blind_spots


def test_what_stands_in_padding_does_not_matter_though_it_be_nan():
    model = masked_language_model()
    outside = np.where(PADDING, V, TOKENS)  # no id: its vector is NaN
    ours, theirs = (np.asarray(score(model, given, mask=MASK)) for given in (TOKENS, outside))
    assert np.isnan(theirs[PADDING]).all()
    np.testing.assert_array_equal(ours[~PADDING], theirs[~PADDING])


@pytest.mark.parametrize("changes", [{"attention_dropout": 0.5}, {"dropout": 0.5}], ids=str)
def test_only_a_key_drops_in_the_encoder_and_in_the_embedding(changes):
    layers = 0 if "dropout" in changes else 2  # without layers nothing but the embedding drops
    model = masked_language_model(encoder_layers=layers, **changes)
    plain = score(model, TOKENS, mask=None)
    dropped = score(model, TOKENS, mask=None, key=jax.random.key(0))
    assert not np.allclose(dropped, plain, atol=1e-2)
    never = score(masked_language_model(encoder_layers=layers), TOKENS, mask=None)
    np.testing.assert_array_equal(plain, never)
