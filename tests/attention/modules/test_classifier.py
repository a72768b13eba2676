"""Classifiers of texts and images, and patches as tokens."""

import jax
import numpy as np
import pytest
from flax import nnx

from attention import masks
from attention.modules import POOLINGS, Context, MeanPooling, PatchEmbedding
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
TOKENS = tokens(B, S)
SHAPE, PATCH = (4, 6, 2), 2
(IMAGES,) = draw((B, *SHAPE))
NUM_PATCHES = 6


@jitted
def classify(model, inputs, **options):
    return model(inputs, **options).logits


def embed_patches(config, rngs):
    return PatchEmbedding.from_config(config, image_shape=SHAPE, patch_size=PATCH, rngs=rngs)


class TestClassifier:
    def test_mean_by_hand(self):
        features = np.float32([[[1.0, 2], [3, 6], [np.nan, 7]]] * 3)
        run = jitted(MeanPooling())
        means = run(features, np.array([2, 1, 0]))
        assert means.tolist() == [[2, 4], [1, 2], [0, 0]]
        assert run(features[:, :2], None).tolist() == [[2, 4]] * 3

    @pytest.mark.parametrize("pooling", POOLINGS)
    def test_embedding_encoder_pooling_and_output(self, pooling):
        model = classifier(pooling)
        vectors, lengths = call(model.embedding, TOKENS), LENGTHS
        if pooling == "class_token":
            front = np.broadcast_to(model.pooling.vector[...], (B, 1, D))
            vectors, lengths = np.concatenate([front, vectors], axis=1), LENGTHS + 1
        context = Context(mask=masks.lengths(lengths))
        features = call(model.encoder, vectors, context=context).features
        pooled = [
            row[0] if pooling == "class_token" else row[:n].mean(axis=0)
            for row, n in zip(features, lengths, strict=True)
        ]
        scores = classify(model, TOKENS, lengths=LENGTHS)
        assert_close(scores, project(model.output, pooled))

    @pytest.mark.parametrize("pooling", POOLINGS)
    def test_scores_depend_on_every_token_but_not_on_padding_or_other_rows(self, pooling):
        model = classifier(pooling)
        assert_no_leaks(
            lambda given: classify(model, given, lengths=LENGTHS),
            TOKENS,
            lambda row, given: row == given[0] and given[1] < LENGTHS[row],
        )

    @pytest.mark.parametrize("pooling", POOLINGS)
    def test_scores_depend_on_every_pixel_and_nan_stays_in_its_image(self, pooling):
        model = classifier(pooling, embed_patches)
        assert_no_leaks(
            lambda images: classify(model, images),
            IMAGES,
            lambda row, given: row == given[0],
            trials=1,
            nonfinite=True,
        )

    @pytest.mark.parametrize("pooling", POOLINGS)
    def test_a_padded_text_is_classified_like_one_alone(self, pooling):
        model = classifier(pooling)
        padding = np.arange(S) >= LENGTHS[:, None]
        outside = np.where(padding, V, TOKENS)  # an id out of range: its vector is NaN
        together = classify(model, outside, lengths=LENGTHS)
        assert np.isfinite(together).all()
        alone = classify(model, TOKENS[2, : LENGTHS[2]])
        assert_close(together[2], alone)


class TestPatches:
    def embedding(self, **changes):
        return filled(lambda: embed_patches(small_config(**changes), nnx.Rngs(0)))

    def test_patches_by_hand(self):
        image, run = np.arange(24).reshape(4, 6, 1), jitted(patches, static_argnums=1)
        assert run(image, 2).tolist() == [
            [0, 1, 6, 7],
            [2, 3, 8, 9],
            [4, 5, 10, 11],
            [12, 13, 18, 19],
            [14, 15, 20, 21],
            [16, 17, 22, 23],
        ]
        channels = np.arange(8).reshape(2, 2, 2)
        assert run(channels, 2).tolist() == [list(range(8))]
        assert run(channels, 1).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]

    @pytest.mark.parametrize("positions", ["learned", "rotary"])
    def test_a_vector_is_the_projected_patch_plus_its_position(self, positions):
        module = self.embedding(positions=positions)
        expected = project(module.projection, jitted(patches, static_argnums=1)(IMAGES, PATCH))
        if positions == "learned":
            expected += D**0.5 * np.asarray(module.positions.table[...])[:NUM_PATCHES]
        assert_close(call(module, IMAGES), expected)
        assert_close(call(module, IMAGES[0]), expected[0])

    def test_the_rng_drops_entries(self):
        module = self.embedding(dropout=0.25)
        plain = call(module, IMAGES)
        dropped = call(module, IMAGES, rng=jax.random.key(0))
        lost = np.asarray(dropped == 0)
        assert lost.any()
        assert not lost.all()
        np.testing.assert_allclose(dropped[~lost], plain[~lost] / 0.75, rtol=1e-6)

    @pytest.mark.parametrize(
        "shape, size, max_length, sentence",
        [
            ((4, 6, 1), 3, 99, r"patches of 3x3 pixels do not fill an image of 4x6: patch_size m"),
            ((4, 6, 1), 4, 99, r"patches of 4x4 pixels do not fill an image of 4x6: patch_size m"),
            ((4, 6, 1), 0, 99, r"patches of 0x0 pixels do not fill an image of 4x6: patch_size m"),
            ((4, 6, 1), 1, 23, r"an image of 24 patches is longer than max_length=23"),
        ],
        ids=["height", "width", "nothing", "too many"],
    )
    def test_images_that_do_not_fit(self, shape, size, max_length, sentence):
        config = small_config(max_length=max_length)
        build = PatchEmbedding.from_config
        with pytest.raises(ValueError, match=sentence):
            build(config, image_shape=shape, patch_size=size, rngs=nnx.Rngs(0))

    def test_an_image_of_another_size(self):
        sentence = r"images must have height, width and channels \(4, 6, 2\), got \(6, 4, 2\)"
        with pytest.raises(ValueError, match=sentence):
            self.embedding()(np.swapaxes(IMAGES, 1, 2))


def test_a_pooling_of_ones_own_and_constrained_logits():
    found = set()

    def constrain(array, names):
        assert array.ndim == len(names)
        found.add(names)
        return array

    model = classifier(lambda width, *, param_dtype, rngs: MeanPooling())
    assert isinstance(model.pooling, MeanPooling)
    jax.eval_shape(lambda model: model(TOKENS, constrain=constrain), model)
    assert ("batch", "classes") in found
