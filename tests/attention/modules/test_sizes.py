"""Models of published sizes take no memory to build and have the published number of parameters."""

import time

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from attention.modules import LanguageModel, TransformerConfig

GPT3 = TransformerConfig(  # Brown et al. 2020, table 2.1
    width=12_288,
    num_heads=96,
    hidden=4 * 12_288,
    activation="gelu",
    positions="learned",
    max_length=2048,
    decoder_layers=96,
    tie="output",
)
LLAMA3_8B = TransformerConfig(  # Dubey et al. 2024, table 3
    width=4096,
    num_heads=32,
    num_kv_heads=8,
    hidden=14_336,
    activation="gated",
    norm_kind="rms",
    positions="rotary",
    rotary={"base": 500_000.0},
    max_length=8192,
    decoder_layers=32,
    tie="none",
    use_bias=False,
)


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
    "config, vocab_size, parameters, billions",
    [
        (GPT3, 50_257, gpt3_parameters(), 174.6),
        (LLAMA3_8B, 128_256, llama3_8b_parameters(), 8.03),
    ],
    ids=["GPT-3", "Llama-3-8B"],
)
def test_published_sizes(config, vocab_size, parameters, billions):
    tokens = jax.ShapeDtypeStruct((2, config.max_length), jnp.int32)

    def build():
        return LanguageModel(config, vocab_size=vocab_size, rngs=nnx.Rngs(0))

    start = time.perf_counter()
    model = jax.eval_shape(build)
    seconds = time.perf_counter() - start
    logits = jax.eval_shape(lambda model, tokens: model(tokens), model, tokens)

    total = sum(parameter.size for parameter in jax.tree.leaves(model))
    assert total == parameters
    assert total / 1e9 == pytest.approx(billions, abs=0.05 if billions > 100 else 0.005)
    assert logits.shape == (2, config.max_length, vocab_size)
    assert seconds < 1  # 0.05 on one core: whoever builds layers one by one needs more
