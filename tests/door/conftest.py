"""A person at the door, and a run that they have trained."""

import io
import shutil
import sys
from pathlib import Path

import pytest

import run
from experiments.evaluation.translator import Translator
from experiments.tasks.translation import Translation
from tests.door.command import TINY, at_the_door, command, train


@pytest.fixture(autouse=True)
def standing_at_the_door():
    with at_the_door():
        yield


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A folder of workdirs that share generated data."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def trained(place):
    """A tiny run, trained to its end, and what it printed."""
    return train(place, "tiny", *TINY)


@pytest.fixture
def own(place, trained, tmp_path):
    """A copy of the tiny run, which a test may change."""
    return Path(shutil.copytree(place / "tiny", tmp_path / "own"))


@pytest.fixture
def knock(place, capsys, monkeypatch):
    """Calls the door and returns (exit status, standard output, standard error)."""

    def knock(*arguments, given="", workdir="tiny"):
        capsys.readouterr()
        read = given if isinstance(given, bytes) else given.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(read)))
        status = run.main(command(place, workdir, *arguments))
        return status, *capsys.readouterr()

    return knock


@pytest.fixture
def echoing(monkeypatch):
    """Says what it reads: to compile how a model says it takes longer than what is tested."""
    monkeypatch.setattr(Translator, "__call__", lambda _, __, texts, batch_size: [*texts])
    monkeypatch.setattr(Translation, "artifacts", lambda *_: None)
