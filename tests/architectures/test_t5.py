"""T5 1.1: relative buckets shared by a stack, scores without scale, RMS norm, gated GELU."""

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


def make_model(rngs):
    sizes = {"source_vocab_size": VOCAB, "target_vocab_size": VOCAB}
    return modules.EncoderDecoder.from_config(CONFIG, **sizes, rngs=rngs)


def test_learns_and_decodes():
    source, target = np.split(counting(length=10), 2, axis=1)
    model = train(make_model, translation_loss, source, target)
    check_translation(model, source, target)


def test_a_stack_has_one_table_of_buckets():
    model = jax.eval_shape(lambda: make_model(nnx.Rngs(0)))
    assert model.encoder.score.table.shape == model.decoder.score.table.shape == (4, 8)
    assert len([p for p, _ in nnx.to_flat_state(nnx.state(model)) if "score" in p]) == 2
