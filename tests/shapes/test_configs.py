"""Shapes of the batches that each family of experiments learns from, and one loss of each config.

B batch · S source length · T target or text length
"""

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import pytest
from ml_collections import ConfigDict

from tests.shapes.shapes import array, check_tree

FOLDER = Path(__file__).resolve().parents[2] / "configs"
HELPERS = {"defaults", "forms"}
OTHERS = {"benchmark", "benchmark_models", "ledger", "presets", "pretrained"}  # no model is trained

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


def configs() -> dict[str, ConfigDict]:
    """Every config that trains a model, and each run of those that compare several."""
    found = {}
    for name in sorted(path.stem for path in FOLDER.glob("*.py")):
        if name not in HELPERS | OTHERS:
            config = importlib.import_module(f"configs.{name}").get_config()
            runs = config.get("runs", {"": config})
            found |= {f"{name} {run}".strip(): each for run, each in runs.items()}
    return found


CONFIGS = configs()


def task_and_batch(config: ConfigDict) -> tuple[Any, Any]:
    """Return the task of a config and the shapes of one of its batches.

    Nothing else here knows how an experiment is built.
    """
    from experiments import (
        classification,
        language_model,
        masked_language_model,
        translation,
        word_vectors,
    )
    from experiments.data import batching, gaps, labelled, packing, skip_grams, text, tokenizers

    def batch(kind: type, name: str) -> Any:
        return kind(**jax.tree.map(array, BATCHES[name]))

    words = range(101)
    match config.experiment:
        case "translation":
            task = translation.Task(config, tokenizers.Tokenizers(words, words))
            if not config.data.get("row_length"):
                return task, batch(batching.Batch, "translation")
            sides = jax.tree.map(array, BATCHES["translation, packed"])
            return task, packing.PackedPairs(
                **{side: packing.PackedBatch(**fields) for side, fields in sides.items()}
            )
        case "language_model":
            task = language_model.Task(config, SimpleNamespace(vocabulary=words))
            if config.data.name == "sentences":
                return task, batch(packing.PackedBatch, "language_model, packed")
            return task, batch(text.TextBatch, "language_model")
        case "masked_language_model":
            return masked_language_model.Task(config, words), batch(
                gaps.GapBatch, config.experiment
            )
        case "classification":
            is_text = config.data.name == "sentiment"
            name = "classification" if is_text else "classification, images"
            examples = batch(labelled.LabelledBatch, name)
            data = labelled.Labelled({"train": examples}, words, words if is_text else None, str)
            with mock.patch.object(classification, "load_labelled", lambda *_: data):
                return classification.Task(config), examples
        case "word_vectors":
            kind = skip_grams.SkipGramBatch
            return word_vectors.Task(config, words), batch(kind, config.experiment)


@pytest.mark.parametrize("name", CONFIGS)
def test_model_and_loss(name):
    with jax.numpy_dtype_promotion("standard"):  # optax multiplies numbers of several dtypes
        task, batch = task_and_batch(CONFIGS[name])
        model = task.learner.abstract_model
        rng = array("key []")
        sums, auxiliary = jax.eval_shape(task._sum_losses, model, batch, rng)
    check_tree({name: getattr(sums, name) for name in LOSSES}, LOSSES)
    check_tree(dict(auxiliary), dict.fromkeys(auxiliary, "[]"))


def test_every_family_has_a_batch():
    families = {config.experiment for config in CONFIGS.values()}
    assert families == {name.split(",")[0] for name in BATCHES}
