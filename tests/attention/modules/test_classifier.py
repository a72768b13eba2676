"""Classifiers of texts and images, and patches as tokens."""

import jax
import numpy as np
import pytest
from flax import nnx

from attention.modules import POOLINGS, MeanPooling, PatchEmbedding
from tests.attention.modules.inputs import (
    DIMS,
    LENGTHS,
    B,
    S,
    assert_close,
    call,
    classifier,
    filled,
    project,
    small_config,
    tokens,
)
from tests.attention.primitives.inputs import draw

(V,) = DIMS["V"]
SHAPE = (4, 6, 2)
# The padding of the texts is an id out of range: its vector is NaN.
TOKENS = np.where(np.arange(S) < LENGTHS[:, None], tokens(B, S), V)
(IMAGES,) = draw((B, *SHAPE))


def embed_patches(config, rngs, image_shape=SHAPE, patch_size=2):
    given = {"image_shape": image_shape, "patch_size": patch_size}
    return PatchEmbedding.from_config(config, **given, rngs=rngs)


def classify(model, inputs, **options):
    return call(model, inputs, **options).logits


def test_mean_by_hand():
    features = np.float32([[[1.0, 2], [3, 6], [np.nan, 7]]] * 3)
    assert MeanPooling()(features, np.array([2, 1, 0])).tolist() == [[2, 4], [1, 2], [0, 0]]
    assert MeanPooling()(features[:, :2], None).tolist() == [[2, 4]] * 3


@pytest.mark.parametrize("pooling", POOLINGS)
def test_scores_are_those_of_each_text_alone(pooling):
    model = classifier(pooling)
    scores = classify(model, TOKENS, lengths=LENGTHS)
    for row, length in enumerate(LENGTHS):
        vectors = call(model.embedding, TOKENS[row, :length])
        if pooling == "class_token":
            vectors = np.concatenate([model.pooling.vector[...], vectors])
        features = call(model.encoder, vectors).features
        pooled = features[0] if pooling == "class_token" else features.mean(axis=0)
        assert_close(scores[row], project(model.output, pooled))


def test_the_rng_drops_entries_of_patches():
    module = filled(lambda: embed_patches(small_config(dropout=0.25), nnx.Rngs(0)))
    dropped = call(module, IMAGES, rng=jax.random.key(0))
    np.testing.assert_allclose((dropped == 0).mean(), 0.25, atol=0.1)
    assert_close(dropped, np.where(dropped == 0, 0, call(module, IMAGES) / 0.75))


@pytest.mark.parametrize(
    "size, sentence",
    [
        (3, r"patches of 3x3 pixels do not fill an image of 4x6: patch_size m"),
        (4, r"patches of 4x4 pixels do not fill an image of 4x6: patch_size m"),
        (0, r"patches of 0x0 pixels do not fill an image of 4x6: patch_size m"),
        (1, r"an image of 24 patches is longer than max_length=23"),
        (2, r"images must have height, width and channels \(4, 6, 2\), got \(6, 4, 2\)"),
    ],
)
def test_images_that_do_not_fit(size, sentence):
    with pytest.raises(ValueError, match=sentence):
        embedding = embed_patches(small_config(max_length=23), nnx.Rngs(0), SHAPE, size)
        embedding(np.swapaxes(IMAGES, 1, 2))


def test_positions():
    with pytest.raises(ValueError, match="a classifier counts positions from 0"):
        classifier()(TOKENS, positions=np.arange(S))


def test_a_pooling_of_ones_own():
    model = classifier(lambda width, *, param_dtype, rngs: MeanPooling())
    assert isinstance(model.pooling, MeanPooling)
