"""One dataset serves every task that it makes sense for."""

import jax
import numpy as np
import pytest

from configs import defaults
from experiments.config import Config
from experiments.data.pairs import SentencePair
from experiments.data.sources import Splits
from experiments.data.store import store_text
from experiments.registry import TASKS

SMALL = {"width": 16, "num_heads": 2, "hidden": 8, "max_length": 96}


def task_of(name, data, folder, cache):
    config = defaults.new(name, data, steps=4)
    config.data.path = str(folder)
    config.data.files.test = "test_2016"
    config.text.size = 288
    model = {field: value for field, value in SMALL.items() if field in config.model}
    config.model.update(model)
    if "row_length" in config.batch:
        config.batch.row_length = 0 if name == "translation" else 96
    return TASKS[name].prepare(Config.read(config.to_dict()), cache)


@pytest.fixture
def reviews(tmp_path):
    """A folder of texts and their classes, in two columns."""
    for split in ("train", "validation", "test_2016"):
        lines = [f"a {word} film\t{label}" for word, label in (("good", "yes"), ("bad", "no"))]
        (tmp_path / f"{split}.tsv").write_text("\n".join(lines * 5) + "\n")
    return tmp_path


def check_trains(task):
    batch = task.training_batches()[0]
    state, _ = jax.eval_shape(task.learner.train_step, task.learner.abstract_state, batch)
    for split in task.known_splits:
        for measured in task.batches(split):
            jax.eval_shape(task.learner.evaluate_step, state.parameters, measured)


@pytest.mark.parametrize("name", sorted({*TASKS} - {"classification"}))
def test_parallel_text(name, captions, tmp_path):
    task = task_of(name, "parallel", captions, tmp_path)
    assert (task.tokenizers.target is None) == (name != "translation")
    check_trains(task)


def test_classes_of_texts_in_two_columns(reviews, tmp_path):
    task = task_of("classification", "parallel", reviews, tmp_path / "cache")
    check_trains(task)
    assert task.num_classes == 2
    (batch,) = task.batches("test")
    texts = [
        (
            task.tokenizers.source.decode(ids[:length]),
            task.tokenizers.target.token(label + 3),
        )
        for ids, length, label in zip(batch.inputs, batch.lengths, batch.labels, strict=True)
    ]
    assert texts[:2] == [("a good film", "yes"), ("a bad film", "no")]
    assert np.sum(batch.counted) == 10
    task.tokenizers.keep(tmp_path)
    assert task.load_tokenizers(task.config, tmp_path) == task.tokenizers


def test_characters_of_a_language_model_are_those_of_its_training_text(tmp_path):
    config = Config.read(defaults.new("language_model", "characters", steps=4).to_dict())
    splits = Splits(config.data, tmp_path)
    for split, text in (("train", "ab" * 50), ("validation", "ba" * 50), ("test", "cz" * 50)):
        splits[split] = store_text(tmp_path, lambda text=text: [SentencePair(text, "")])
    tokenizers = TASKS["language_model"].learn_tokenizers(config, splits["train"], tmp_path)
    task = TASKS["language_model"](config, tokenizers, splits)
    assert task.tokenizers.source.characters == "ab\ufffd"
    assert {*task.ids("test").ids.tolist()} == {2}
    assert task.tests == ("test",)
