"""`--help`, and names of configurations."""

from pathlib import Path

import pytest

import run
from experiments.cli import FLAGS, MODES, parse
from experiments.config import REPOSITORY, load_config
from experiments.errors import UsageError
from experiments.workdir import Workdir


def shown(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        run.main(["run.py", *arguments])
    assert exit_.value.code == 0
    output = capsys.readouterr().out
    return dict(line.split(maxsplit=1) for line in output.splitlines() if line.startswith("  "))


def test_help_lists_modes_configurations_and_flags(capsys):
    rows = shown(capsys, "-h")
    assert {*MODES, *(f"--{name}" for name in FLAGS)} <= {*rows}
    assert rows["char_lm"] == "Characters: a small GPT learns to write, letter by letter."
    assert not {"defaults", "forms", "__init__", "--config.model.width"} & {*rows}


def test_help_lists_the_fields_of_a_configuration(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    rows = shown(capsys, "--config=toy_translation:tiny", "--help")
    assert rows["--config.model.hidden"] == "48  F, hidden width of the feed-forward layer"
    assert rows["--config.batch.packed"].startswith("True  several pairs in a row")
    assert rows["--config.task"].startswith("'translation'")
    assert "--config.model.num_token_types" not in rows  # which no task reads


@pytest.mark.parametrize("folder", ["", "configs/", f"{REPOSITORY}/configs/"])
def test_a_configuration_has_a_name_and_a_path(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    file = f"{folder}toy_translation.py" if folder else "toy_translation"
    command = parse(["run.py", f"--config={file}:tiny"])
    assert command.config.model.width == 32
    assert command.workdir == Path("workdirs/toy_translation_tiny")


def test_tilde_is_the_home_folder_except_in_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    names = "workdir", "cache", "config.data.path", "config.train.start_from"
    command = parse(["run.py", "--config=multi30k:tiny", *(f"--{name}=~/x" for name in names)])
    config = command.config
    found = command.workdir, command.cache, config.data.path, config.train.start_from
    assert [*map(str, found)] == [f"{tmp_path}/x"] * 4
    Workdir(tmp_path / "run").save_config(config)
    given = "--sentence", "~/x", "--sentence", "-5 degrees"
    command = parse(["run.py", "--mode=explain", "--workdir=~/run", *given])
    assert command.options["sentence"] == ["~/x", "-5 degrees"]


def test_a_configuration_of_ones_own_may_build_on_ours_or_be_a_dictionary(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def load(name, returned):
        text = f"from configs import copy\n\ndef get_config():\n    return {returned}"
        Path(f"{name}.py").write_text(text)
        return load_config(f"{name}.py")

    assert load("built", "copy.get_config('tiny')") == load_config("copy:tiny")
    assert load("small", "{'task': 'translation'}").data.name == "toy"
    config = parse(["run.py", "--config=small.py", "--config.train.steps=7"]).config
    assert config.train.steps == 7
    with pytest.raises(UsageError, match="needs a function get_config that returns a ConfigDict"):
        load("mine", "[]")
