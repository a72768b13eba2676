"""One answer for a sentence or an image, from all of it and from nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention import masks
from attention.modules import Classifier, Embedding, PatchEmbedding
from attention.modules.classifier import POOLINGS, mean
from attention.testing import find_leaks
from tests.attention.modules.inputs import DIMS, LENGTHS, B, S, filled, small_config, tokens
from tests.attention.primitives.inputs import draw

D, V = DIMS["DV"]
C = 5
TOKENS = tokens(B, S)
IMAGES = draw((B, 4, 6, 2))[0]

classify = jax.jit(Classifier.__call__)


def reader(pooling, embed=lambda config, rngs: Embedding(V, config, rngs=rngs), **changes):
    config = small_config(**changes)

    def build():
        rngs = nnx.Rngs(0)
        return Classifier(config, embed(config, rngs), num_classes=C, pooling=pooling, rngs=rngs)

    return filled(build)


def viewer(pooling, **changes):
    return reader(
        pooling,
        lambda config, rngs: PatchEmbedding(
            config, image_shape=IMAGES.shape[1:], patch_size=2, rngs=rngs
        ),
        **changes,
    )


def test_a_mean_by_hand():
    features = jnp.array([[[1.0, 2], [3, 6], [jnp.nan, 7]]] * 3)
    means = mean(features, jnp.array([2, 1, 0], jnp.int32))
    assert means.tolist() == [[2, 4], [1, 2], [0, 0]]
    assert mean(features[:, :2], None).tolist() == [[2, 4]] * 3


@pytest.mark.parametrize("pooling", POOLINGS)
def test_scores_the_classes_of_what_the_encoder_made(pooling):
    model = reader(pooling)
    vectors, lengths = model.embedding(TOKENS), LENGTHS
    if pooling == "first":
        front = jnp.broadcast_to(D**0.5 * model.first[...], (B, 1, D))
        vectors, lengths = jnp.concatenate([front, vectors], axis=1), LENGTHS + 1
    features, _ = model.encoder(vectors, mask=masks.lengths(lengths))
    pooled = [row[0] if pooling == "first" else row[:n].mean(axis=0)
              for row, n in zip(np.asarray(features), lengths, strict=True)]  # fmt: skip
    expected = pooled @ np.asarray(model.output.kernel[...]) + np.asarray(model.output.bias[...])
    scores = classify(model, TOKENS, lengths=LENGTHS)
    assert scores.shape == (B, C)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_every_word_counts_but_padding_and_other_rows_do_not(pooling):
    model = reader(pooling)
    report = find_leaks(
        lambda given: model(given, lengths=LENGTHS),
        TOKENS,
        lambda row, given: row == given[0] and given[1] < LENGTHS[row],
        vocab_size=V,
    )
    report.raise_if_failed()
    assert not report.blind_spots


@pytest.mark.parametrize("pooling", POOLINGS)
def test_every_pixel_counts_and_nan_stays_in_its_image(pooling):
    model = viewer(pooling)
    report = find_leaks(model, IMAGES, lambda row, given: row == given[0], trials=1, nonfinite=True)
    report.raise_if_failed()
    assert not report.blind_spots


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_padded_sentence_is_classified_as_alone(pooling):
    model = reader(pooling)
    padding = np.arange(S) >= LENGTHS[:, None]
    outside = np.where(padding, V, TOKENS)  # no id: its vector is NaN
    together = classify(model, outside, lengths=LENGTHS)
    assert np.isfinite(together).all()
    alone = classify(model, TOKENS[2, : LENGTHS[2]])
    np.testing.assert_allclose(together[2], alone, rtol=1e-4, atol=1e-4)


def test_leading_axes_are_kept():
    for pooling in POOLINGS:
        for batch in ((), (2,), (3, 2)):
            images = jnp.zeros((*batch, *IMAGES.shape[1:]))
            assert jax.eval_shape(viewer(pooling), images).shape == (*batch, C)
            lengths = jnp.full(batch, 2, jnp.int32)
            classes = jax.eval_shape(reader(pooling), tokens(*batch, S), lengths=lengths)
            assert classes.shape == (*batch, C)


@pytest.mark.parametrize("changes", [{"attention_dropout": 0.5}, {"dropout": 0.5}], ids=str)
def test_only_a_key_drops_in_the_encoder_and_in_the_embedding(changes):
    layers = 0 if "dropout" in changes else 2  # without layers nothing but the embedding drops
    model = reader("mean", encoder_layers=layers, **changes)
    plain = classify(model, TOKENS)
    assert not np.allclose(classify(model, TOKENS, key=jax.random.key(0)), plain, atol=1e-2)
    never = classify(reader("mean", encoder_layers=layers), TOKENS)
    np.testing.assert_array_equal(plain, never)


def test_an_unknown_pooling_is_refused():
    with pytest.raises(ValueError, match="pooling must be one of mean, first, got 'fist'; did you"):
        reader("fist")
