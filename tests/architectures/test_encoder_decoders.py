"""Encoder-decoders: T5 1.1, and one with cross-attention in every second layer of the decoder."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import modules
from attention.decoding import generate
from tests.architectures.helpers import START, VOCAB, counting, cross_entropy, train

SIZES = {"source_vocab_size": VOCAB, "target_vocab_size": VOCAB}


def t5(rngs):
    """Relative buckets, scores without scale, RMS norm, gated GELU; tied embeddings."""
    config = modules.TransformerConfig(
        width=16,
        num_heads=4,
        hidden=32,
        activation="gelu",
        gated=True,
        norm="rms",
        use_bias=False,
        attention_scale=1.0,
        embedding_scale=1.0,
        tie="embeddings",
        positions="relative",
        relative={"num_buckets": 8, "max_distance": 16},
    )
    return modules.EncoderDecoder(config, **SIZES, rngs=rngs)


def cross_attention_in_every_second_layer(rngs):
    config = modules.TransformerConfig(
        width=16, num_heads=4, hidden=32, encoder_layers=1, decoder_layers=2
    )

    def make_layer(index, rngs):
        return modules.transformer_block(config, cross=index % 2 == 1, rngs=rngs)

    return modules.EncoderDecoder(config, **SIZES, make_decoder_layer=make_layer, rngs=rngs)


def shifted(target):
    """Return the inputs of a decoder `[B, T]`: the start token and all but the last target."""
    return jnp.concatenate([jnp.full_like(target[:, :1], START), target[:, :-1]], axis=1)


def translation_loss(model, rng, source, target):
    return cross_entropy(model(source, shifted(target), rng=rng), target)


@pytest.mark.parametrize("make_model", [t5, cross_attention_in_every_second_layer])
def test_learns_and_decodes(make_model):
    """Sources are translated correctly, with the logits of a full pass."""
    source, target = np.split(counting(length=10), 2, axis=1)
    model = train(make_model, translation_loss, source, target)
    given = {"start": START, "max_tokens": target.shape[1]}
    answer = generate(model, source, **given, observe=lambda output: output.logits)
    np.testing.assert_array_equal(answer.tokens, target)
    full = jax.jit(lambda model: model(source, shifted(target)).logits)(model)
    chex.assert_trees_all_close(answer.observed, full, rtol=1e-4, atol=1e-4)
