"""The row of numbers of a validation split: losses, metrics of answers, and evaluators."""

from functools import partial
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.errors import UsageError
from experiments.registry import EVALUATORS, METRICS
from experiments.scores import answer_scores
from experiments.tasks import task as tasks
from experiments.tasks.task import Task


@pytest.fixture
def task():
    """A task whose losses and answers are known; the scores are those of two sentences."""
    scores = {"sentences": 2, "bleu": 50.0, "bleu_signature": "nrefs:1"}
    return SimpleNamespace(
        learner=SimpleNamespace(losses=lambda parameters, batches: {"loss": 1.0}),
        config=SimpleNamespace(train=SimpleNamespace(evaluators=())),
        answer_split=lambda state, split: [split],
        answer_scores=lambda answers, split, metrics: scores if metrics == ["bleu"] else {},
        _validation=[],
    )


STATE = SimpleNamespace(parameters=None, step=7)


def test_without_evaluators_it_is_the_losses(task):
    assert Task.validate(task, STATE) == {"loss": 1.0}


def test_metrics_and_evaluators_are_added(task, monkeypatch):
    monkeypatch.setitem(EVALUATORS._entries, "steps", lambda task, state: {"taken": state.step})
    task.config.train.evaluators = ("bleu", "steps")
    found = Task.validate(task, STATE)
    assert found == {"loss": 1.0, "sentences": 2, "bleu": 50.0, "taken": 7}


def test_numbers_of_evaluators_are_floats(task, monkeypatch):
    """A checkpoint contains the monitored one as JSON."""
    numbers = {"first": np.float32(1.5), "second": jnp.float32(2), "note": "words"}
    monkeypatch.setitem(EVALUATORS._entries, "numbers", lambda *_: numbers)
    task.config.train.evaluators = ("numbers",)
    found = Task.validate(task, STATE)
    assert found == {"loss": 1.0, "first": 1.5, "second": 2.0}
    assert {*map(type, found.values())} == {float}


@pytest.mark.parametrize("value", [None, np.arange(3.0)])
def test_an_evaluator_without_a_number_is_named(task, monkeypatch, value):
    monkeypatch.setitem(EVALUATORS._entries, "own", lambda *_: {"share": value})
    task.config.train.evaluators = ("own",)
    with pytest.raises(UsageError, match="the evaluator 'own' failed: TypeError: "):
        Task.validate(task, STATE)


def test_scores_and_each_evaluator_are_steps_of_the_timeout(task, monkeypatch):
    begun = []
    monkeypatch.setattr(tasks, "step_begins", lambda: begun.append("step"))
    monkeypatch.setattr(tasks, "answer_scores", lambda *given, **_: begun.append("scores") or {})
    for name in ("first", "second"):
        evaluator = partial(lambda name, task, state: begun.append(name) or {}, name)
        monkeypatch.setitem(EVALUATORS._entries, name, evaluator)
    task.config.train.evaluators = ("first", "bleu", "second")
    task.config.data, task.examples = None, lambda split: []
    task.answer_scores = partial(Task.answer_scores, task)
    Task.validate(task, STATE)
    assert begun == ["step", "scores", "step", "first", "step", "second"]


@pytest.mark.parametrize("given", [iter, list, tuple])
def test_validation_batches_may_be_any_iterable(given):
    """They are measured again and again."""
    task = SimpleNamespace(batches=lambda split: given([split, "and more"]))
    found = Task._validation.func(task)
    assert [*found] == [*found] == ["validation", "and more"]


def test_a_metric_or_an_evaluator_that_fails_is_named(task, monkeypatch):
    def fails(*_):
        raise KeyError("a key")

    sentence = r"the {} 'own' failed in test_validate.py, line \d+: KeyError: 'a key'"
    monkeypatch.setitem(EVALUATORS._entries, "own", fails)
    task.config.train.evaluators = ("own",)
    with pytest.raises(UsageError, match=sentence.format("evaluator")) as found:
        Task.validate(task, STATE)
    assert isinstance(found.value.__cause__, KeyError)
    monkeypatch.setitem(METRICS._entries, "own", fails)
    with pytest.raises(UsageError, match=sentence.format("metric")):
        answer_scores(["own"], ["a"], ["a"])
