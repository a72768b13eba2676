"""Classifiers of texts and images, and patches as tokens."""

import jax
import numpy as np
import pytest
from flax import nnx

from attention.modules import POOLINGS, MeanPooling, PatchEmbedding
from attention.modules.embeddings import patches
from tests.attention.modules.inputs import (
    DIMS,
    LENGTHS,
    B,
    S,
    assert_close,
    assert_no_leaks,
    call,
    classifier,
    filled,
    project,
    small_config,
    tokens,
)
from tests.attention.primitives.inputs import draw, jitted

D, V = DIMS["DV"]
SHAPE, NUM_PATCHES = (4, 6, 2), 6
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


@pytest.mark.parametrize("kind", ["text", "images"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_scores_depend_on_all_of_their_row_but_its_padding(pooling, kind):
    """And NaN stays in its image."""
    lengths, inputs, options = LENGTHS, tokens(B, S), {}
    if kind == "images":
        lengths, inputs, options = None, IMAGES, {"trials": 1, "nonfinite": True}
    model = classifier(pooling, None if kind == "text" else embed_patches)
    assert_no_leaks(
        lambda given: classify(model, given, lengths=lengths),
        inputs,
        lambda row, given: row == given[0] and (lengths is None or given[1] < lengths[row]),
        **options,
    )


def test_patches_by_hand():
    image, run = np.arange(24).reshape(4, 6, 1), jitted(patches, static_argnums=1)
    rows = run(image, 2)
    assert rows[:3].tolist() == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
    assert rows[3:].tolist() == [[12, 13, 18, 19], [14, 15, 20, 21], [16, 17, 22, 23]]
    channels = np.arange(8).reshape(2, 2, 2)
    assert run(channels, 2).tolist() == [list(range(8))]


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_vector_is_the_projected_patch_plus_its_position(positions):
    config = small_config(positions=positions, dropout=0.25)
    module = filled(lambda: embed_patches(config, nnx.Rngs(0)))
    expected = project(module.projection, jitted(patches, static_argnums=1)(IMAGES, 2))
    if positions == "learned":
        expected += D**0.5 * np.asarray(module.positions.table[...])[:NUM_PATCHES]
    assert_close(call(module, IMAGES), expected)
    assert_close(call(module, IMAGES[0]), expected[0])
    dropped = call(module, IMAGES, rng=jax.random.key(0))
    np.testing.assert_allclose((dropped == 0).mean(), 0.25, atol=0.1)
    assert_close(dropped, np.where(dropped == 0, 0, expected / 0.75))


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


def test_a_pooling_of_ones_own_and_constrained_logits():
    found = set()

    def constrain(array, names):
        assert array.ndim == len(names)
        found.add(names)
        return array

    model = classifier(lambda width, *, param_dtype, rngs: MeanPooling())
    jax.eval_shape(lambda model: model(TOKENS, constrain=constrain), model)
    assert ("batch", "classes") in found
