"""Numbers of the validation split in training, and what is checked before the first step."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from configs import packed_lm, toy_translation
from experiments.config import Config
from experiments.errors import UsageError
from experiments.registry import EVALUATORS, METRICS, TASKS
from experiments.tasks.task import Task
from experiments.tasks.translation import Translation

STATE = SimpleNamespace(parameters=None, step=7)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")

    def prepare(module, **changes):
        config = module.get_config("tiny")
        config.update_from_flattened_dict(changes)
        return TASKS[config.task].prepare(Config.read(config.to_dict()), cache)

    return prepare


def fails(*_):
    raise KeyError("a key")


def test_numbers_of_metrics_and_evaluators_are_floats(prepared, monkeypatch):
    """A checkpoint contains the monitored one as JSON."""
    numbers = {"first": np.float32(1.5), "second": jnp.float32(2), "note": "words"}
    monkeypatch.setitem(EVALUATORS, "numbers", lambda *_: numbers)
    monkeypatch.setattr(Translation, "answer_split", lambda self, *_: ["a"] * 20)
    task = prepared(toy_translation, **{"train.evaluators": ("exact_match", "numbers")})
    monkeypatch.setattr(task.learner, "losses", lambda *_: {"loss": 1.0})
    values = task.validate(STATE)
    expected = {"loss": 1.0, "sentences": 20, "exact_match": 0.0, "first": 1.5, "second": 2.0}
    assert values == expected
    assert {type(values[name]) for name in numbers if name != "note"} == {float}


@pytest.mark.parametrize("value", [None, np.arange(3.0)])
def test_an_evaluator_without_a_number_is_named(prepared, monkeypatch, value):
    monkeypatch.setitem(EVALUATORS, "own", lambda *_: {"share": value})
    task = prepared(toy_translation, **{"train.evaluators": ("own",)})
    with pytest.raises(UsageError, match="the evaluator 'own' failed: TypeError: "):
        task.check()


@pytest.mark.parametrize("given", [iter, list, tuple])
def test_validation_batches_may_be_any_iterable(given):
    """They are measured again and again."""
    task = SimpleNamespace(batches=lambda split: given([split, "and more"]))
    batches = Task._validation.func(task)
    assert [*batches] == [*batches] == ["validation", "and more"]


@pytest.mark.parametrize(
    ("module", "changes", "sentence"),
    [
        (packed_lm, {"batch.row_length": 5}, "raise batch.row_length"),
        (toy_translation, {"train.evaluators": ("mine",)}, "the evaluator 'mine' failed .*KeyErr"),
        (toy_translation, {"decoding.metrics": ("mine",)}, "the metric 'mine' failed .*KeyError"),
        (
            toy_translation,
            {"train.evaluators": ("bleu",), "train.monitor": "chrf"},
            "train.monitor must be one of loss, nll, accuracy, sentences, bleu, got 'chrf'",
        ),
    ],
)
def test_mistakes_are_reported_before_the_first_step(
    prepared, monkeypatch, module, changes, sentence
):
    is_metric = "decoding.metrics" in changes
    monkeypatch.setitem(METRICS if is_metric else EVALUATORS, "mine", fails)
    with pytest.raises(UsageError, match=sentence):
        prepared(module, **changes).check()
