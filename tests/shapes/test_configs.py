"""Shapes of the batches that each family of experiments learns from, and one loss of each config.

B batch · S source length · T target or text length
"""

import importlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from experiments.config import Config
from tests.shapes.shapes import array, check_tree

FOLDER = Path(__file__).resolve().parents[2] / "configs"
OTHERS = {"defaults", "benchmark", "benchmark_models", "presets", "pretrained"}  # train nothing

TEXT = dict.fromkeys(("inputs", "labels"), "int32 [B, T]")
COUNTED = TEXT | {"counted": "bool [B, T]"}
PACKED = TEXT | dict.fromkeys(("segments", "positions"), "int32 [B, T]")
BATCHES = {
    "translation": {
        "source": "int32 [B, S]",
        "source_lengths": "int32 [B]",
        "target_inputs": "int32 [B, T]",
        "target_labels": "int32 [B, T]",
    },
    "translation, packed": {"source": PACKED, "target": PACKED},
    "language_model": COUNTED,
    "language_model, packed": PACKED,
    "masked_language_model": COUNTED | {"lengths": "int32 [B]"},
    "classification": {
        "inputs": "int32 [B, S]",
        "lengths": "int32 [B]",
        "labels": "int32 [B]",
        "counted": "bool [B]",
    },
    "classification, images": {
        "inputs": "[B, 8, 8, 1]",
        "lengths": None,
        "labels": "int32 [B]",
        "counted": "bool [B]",
    },
    "word_vectors": {"center": "int32 [B]", "others": "int32 [B, 9]", "counted": "bool [B]"},
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
    from experiments.data import (
        masking,
        packing,
        pipeline,
        skip_grams,
        source,
        tokenizers,
    )
    from experiments.registry import DATASETS, TASKS
    from experiments.tasks import classification

    kinds = {
        "translation": packing.Batch,
        "language_model": pipeline.TextBatch,
        "language_model, packed": packing.PackedBatch,
        "masked_language_model": masking.MaskedBatch,
        "classification": classification.LabelledBatch,
        "classification, images": classification.LabelledBatch,
        "word_vectors": skip_grams.SkipGramBatch,
    }
    name, dataset, words = config.task, DATASETS[config.data.name].source, range(101)
    splits = source.Splits(config.data, Path())
    if dataset.has_images:
        name = "classification, images"
        splits["train"] = source.ImageStore([tokenizers.SentencePair(np.zeros((8, 8, 1)), "0")])
    sides = tokenizers.Tokenizers(None if dataset.has_images else words, words)
    task = TASKS[config.task](config, sides, splits)
    if getattr(config.batch, "packed", False):
        shapes = jax.tree.map(array, BATCHES["translation, packed"])
        packed = {side: packing.PackedBatch(**fields) for side, fields in shapes.items()}
        return task, packing.PackedPairs(**packed)
    if name == "language_model" and not dataset.is_running:
        name = "language_model, packed"
    return task, kinds[name](**jax.tree.map(array, BATCHES[name]))


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
