"""Commands, and folders of runs."""

import io
import sys

import pytest

import run
from experiments.learner import Learner
from experiments.tasks.task import Task
from experiments.tasks.translation import Translation
from tests.command_line.command import command, in_repository
from tests.experiments.initial_states import drawn_initial_states

FALLING = "linear", "cosine"  # schedules that depend on the number of steps


@pytest.fixture(autouse=True)
def working_directory():
    with in_repository():
        yield


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """Return a folder of workdirs that share generated data."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def compile_once():
    """Share the compiled steps of equal models and trainings among the commands of a file."""
    learners = {}

    def learner(make_model, loss, config):
        sizes = [each and len(each) for each in make_model.__self__.tokenizers]
        same = () if config.train.schedule in FALLING else ("steps",)
        training = {name: value for name, value in vars(config.train).items() if name not in same}
        parts = config.task, config.architecture, config.seed, config.batch, config.model
        key = repr([*parts, config.mesh, training, sizes])
        if key not in learners:
            learners[key] = Learner(make_model, loss, config)
        return learners[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.tasks.task.Learner", learner)
        yield


@pytest.fixture(scope="module")
def load_once():
    """Share the tasks of equal runs, with what they have compiled, among the commands of a file."""
    tasks, original = {}, Task.load.__func__

    def load(kind, config, workdir, cache):
        key = kind, repr(config), workdir.path
        if key not in tasks:
            tasks[key] = original(kind, config, workdir, cache)
        return tasks[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Task, "load", classmethod(load))
        yield


@pytest.fixture
def initial_states():
    """Compile no program for the initial parameters of each model."""
    with drawn_initial_states():
        yield


@pytest.fixture
def run_command(place, capsys, monkeypatch):
    """Return a function that runs a command: (exit status, standard output, standard error)."""

    def run_command(*arguments, given="", workdir="tiny"):
        capsys.readouterr()
        read = given if isinstance(given, bytes) else given.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(read)))
        status = run.main(command(place, workdir, *arguments))
        return status, *capsys.readouterr()

    return run_command


@pytest.fixture
def echoing(monkeypatch):
    """Replace decoding by its input, and draw nothing: both take long and are not tested here."""

    def sources(task, state, split, number=None):
        return [pair.source for pair in task.examples(split)[:number]]

    monkeypatch.setattr(Translation, "answer_split", sources)
    monkeypatch.setattr(Translation, "artifacts", lambda *_: None)
    monkeypatch.setattr("experiments.train.draw_learning_curve", lambda *_: None)
