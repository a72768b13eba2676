"""Origin of a result: command and commit."""

import pytest

from experiments.config.files import REPOSITORY
from experiments.origin import commit, without_place


@pytest.mark.parametrize(
    "argument, expected",
    [
        ("run.py", "run.py"),
        ("/place/run.py", "run.py"),
        ("--config=configs/copy.py", "--config=configs/copy.py"),
        (f"--config={REPOSITORY}/configs/copy.py", "--config=configs/copy.py"),
        ("--config=/place/copy.py:tiny", "--config=copy.py:tiny"),
        ("--workdir=workdirs/copy", "--workdir=workdirs/copy"),
        (f"--workdir={REPOSITORY}/workdirs/copy/seed=0", "--workdir=workdirs/copy/seed=0"),
        ("--workdir=/place/copy/seed=0", "--workdir=seed=0"),
        ("--config.data.path=texts", "--config.data.path=FOLDER"),
        ("--config.data.path=pyproject.toml", "--config.data.path=FILE"),
        ("--config.data.path=", "--config.data.path="),
        ("../texts", "FOLDER"),
        ("--weights=/place/weights", "--weights=FOLDER"),
        ("--config.model.attention=additive", "--config.model.attention=additive"),
    ],
)
def test_command_names_no_folder_of_the_machine(argument, expected, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    assert without_place(argument) == expected


def test_commit_is_unknown_without_git(tmp_path):
    assert commit(tmp_path / "nowhere") == "unknown"
