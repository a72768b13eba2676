"""One dataset serves every task that it makes sense for."""


import chex
import jax
import numpy as np
import pytest
import tensorflow_datasets as tfds

from configs import defaults
from experiments.config import Config
from experiments.config.files import load_config
from experiments.errors import UsageError
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


SPLITS = ("train", "validation", "test")
REVIEWS = [("a good film", "yes"), ("a bad film", "no")] * 5


def write_columns(folder, end, separator, *header):
    for split in SPLITS:
        lines = [*header, *(separator.join(review) for review in REVIEWS)]
        (folder / f"{split}.{end}").write_text("\n".join(lines) + "\n")


class Reviews(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Texts and their classes, as in many datasets of TFDS."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        label = tfds.features.ClassLabel(names=["no", "yes"])
        features = {"text": tfds.features.Text(), "label": label}
        features = tfds.features.FeaturesDict(features)
        return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

    def _split_generators(self, dl_manager):
        del dl_manager
        return {split: self._generate_examples() for split in SPLITS}

    def _generate_examples(self):
        for number, (text, label) in enumerate(REVIEWS):
            yield number, {"text": text, "label": label}


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


@pytest.mark.parametrize("data", ["parallel", "csv", "tfds"])
def test_classes_of_texts(data, tmp_path):
    fields = {"source": "text", "target": "label"}
    if data == "parallel":
        write_columns(tmp_path, "tsv", "\t")
    elif data == "csv":
        write_columns(tmp_path, "csv", ",", "text,label")
    else:
        tfds.disable_progress_bar()
        builder = Reviews(data_dir=str(tmp_path), file_format="array_record")
        builder.download_and_prepare()
        fields["dataset"] = builder.name
    task = task_of("classification", data, tmp_path / "cache", path=str(tmp_path), **fields)
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
    assert texts[: len(REVIEWS)] == REVIEWS
    assert np.sum(batch.counted) == 10
    task.tokenizers.keep(tmp_path)
    assert task.load_tokenizers(task.config, tmp_path) == task.tokenizers


def test_example_without_a_class_raises(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "REVIEWS", [*REVIEWS, ("a film", -1)])  # as TFDS stores it
    tfds.disable_progress_bar()
    Reviews(data_dir=str(tmp_path), file_format="array_record").download_and_prepare()
    fields = {"dataset": "reviews", "source": "text", "target": "label"}
    with pytest.raises(UsageError, match="reviews, train, example 10, label: no class; data"):
        task_of("classification", "tfds", tmp_path / "cache", path=str(tmp_path), **fields)


def test_rows_of_a_batch_of_images(tmp_path):
    config = Config.read(load_config("digits:tiny").to_dict())
    batches = TASKS["classification"].prepare(config, tmp_path).batches("test")
    last = len(batches) - 1
    whole, rows = batches[last], batches.rows(last)
    assert not whole.counted[-1]  # a row of padding alone has the shape of an image too
    for part in (slice(0, 5), slice(rows.number - 1, rows.number)):
        expected = jax.tree.map(lambda array, part=part: array[part], whole)
        chex.assert_trees_all_equal(rows.read(part), expected, strict=True)
