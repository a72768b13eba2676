"""Shapes of the models of all configs: of a batch and one loss, or of parameters and logits.

B batch · S source length · T target or text length. No parameter is allocated.
"""

import importlib
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from flax import nnx

from attention.modules import RecurrentConfig, RecurrentEncoderDecoder, select_parameters
from configs.presets import PRESETS, get_config
from experiments.config import Config
from experiments.data import masking, packing, pipeline, skip_grams, source, tokenizers
from experiments.describe import abstract_model
from experiments.registry import DATASETS, TASKS
from experiments.tasks.classification import LabelledBatch
from tests.shapes.shapes import ARRAY, array, check_tree, shapes

FOLDER = Path(__file__).resolve().parents[2] / "configs"
OTHERS = {"defaults", "benchmark", "benchmark_models", "presets", "pretrained"}  # train nothing


def packed_pairs(**fields: Any) -> packing.PackedPairs:
    """Return packed pairs whose sides have the same fields."""
    return packing.PackedPairs(*[packing.PackedBatch(**fields)] * 2)


TEXT = "inputs: int32 [B, T], labels: int32 [B, T], counted: bool [B, T]"
PACKED = (
    "inputs: int32 [B, T], labels: int32 [B, T], segments: int32 [B, T], positions: int32 [B, T]"
)
BATCHES = {
    "translation": (
        packing.Batch,
        "source: int32 [B, S], source_lengths: int32 [B], "
        "target_inputs: int32 [B, T], target_labels: int32 [B, T]",
    ),
    "translation, packed": (packed_pairs, PACKED),
    "language_model": (pipeline.TextBatch, TEXT),
    "language_model, packed": (packing.PackedBatch, PACKED),
    "masked_language_model": (masking.MaskedBatch, f"{TEXT}, lengths: int32 [B]"),
    "classification": (
        LabelledBatch,
        "inputs: int32 [B, S], lengths: int32 [B], labels: int32 [B], counted: bool [B]",
    ),
    "classification, images": (
        partial(LabelledBatch, lengths=None),
        "inputs: [B, 8, 8, 1], labels: int32 [B], counted: bool [B]",
    ),
    "word_vectors": (
        skip_grams.SkipGramBatch,
        "center: int32 [B], others: int32 [B, 9], counted: bool [B]",
    ),
}
LOSSES = {"loss": "[]", "nll": "[]", "correct": "[]", "tokens": "[]"}


def configs() -> dict[str, Config]:
    """Return every config that trains a model."""
    found = {}
    for name in sorted(path.stem for path in FOLDER.glob("*.py")):
        if name not in OTHERS:
            config = importlib.import_module(f"configs.{name}").get_config()
            one_device = {"mesh": {"data": 1}}  # or rows would be padded to divide the devices
            found[name] = Config.read(config.to_dict() | one_device)
    return found


CONFIGS = configs()


def task_and_batch(config: Config) -> tuple[Any, Any]:
    """Return the task of a config and the shapes of one of its batches."""
    name, dataset, words = config.task, DATASETS[config.data.name].source, range(101)
    splits = source.Splits(config.data, Path())
    if dataset.has_images:
        name = "classification, images"
        splits["train"] = source.ImageStore([tokenizers.SentencePair(np.zeros((8, 8, 1)), "0")])
    sides = tokenizers.Tokenizers(None if dataset.has_images else words, words)
    task = TASKS[config.task](config, sides, splits)
    if getattr(config.batch, "packed", False):
        name = "translation, packed"
    elif name == "language_model" and not dataset.is_running:
        name = "language_model, packed"
    batch, fields = BATCHES[name]
    return task, batch(**{field: array(text) for field, text in ARRAY.findall(fields)})


@pytest.mark.parametrize("name", CONFIGS)
def test_model_and_loss(name):
    with jax.numpy_dtype_promotion("standard"):  # optax multiplies numbers of several dtypes
        task, batch = task_and_batch(CONFIGS[name])
        model = task.learner.abstract_model
        rng = array("key []")
        sums, auxiliary = jax.eval_shape(task.loss, model, batch, rng)
    check_tree({name: getattr(sums, name) for name in LOSSES}, LOSSES)
    check_tree(dict(auxiliary), dict.fromkeys(auxiliary, "[]"))


def test_every_family_has_a_batch():
    families = {config.task for config in CONFIGS.values()}
    assert families == {name.split(",")[0] for name in BATCHES}


# The first axis of a parameter of the layers is the number of layers.


class Preset(NamedTuple):
    """Number of parameters, signature of a call, and the shapes of some parameters."""

    num_parameters: int
    signature: str
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
        "tokens: int32 [B, 1024] -> [B, 1024, 50257]",
        gpt(layers=12, width=768, heads=12, head_width=64, max_length=1024),
    ),
    "gpt3_175b": Preset(
        174_604_259_328,
        "tokens: int32 [B, 2048] -> [B, 2048, 50257]",
        gpt(layers=96, width=12_288, heads=96, head_width=128, max_length=2048),
    ),
    "llama3_8b": Preset(
        8_030_261_248,
        "tokens: int32 [B, 8192] -> [B, 8192, 128256]",
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
        "tokens: int32 [B, 512], token_types: int32 [B, 512] -> [B, 512, 30522]",
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
        "source: int32 [B, 500], target: int32 [B, 512] -> [B, 512, 37000]",
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
def test_preset(name):
    line, start = MODELS[name], time.process_time()
    model = abstract_model(get_config(name))
    assert time.process_time() - start < 4  # at most 1 on one core: layers are not made one by one
    number = count(model)  # by name, so that a failure does not print the model
    assert number == line.num_parameters
    for pattern, text in line.parameters.items():
        found = select_parameters(model, pattern)
        check_tree(found, dict.fromkeys(found, text))
    call = shapes(lambda model, arguments: model(**arguments).logits, line.signature)
    output = jax.eval_shape(call.function, model, jax.tree.map(array, call.arguments))
    check_tree(output, call.returns)


def test_a_published_recurrent_model():
    """bentrevett/pytorch-seq2seq has 20,518,917; its GRUs have a second bias of 3·F each."""
    config = RecurrentConfig(embedding_width=256, hidden=512, attention="additive")
    sizes = {"source_vocab_size": 7855, "target_vocab_size": 5893}
    model = jax.eval_shape(lambda: RecurrentEncoderDecoder(config, **sizes, rngs=nnx.Rngs(0)))
    assert count(model) == 20_518_917 - 3 * (3 * 512)
