"""A Perceiver (Jaegle et al. 2021): a few latents attend to many inputs of another width."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attention import masks, modules
from tests.architectures.helpers import bright_quadrants, classification_loss, train

WIDTH, SOURCE_WIDTH, NUM_LATENTS, NUM_CLASSES = 16, 3, 4, 4


def make_layer(index, rngs):
    heads = {"num_heads": 2, "rngs": rngs}

    def residual(sublayer):
        return modules.Residual(modules.layer_norm(WIDTH, rngs=rngs), sublayer)

    return modules.Block(
        cross_attention=residual(modules.CrossAttention(WIDTH, source_width=SOURCE_WIDTH, **heads)),
        self_attention=residual(modules.SelfAttention(WIDTH, **heads)),
        feed_forward=residual(modules.FeedForward(WIDTH, 2 * WIDTH, rngs=rngs)),
    )


class Perceiver(nnx.Module):
    def __init__(self, rngs):
        latents = jax.random.normal(rngs.params(), (NUM_LATENTS, WIDTH))
        self.latents = nnx.Param(latents, axes=("latents", "embed"))
        self.layers = modules.Layers(make_layer, 2, rngs=rngs)
        self.output = modules.linear({"embed": WIDTH}, {"classes": NUM_CLASSES}, rngs=rngs)

    def __call__(self, inputs, *, mask=None, rng=None):
        latents = jnp.broadcast_to(self.latents[...], (len(inputs), NUM_LATENTS, WIDTH))
        context = modules.Context(encoder_output=inputs, encoder_mask=mask, rng=rng)
        output = self.layers(latents, context=context)
        return output._replace(logits=self.output(output.features.mean(axis=-2)))


def test_learns_and_ignores_masked_inputs():
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
