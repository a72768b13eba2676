"""The Python blocks of docs/extending.md are a plugin that trains and is evaluated."""

import io
import json
import re
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest

import run
from experiments import registry
from experiments.cli import parse
from experiments.config import load_config
from experiments.workdir import Workdir
from tests.command_line.command import in_repository
from tests.experiments.initial_states import drawn_initial_states
from tests.test_readme import FOUND

PAGE = Path(__file__).resolve().parent.parent / "docs" / "extending.md"
SHORT = """
    train.steps=4 train.warmup_steps=2 train.log_every=2 train.evaluate_every=4 train.loss=focal
    model.width=16 model.encoder_layers=1 model.mixer=previous_word data.train=500
"""


@pytest.fixture(autouse=True)
def own_registries():
    """Forget plugins, and what they register, before and after each test."""
    forget_plugins()
    registries = [each for each in vars(registry).values() if isinstance(each, registry.Registry)]
    with in_repository(), drawn_initial_states(), ExitStack() as stack:
        for each in registries:
            stack.enter_context(patch.dict(each))
        yield
    forget_plugins()


def forget_plugins():
    for name in [*sys.modules]:
        if name.endswith("mine.py") or name == "my_plugin":
            del sys.modules[name]


@pytest.fixture
def mine(tmp_path):
    """Return the path of the plugin of the page."""
    path = tmp_path / "mine.py"
    path.write_text("\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)))
    return path


def failure(capsys, *arguments):
    capsys.readouterr()
    assert run.main(["run.py", *map(str, arguments)]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    return sentence


def test_the_page_is_a_plugin_that_trains_and_is_evaluated(mine, tmp_path, capsys, monkeypatch):
    where = [f"--workdir={tmp_path / 'run'}", f"--cache={tmp_path / 'cache'}"]
    command = ["run.py", f"--plugin={mine}", *where]
    short = [f"--config.{field}" for field in SHORT.split()]
    assert run.main([*command, f"--config={mine}", *short]) == 0
    (scores,) = json.loads((tmp_path / "run" / "results.json").read_text())["splits"].values()
    assert 0 < scores["accuracy"] < 1
    assert "( )" in (tmp_path / "run" / "samples.txt").read_text()
    capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"( ( ) )\n")))
    assert run.main([*command, "--mode=predict", "--format=json"]) == 0
    assert {*json.loads(capsys.readouterr().out)["tags"]} <= {*"123456789"}
    (tmp_path / "run" / "results.json").unlink()
    assert run.main([*command, "--mode=evaluate"]) == 0
    assert scores in json.loads((tmp_path / "run" / "results.json").read_text())["splits"].values()
    monkeypatch.delitem(sys.modules, str(mine))
    for mode in ("train", "evaluate"):
        sentence = failure(capsys, *where, f"--mode={mode}")
        assert sentence.endswith(f"run was trained with a plugin: give --plugin={mine}")


def test_the_commands_of_the_page_parse(mine, monkeypatch):
    """The workdir of a command contains a run of the configuration of its name."""
    paths = {"mine": str(mine), "toy_translation": "toy_translation"}
    monkeypatch.setattr(Workdir, "load_config", lambda run: load_config(paths[run.path.stem]))
    for command in (each for each in FOUND if "mine.py" in each):
        parse(shlex.split(command.replace("mine.py", str(mine))))


@pytest.mark.parametrize("config", ["toy_translation", "packed_lm", "masked_lm", "word_vectors"])
def test_the_dataset_of_the_page_serves_each_task_that_reads_it(config, mine):
    named = ["run.py", f"--plugin={mine}", f"--config={config}", "--config.data.name=brackets"]
    data = parse([*named, "--config.data.longest=8"]).config.data
    assert (type(data).__name__, data.longest) == ("BracketsData", 8)


def test_a_plugin_may_be_a_module_and_its_errors_keep_their_traceback(
    tmp_path, monkeypatch, capsys
):
    for missing in ("no.such", "experiments.no_such", "no/such.py"):
        assert f"--plugin={missing} is not there" in failure(capsys, f"--plugin={missing}")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_plugin.py").write_text("from experiments.registry import TASKS\nTASKS('x')(1)")
    parse(["run.py", "--plugin=my_plugin"])
    parse(["run.py", "--plugin=my_plugin"])
    assert registry.TASKS["x"] == 1
    (tmp_path / "mine.py").write_text("import no_such_module")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        run.main(["run.py", f"--plugin={tmp_path / 'mine.py'}"])
