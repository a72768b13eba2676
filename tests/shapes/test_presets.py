"""Models of the literature: shapes and numbers of parameters, and logits of their longest text.

No parameter is allocated. The first axis of a parameter of the layers is the number of layers.
"""

import time
from typing import NamedTuple

import jax
import pytest
from flax import nnx

from attention.modules import RecurrentConfig, RecurrentEncoderDecoder, select_parameters
from configs.presets import PRESETS, get_config
from tests.shapes.shapes import array, check_tree


class Preset(NamedTuple):
    """Number of parameters, arguments and logits of a model, and the shapes of some parameters."""

    num_parameters: int
    arguments: dict[str, str]
    logits: str
    parameters: dict[str, str]  # pattern of paths -> shape


def gpt(layers, width, heads, head_width, max_length):
    """Parameters of a GPT, with a hidden width of 4 D."""
    return {
        "embedding.tokens": f"[50257, {width}]",
        "embedding.positions.table": f"[{max_length}, {width}]",
        "decoder.*.[qkv]*.kernel": f"[{layers}, {width}, {heads}, {head_width}]",
        "decoder.*.self_attention.*.output.kernel": f"[{layers}, {heads}, {head_width}, {width}]",
        "decoder.*.up.kernel": f"[{layers}, {width}, 4*{width}]",
        "decoder.*.down.kernel": f"[{layers}, 4*{width}, {width}]",
    }


MODELS = {
    "gpt2_small": Preset(
        124_439_808,
        {"tokens": "int32 [B, 1024]"},
        "[B, 1024, 50257]",
        gpt(layers=12, width=768, heads=12, head_width=64, max_length=1024),
    ),
    "gpt3_175b": Preset(
        174_604_259_328,
        {"tokens": "int32 [B, 2048]"},
        "[B, 2048, 50257]",
        gpt(layers=96, width=12_288, heads=96, head_width=128, max_length=2048),
    ),
    "llama3_8b": Preset(
        8_030_261_248,
        {"tokens": "int32 [B, 8192]"},
        "[B, 8192, 128256]",
        {
            "embedding.tokens": "[128256, 4096]",
            "decoder.*.query.kernel": "[32, 4096, 32, 128]",
            "decoder.*.key.kernel": "[32, 4096, 8, 128]",
            "decoder.*.value.kernel": "[32, 4096, 8, 128]",
            "decoder.*.self_attention.*.output.kernel": "[32, 32, 128, 4096]",
            "decoder.*.gate.kernel": "[32, 4096, 14336]",
            "decoder.*.up.kernel": "[32, 4096, 14336]",
            "decoder.*.down.kernel": "[32, 14336, 4096]",
            "output.kernel": "[4096, 128256]",
        },
    ),
    "bert_base": Preset(
        109_482_240 - (768 * 768 + 768),  # without the pooler
        {"tokens": "int32 [B, 512]", "token_types": "int32 [B, 512]"},
        "[B, 512, 30522]",
        {
            "embedding.tokens": "[30522, 768]",
            "embedding.positions.table": "[512, 768]",
            "embedding.token_types": "[2, 768]",
            "encoder.*.query.kernel": "[12, 768, 12, 64]",
            "encoder.*.up.kernel": "[12, 768, 3072]",
        },
    ),
    "transformer_base": Preset(
        63_082_496,
        {"source": "int32 [B, 500]", "target": "int32 [B, 512]"},
        "[B, 512, 37000]",
        {
            "target_embedding.tokens": "[37000, 512]",
            "*.query.kernel": "[6, 512, 8, 64]",
            "decoder.*.cross_attention.*.key.kernel": "[6, 512, 8, 64]",
            "*.up.kernel": "[6, 512, 2048]",
        },
    ),
}


def count(model: nnx.Module) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(model))


@pytest.mark.parametrize("name", PRESETS)
def test_shapes(name):
    from experiments.describe import abstract_model

    line, start = MODELS[name], time.process_time()
    model = abstract_model(get_config(name))
    assert time.process_time() - start < 4  # at most 1 on one core: layers are not made one by one
    number = count(model)  # by name, so that a failure does not print the model
    assert number == line.num_parameters
    for pattern, text in line.parameters.items():
        found = select_parameters(model, pattern)
        check_tree(found, dict.fromkeys(found, text))
    arguments = jax.tree.map(array, line.arguments)
    output = jax.eval_shape(lambda model, arguments: model(**arguments).logits, model, arguments)
    check_tree(output, line.logits)


def test_a_published_recurrent_model():
    """bentrevett/pytorch-seq2seq has 20,518,917; its GRUs have a second bias of 3·F each."""
    config = RecurrentConfig(embedding_width=256, hidden=512, attention="additive")
    sizes = {"source_vocab_size": 7855, "target_vocab_size": 5893}
    model = jax.eval_shape(
        lambda: RecurrentEncoderDecoder.from_config(config, **sizes, rngs=nnx.Rngs(0))
    )
    assert count(model) == 20_518_917 - 3 * (3 * 512)
