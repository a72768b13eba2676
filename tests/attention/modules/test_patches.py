"""Squares of an image by hand, and the sentences for images that do not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention.modules import PatchEmbedding
from attention.modules.patches import patches
from tests.attention.modules.inputs import DIMS, filled, small_config
from tests.attention.primitives.inputs import draw

(D,) = DIMS["D"]
SHAPE, PATCH = (4, 6, 3), 2
(IMAGES,) = draw((5, *SHAPE))
S = 6


def patch_embedding(**changes):
    config = small_config(**changes)
    return filled(
        lambda: PatchEmbedding(config, image_shape=SHAPE, patch_size=PATCH, rngs=nnx.Rngs(0))
    )


def test_squares_by_hand():
    image = jnp.arange(24).reshape(4, 6, 1)
    assert patches(image, 2).tolist() == [
        [0, 1, 6, 7],
        [2, 3, 8, 9],
        [4, 5, 10, 11],
        [12, 13, 18, 19],
        [14, 15, 20, 21],
        [16, 17, 22, 23],
    ]
    colours = jnp.arange(8).reshape(2, 2, 2)
    assert patches(colours, 2).tolist() == [list(range(8))]
    assert patches(colours, 1).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("kind", ["learned", "rotary"])
def test_a_vector_is_the_projected_square_and_its_place(kind):
    module = patch_embedding(positions=kind)
    expected = np.asarray(patches(IMAGES, PATCH)) @ np.asarray(module.projection.kernel[...])
    expected += np.asarray(module.projection.bias[...])
    if kind == "learned":
        expected += D**0.5 * np.asarray(module.positions[...])[:S]
    vectors = module(IMAGES)
    assert vectors.shape == (5, S, D)
    np.testing.assert_allclose(vectors, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(module(IMAGES[0]), expected[0], rtol=1e-5, atol=1e-5)


def test_without_biases_there_is_none():
    assert patch_embedding(use_bias=False).projection.bias is None


def test_a_key_drops_entries():
    module = patch_embedding(dropout=0.25)
    plain, dropped = module(IMAGES), module(IMAGES, key=jax.random.key(0))
    lost = np.asarray(dropped == 0)
    assert lost.any() and not lost.all()
    np.testing.assert_allclose(dropped[~lost], plain[~lost] / 0.75, rtol=1e-6)


@pytest.mark.parametrize(
    "shape, size, longest, sentence",
    [
        ((4, 6, 1), 3, 99, r"patches of 3x3 pixels do not fill an image of 4x6: patch_size must"),
        ((4, 6, 1), 4, 99, r"patches of 4x4 pixels do not fill an image of 4x6: patch_size must"),
        ((4, 6, 1), 0, 99, r"patches of 0x0 pixels do not fill an image of 4x6: patch_size must"),
        ((4, 6, 1), 1, 23, r"an image of 24 patches is longer than max_length=23"),
    ],
    ids=["height", "width", "nothing", "too many"],
)
def test_an_image_that_does_not_fit_is_refused_before_anything_is_made(
    shape, size, longest, sentence
):
    config = small_config(max_length=longest)
    with pytest.raises(ValueError, match=sentence):
        PatchEmbedding(config, image_shape=shape, patch_size=size, rngs=nnx.Rngs(0))


def test_an_image_of_another_size_is_refused():
    sentence = r"images must be 4x6x3 \(height x width x channels\), got 6x4x3"
    with pytest.raises(ValueError, match=sentence):
        patch_embedding()(jnp.swapaxes(IMAGES, 1, 2))
