"""A hybrid of attention and, in every third layer, a recurrence with a cache of its own."""

import jax
import jax.numpy as jnp
from flax import nnx

from attention import modules
from tests.architectures.helpers import VOCAB, check_decoding, counting, next_token_loss, train

WIDTH = 16


class Recurrence(nnx.Module):
    """h[t] = keep[t] h[t - 1] + (1 - keep[t]) new[t]; keep and new are functions of input t."""

    def __init__(self, rngs):
        self.inputs = modules.linear({"embed": WIDTH}, {"gates": 2, "hidden": WIDTH}, rngs=rngs)
        self.output = modules.linear({"hidden": WIDTH}, {"embed": WIDTH}, rngs=rngs)

    def __call__(self, inputs, *, context):
        keep, new = jnp.moveaxis(self.inputs(inputs), -2, 0)
        keep, new = jax.nn.sigmoid(keep), jax.nn.sigmoid(-keep) * new
        if context.lengths is not None:  # padding does not change the state
            valid = context.valid(inputs.shape[-2])[..., None]
            keep, new = jnp.where(valid, keep, 1), jnp.where(valid, new, 0)
        kept, states = jax.lax.associative_scan(  # composes functions h -> keep h + new
            lambda f, g: (f[0] * g[0], g[0] * f[1] + g[1]), (keep, new), axis=inputs.ndim - 2
        )
        if context.cache is not None:
            states += kept * context.cache[..., None, :]
        return modules.Output(self.output(states), cache=states[..., -1, :])

    def new_cache(self, spec):
        return jnp.zeros((*spec.batch, WIDTH))


def make_layer(index, rngs):
    def residual(sublayer):
        return modules.Residual(modules.rms_norm(WIDTH, rngs=rngs), sublayer)

    if index % 3 == 2:
        mixer = {"recurrence": residual(Recurrence(rngs))}
    else:
        attention = modules.SelfAttention(WIDTH, num_heads=4, rotary=modules.Rotary(), rngs=rngs)
        mixer = {"self_attention": residual(attention)}
    feed_forward = modules.FeedForward(WIDTH, 2 * WIDTH, activation="silu", gated=True, rngs=rngs)
    return modules.Block(**mixer, feed_forward=residual(feed_forward))


def make_model(rngs):
    layers = modules.Layers(make_layer, 6, rngs=rngs)
    assert layers.period == 3  # scanned in groups of three
    decoder = modules.Decoder(layers, norm=modules.rms_norm(WIDTH, rngs=rngs))
    return modules.LanguageModel(modules.Embedding(VOCAB, WIDTH, rngs=rngs), decoder)


def test_learns_and_decodes():
    tokens = counting()
    check_decoding(train(make_model, next_token_loss, tokens), tokens)
