"""An encoder-decoder whose decoder has cross-attention in every second layer."""

import jax
import numpy as np
from flax import nnx

from attention import modules
from tests.architectures.helpers import (
    VOCAB,
    check_translation,
    counting,
    train,
    translation_loss,
)

CONFIG = modules.TransformerConfig(
    width=16, num_heads=4, hidden=32, encoder_layers=1, decoder_layers=2
)


def make_model(rngs):
    def make_layer(index, rngs):
        return modules.transformer_block(CONFIG, cross=index % 2 == 1, rngs=rngs)

    sizes = {"source_vocab_size": VOCAB, "target_vocab_size": VOCAB}
    return modules.EncoderDecoder.from_config(
        CONFIG, **sizes, make_decoder_layer=make_layer, rngs=rngs
    )


def test_learns_and_decodes():
    source, target = np.split(counting(length=10), 2, axis=1)
    model = train(make_model, translation_loss, source, target)
    check_translation(model, source, target)


def test_attention_is_returned_by_the_layers_that_have_it():
    tokens = counting(rows=2, length=5)

    def run():
        return make_model(nnx.Rngs(0))(tokens, tokens[:, :3], returning=("weights",)).attention

    attention = jax.eval_shape(run)
    assert ["cross_attention" in layer for layer in attention] == [False, True]
    assert attention[1]["cross_attention"]["weights"].shape == (2, 4, 3, 5)
