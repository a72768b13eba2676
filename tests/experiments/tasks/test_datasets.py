"""One dataset serves every task that it makes sense for."""

import jax
import numpy as np
import pytest

from configs import defaults
from experiments.config import Config
from experiments.registry import TASKS

SMALL = {"width": 16, "num_heads": 2, "hidden": 8, "max_length": 96}


def task_of(name, data, cache, **fields):
    config = defaults.new(name, data, steps=4)
    config.data.update(fields)
    if "text" in config:
        config.text.size = 288
    model = {field: value for field, value in SMALL.items() if field in config.model}
    config.model.update(model)
    if "row_length" in config.batch:
        config.batch.row_length = 0 if name == "translation" else 96
    return TASKS[name].prepare(Config.read(config.to_dict()), cache)


REVIEWS = [("a good film", "yes"), ("a bad film", "no")] * 5


def check_trains(task):
    batch = task.training_batches()[0]
    state, _ = jax.eval_shape(task.learner.train_step, task.learner.abstract_state, batch)
    for split in task.known_splits:
        for measured in task.batches(split):
            jax.eval_shape(task.learner.evaluate_step, state.parameters, measured)


@pytest.mark.parametrize("name", sorted({*TASKS} - {"classification"}))
def test_parallel_text(name, captions, tmp_path):
    files = {"train": "train", "validation": "validation", "test": "test_2016"}
    task = task_of(name, "parallel", tmp_path, path=str(captions), files=files)
    assert (task.tokenizers.target is None) == (name != "translation")
    check_trains(task)


@pytest.mark.parametrize("name", ["language_model", "masked_language_model", "word_vectors"])
def test_subwords_of_a_text_whose_lines_are_longer_than_the_model_reads(name, tmp_path):
    text = [" ".join(f"{number} one two three" for number in range(n)) for n in range(1, 60)]
    (tmp_path / "mine.txt").write_text("\n".join(text))
    task = task_of(name, "text", tmp_path, path=str(tmp_path / "mine.txt"))
    check_trains(task)
    shown = task.first_examples("train", 50)[-1].source
    task.read(f"{shown} _")
    ids, learned = task.ids("train"), task.tokenizers.source
    assert (len(ids) > len(task.examples("train"))) == (name != "word_vectors")
    assert ids.lengths.max() == 96 or name == "word_vectors"
    lines = "".join(f"_{pair.source}" for pair in task.examples("train")).replace(" ", "_")
    assert "".join(learned.token(number) for one in ids for number in one.source) == lines


def test_classes_of_texts(tmp_path):
    for split in ("train", "validation", "test"):
        lines = ["text,label", *map(",".join, REVIEWS)]
        (tmp_path / f"{split}.csv").write_text("\n".join(lines) + "\n")
    fields = {"source": "text", "target": "label", "path": str(tmp_path)}
    task = task_of("classification", "csv", tmp_path / "cache", **fields)
    check_trains(task)
    assert task.num_classes == 2
    (batch,) = task.batches("test")
    source, target = task.tokenizers
    texts = [
        (source.decode(ids[:length]), target.token(label + 3))
        for ids, length, label in zip(batch.inputs, batch.lengths, batch.labels, strict=True)
    ]
    assert texts[: len(REVIEWS)] == REVIEWS
    assert np.sum(batch.counted) == 10
    task.tokenizers.keep(tmp_path)
    assert task.load_tokenizers(task.config, tmp_path) == task.tokenizers
