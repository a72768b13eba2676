"""Every configuration that can be launched: its card, and its tiny form."""

import ast
import importlib
import re
from functools import partial

import jax
import numpy as np
import pytest
from sklearn import linear_model

from experiments import train as training
from experiments.cli import OTHER_TASKS, with_fields
from experiments.config import REPOSITORY, Config, config_files
from experiments.config.build import flat
from experiments.errors import UsageError
from experiments.evaluate import evaluate
from experiments.learner import Learner
from experiments.registry import TASKS
from experiments.tasks.task import Task
from experiments.tasks.translation import Translation
from experiments.workdir import Workdir
from tests.experiments.initial_states import drawn_initial_states

CARDS = {path.stem: ast.get_docstring(ast.parse(path.read_text())) for path in config_files()}
OTHERS = {"benchmark", "benchmark_models", "presets", "pretrained"}  # no training
TRAINED = [name for name in CARDS if name not in OTHERS]
FORMS = {"presets": "gpt2_small"}  # presets have no form without a name
# One of each task and architecture, and of each kind of example. The others have their programs in
# other sizes, with other data or with one other choice in the model: their training step is traced,
# and `make test-slow` trains them too.
COMPILED = {"char_lm", "digits", "masked_lm", "multi30k", "packed_lm", "sentiment"}
COMPILED |= {"toy_translation_rnn", "word_vectors"}
TRAINS = [
    name if name in COMPILED else pytest.param(name, marks=pytest.mark.slow) for name in TRAINED
]
# Tests in tests/command_line decode greedily; decoding takes as long to compile as training.
TRANSLATE = {"toy_translation_rnn", "multi30k"}
# Tasks other than translation are measured again: all test splits, or one.
MEASURED_AGAIN = {"char_lm": None, "masked_lm": "test", "digits": None, "word_vectors": "test"}


def load(name, form=""):
    return importlib.import_module(f"configs.{name}").get_config(form)


@pytest.fixture(autouse=True)
def session_of_a_user():
    with jax.numpy_dtype_promotion("standard"), drawn_initial_states():
        yield


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def fields(config):
    """Return the names of all fields, without those of published scores, which decide nothing."""
    others = "literature.", "model.rotary.", "model.relative."  # of positions that are not chosen
    return {name for name in flat(config.to_dict()) if not name.startswith(others)}


@pytest.mark.parametrize("name", CARDS)
def test_the_card_contains_command_hardware_time_and_score(name):
    for entry in ("command ", "hardware ", "time ", "score ", f"configs/{name}.py"):
        assert entry in CARDS[name]
    for page in re.findall(r"docs/\w+\.md", CARDS[name]):
        assert (REPOSITORY / page).exists()


@pytest.mark.parametrize("name", CARDS)
def test_full_form_is_valid_and_has_the_fields_of_the_tiny_form(name):
    config = load(name, FORMS.get(name, ""))
    with_fields(config, {})
    if config.task not in TASKS:
        _, module = OTHER_TASKS[config.task]
        getattr(importlib.import_module(module), "check", lambda _: None)(config)
    if name not in FORMS:
        assert fields(config) == fields(load(name, "tiny"))


@pytest.fixture
def fast(monkeypatch):
    """Share compiled steps; draw no curve; fit probes of senses in few iterations."""
    learners = []

    def learner(*arguments):
        learners[:] = learners or [Learner(*arguments)]
        return learners[0]

    monkeypatch.setattr("experiments.tasks.task.Learner", learner)
    monkeypatch.setattr(training, "draw_learning_curve", lambda *_: None)
    rough = partial(linear_model.LogisticRegression, tol=1.0)
    monkeypatch.setattr(linear_model, "LogisticRegression", lambda max_iter: rough())


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("name", TRAINS)
def test_tiny_form_trains_and_is_measured_again(name, tmp_path, cache, monkeypatch):
    config, workdir = load(name, "tiny"), Workdir(tmp_path / "run")
    config.train.steps, config.train.warmup_steps = 2, 1
    if config.task == "translation" and name not in TRANSLATE:
        monkeypatch.setattr(Translation, "measure", Task.measure)
        monkeypatch.setattr(Translation, "sample", lambda *_: "")
        monkeypatch.setattr(Translation, "artifacts", lambda *_: None)
    config = Config.read(config.to_dict())
    training.train(config, workdir, cache)
    results = workdir.results.read_text()
    if name in MEASURED_AGAIN:
        workdir.results.unlink()
        evaluate(config, workdir, cache, MEASURED_AGAIN[name])
        assert workdir.results.read_text() == results
        with pytest.raises(UsageError, match="--split must be one of"):
            evaluate(config, workdir, cache, "tset")


@pytest.mark.parametrize("name", [name for name in TRAINED if name not in COMPILED])
def test_step_of_the_tiny_form_is_traced(name, cache):
    """The examples of all splits fit the model."""
    config = Config.read(load(name, "tiny").to_dict())
    task = TASKS[config.task].prepare(config, cache)
    for split in task.known_splits:
        task.ids(split)
    learner, state = task.learner, task.learner.abstract_state
    after, metrics = jax.eval_shape(learner.train_step, state, task.training_batches()[0])
    assert jax.tree.map(np.shape, after) == jax.tree.map(np.shape, state)
    assert metrics["loss"].shape == ()
    batch = next(iter(task.batches("validation")))  # of another layout, where rows are packed
    assert jax.eval_shape(learner.evaluate_step, state.parameters, batch).loss.shape == ()


def test_each_task_and_architecture_trains():
    configs = {name: load(name, "tiny") for name in TRAINED}
    kinds = {name: (each.task, each.get("architecture")) for name, each in configs.items()}
    assert {kinds[name] for name in COMPILED} == {*kinds.values()}


@pytest.mark.parametrize("form", ["", "tiny"])
@pytest.mark.parametrize("name", TRAINED)
def test_validation_is_measured_five_times(name, form):
    train = load(name, form).train
    assert train.steps // train.evaluate_every >= 5
