"""Models of published sizes take no memory to build and have the published number of parameters."""

import time

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from attention.modules import LanguageModel, TransformerConfig
from configs import presets


def gpt3_parameters():
    width, layers = 12_288, 96
    attention = 4 * width * width + 4 * width
    feed_forward = 2 * width * 4 * width + 4 * width + width
    norms = 2 * 2 * width
    tables = 50_257 * width + 2048 * width
    return layers * (attention + feed_forward + norms) + 2 * width + tables


def llama3_8b_parameters():
    width, layers = 4096, 32
    attention = 2 * width * width + 2 * width * 8 * 128
    feed_forward = 3 * width * 14_336
    norms = 2 * width
    tables = 2 * 128_256 * width
    return layers * (attention + feed_forward + norms) + width + tables


@pytest.mark.parametrize(
    "preset, parameters, billions",
    [
        (presets.gpt3_175b(), gpt3_parameters(), 174.6),
        (presets.llama3_8b(), llama3_8b_parameters(), 8.03),
    ],
    ids=["GPT-3", "Llama-3-8B"],
)
def test_published_sizes(preset, parameters, billions):
    config, vocab_size = TransformerConfig(**preset.model), preset.vocab_size
    tokens = jax.ShapeDtypeStruct((2, config.max_length), jnp.int32)

    def build():
        return LanguageModel(config, vocab_size=vocab_size, rngs=nnx.Rngs(0))

    start = time.process_time()
    model = jax.eval_shape(build)
    seconds = time.process_time() - start
    logits = jax.eval_shape(lambda model, tokens: model(tokens), model, tokens)

    total = sum(parameter.size for parameter in jax.tree.leaves(model))
    assert total == parameters
    assert total / 1e9 == pytest.approx(billions, abs=0.05 if billions > 100 else 0.005)
    assert logits.shape == (2, config.max_length, vocab_size)
    assert seconds < 1  # 0.05 once warm: whoever builds layers one by one needs more
