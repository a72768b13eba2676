"""Classifiers of images: a Vision Transformer (Dosovitskiy et al. 2021) and a Perceiver."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attention import masks, modules
from tests.architectures.helpers import cross_entropy, train

WIDTH, SOURCE_WIDTH, NUM_LATENTS, NUM_CLASSES = 16, 3, 4, 4


def bright_quadrants(rows=32, size=8):
    """Return noisy images `[rows, size, size, 1]`, and the number of the bright quadrant."""
    labels = np.arange(rows, dtype=np.int32) % 4
    bright = np.eye(4, dtype=np.float32)[labels].reshape(rows, 2, 2)
    bright = bright.repeat(size // 2, axis=1).repeat(size // 2, axis=2)
    noise = np.random.default_rng(2).normal(size=bright.shape).astype(np.float32)
    return (bright + noise / 2)[..., None], labels


def classification_loss(model, rng, inputs, labels):
    return cross_entropy(model(inputs, rng=rng), labels)


def residual(sublayer, rngs, **options):
    return modules.Residual(modules.layer_norm(WIDTH, rngs=rngs), sublayer, **options)


def vit_layer(index, rngs):
    attention = modules.SelfAttention(WIDTH, num_heads=4, rngs=rngs)
    feed_forward = modules.FeedForward(WIDTH, 2 * WIDTH, activation="gelu", rngs=rngs)
    return modules.Block(
        self_attention=residual(attention, rngs, dropout=0.1),
        feed_forward=residual(feed_forward, rngs, dropout=0.1),
    )


def vit(rngs):
    positions = modules.LearnedPositions(16, WIDTH, scale=1.0, rngs=rngs)
    patches = {"image_shape": (8, 8, 1), "patch_size": 2, "positions": positions}
    layers = modules.Layers(vit_layer, 2, rngs=rngs)
    return modules.Classifier(
        embedding=modules.PatchEmbedding(WIDTH, **patches, rngs=rngs),
        encoder=modules.Encoder(layers, norm=modules.layer_norm(WIDTH, rngs=rngs)),
        pooling=modules.ClassToken(WIDTH, rngs=rngs),
        output=modules.linear({"embed": WIDTH}, {"classes": NUM_CLASSES}, rngs=rngs),
    )


def perceiver_layer(index, rngs):
    heads = {"num_heads": 2, "rngs": rngs}
    cross = modules.CrossAttention(WIDTH, source_width=SOURCE_WIDTH, **heads)
    return modules.Block(
        cross_attention=residual(cross, rngs),
        self_attention=residual(modules.SelfAttention(WIDTH, **heads), rngs),
        feed_forward=residual(modules.FeedForward(WIDTH, 2 * WIDTH, rngs=rngs), rngs),
    )


class Perceiver(nnx.Module):
    """A few latents attend to many inputs of another width (Jaegle et al. 2021)."""

    def __init__(self, rngs):
        latents = jax.random.normal(rngs.params(), (NUM_LATENTS, WIDTH))
        self.latents = nnx.Param(latents, axes=("latents", "embed"))
        self.layers = modules.Layers(perceiver_layer, 2, rngs=rngs)
        self.output = modules.linear({"embed": WIDTH}, {"classes": NUM_CLASSES}, rngs=rngs)

    def __call__(self, inputs, *, mask=None, rng=None):
        latents = jnp.broadcast_to(self.latents[...], (len(inputs), NUM_LATENTS, WIDTH))
        context = modules.Context(encoder_output=inputs, encoder_mask=mask, rng=rng)
        output = self.layers(latents, context=context)
        return output._replace(logits=self.output(output.features.mean(axis=-2)))


def test_vit_learns():
    images, labels = bright_quadrants()
    model = train(vit, classification_loss, images, labels)
    logits = jax.jit(lambda model: model(images).logits)(model)
    assert (logits.argmax(axis=-1) == labels).all()


def test_perceiver_learns_and_ignores_masked_inputs():
    images, labels = bright_quadrants()
    coordinates = np.moveaxis(np.indices((8, 8), np.float32) / 4 - 1, 0, -1)
    coordinates = np.broadcast_to(coordinates, (len(images), 8, 8, 2))
    pixels = np.concatenate([images, coordinates], axis=-1).reshape(len(images), 64, SOURCE_WIDTH)
    model = train(Perceiver, classification_loss, pixels, labels)
    run = jax.jit(lambda model, pixels, **options: model(pixels, **options).logits)
    logits = run(model, pixels)
    assert (logits.argmax(axis=-1) == labels).all()
    padded = np.concatenate([pixels, np.full_like(pixels, np.nan)], axis=1)
    masked = run(model, padded, mask=masks.lengths(np.full(len(images), 64)))
    np.testing.assert_allclose(masked, logits, rtol=1e-4, atol=1e-4)
