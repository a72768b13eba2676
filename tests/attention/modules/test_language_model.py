"""A decoder alone: no memory, no future, and packed texts that do not hear each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention import masks
from attention.modules import LanguageModel
from tests.attention.modules.inputs import DIMS, filled, small_config, tokens

D, V = DIMS["DV"]
T = 7
TOKENS = tokens(2, T)

score = jax.jit(LanguageModel.__call__)


def language_model(**changes):
    config = small_config(**changes)
    return filled(lambda: LanguageModel(config, vocab_size=V, rngs=nnx.Rngs(0)))


@pytest.mark.parametrize("tie", ["none", "output"])
def test_scores_every_next_token_and_knows_no_later_one(tie):
    model = language_model(tie=tie)
    assert (model.output is None) == (tie == "output")
    before = score(model, TOKENS)
    assert before.shape == (2, T, V)
    after = score(model, TOKENS.at[:, 4].set((TOKENS[:, 4] + 1) % V))
    np.testing.assert_array_equal(after[:, :4], before[:, :4])
    assert (after[:, 4:] != before[:, 4:]).any(-1).all()


def test_is_its_embedding_its_decoder_and_its_output():
    model = language_model(tie="none")
    features, _ = model.decoder(model.embedding(TOKENS))
    expected = np.asarray(features) @ np.asarray(model.output.kernel[...])
    np.testing.assert_allclose(score(model, TOKENS), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_packed_texts_are_scored_as_each_alone(kind):
    model = language_model(positions=kind)
    numbers = jnp.array([1, 1, 1, 1, 2, 2, 2], jnp.int32)
    positions = jnp.array([0, 1, 2, 3, 0, 1, 2], jnp.int32)
    mask = masks.causal() & masks.segments(numbers)
    packed = score(model, TOKENS, mask=mask, positions=positions)
    for text in (slice(0, 4), slice(4, 7)):
        alone = score(model, TOKENS[:, text])
        np.testing.assert_allclose(packed[:, text], alone, rtol=1e-4, atol=1e-4)


def test_only_a_key_drops():
    model = language_model(dropout=0.2, attention_dropout=0.2)
    plain, keys = score(language_model(), TOKENS), jax.random.split(jax.random.key(0))
    np.testing.assert_array_equal(score(model, TOKENS), plain)
    first, again, other = (score(model, TOKENS, key=keys[i]) for i in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, plain, atol=1e-2)
    assert not np.allclose(first, other, atol=1e-2)


def test_the_embedding_drops_too():
    model = language_model(dropout=0.5, decoder_layers=0)  # nothing else could
    dropped = score(model, TOKENS, key=jax.random.key(0))
    assert not np.allclose(dropped, score(model, TOKENS), atol=1e-2)


def test_a_cache_counts_its_own_positions_and_is_no_ring_where_they_end():
    model = language_model(positions="learned")
    cache = model.new_cache((2,), T)
    with pytest.raises(ValueError, match="a cache counts the positions of its tokens"):
        model(TOKENS, cache=cache, positions=jnp.arange(T))
    with pytest.raises(ValueError, match="learned positions end at max_length"):
        model.new_cache((2,), T, ring=True)
    language_model(positions="sinusoidal").new_cache((2,), T, ring=True)
