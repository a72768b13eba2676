"""Commands, and a trained run."""

import io
import shutil
import sys
from pathlib import Path

import pytest

import run
from experiments.inference.translator import Translator
from experiments.tasks.translation import Translation
from tests.command_line.command import TINY, command, in_repository, train


@pytest.fixture(autouse=True)
def working_directory():
    with in_repository():
        yield


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """Return a folder of workdirs that share generated data."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def trained(place):
    """Train a tiny run to its end and return what it printed."""
    return train(place, "tiny", *TINY)


@pytest.fixture
def own(place, trained, tmp_path):
    """Return a copy of the tiny run that a test may change."""
    return Path(shutil.copytree(place / "tiny", tmp_path / "own"))


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
    """Replace decoding by its input, because compiling it takes long and is not tested here."""
    monkeypatch.setattr(Translator, "__call__", lambda _, __, texts, batch_size: [*texts])
    monkeypatch.setattr(Translation, "artifacts", lambda *_: None)
