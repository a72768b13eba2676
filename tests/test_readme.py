"""What the README says works: its Python runs, its commands are understood, its links lead on."""

import importlib
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments.flags import parse
from experiments.workdir import Workdir
from run import EXPERIMENTS, check, modes_of

REPOSITORY = Path(__file__).resolve().parent.parent
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture(autouse=True)
def as_a_user_has_it(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    with jax.numpy_dtype_promotion("standard"):
        yield


def test_python_runs_and_prints_what_it_says(capsys):
    names = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
        promised = re.findall(r"^# ([01](?: [01])*)$", block, re.MULTILINE)
        assert capsys.readouterr().out.split("\n")[:-1] == promised


def test_the_sketch_is_the_definition():
    """Where every query sees a key, the four lines of the README are what the library computes."""
    from attention import masks, scaled_dot_product

    names = {}
    exec(blocks("python")[0], names)
    query, key, value = jax.random.normal(jax.random.key(0), (3, 7, 5))
    causal = masks.causal()(np.arange(7)[:, None], np.arange(7)[None, :])
    sketch = names["attention"](query, key, value, causal)
    np.testing.assert_allclose(scaled_dot_product(query, key, value, causal)[0], sketch, rtol=2e-5)


COMMANDS = re.findall(r"python (run\.py[^#|\n]*)", "\n".join(blocks("sh")).replace("\\\n", ""))


def config_of_the_run(workdir):
    """What would stand in the folder of a run that has its default name."""
    return importlib.import_module(f"configs.{workdir.path.name}").get_config()


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command, monkeypatch):
    monkeypatch.setattr(Workdir, "load_config", config_of_the_run)
    asked = parse(command.split())
    assert asked.mode in modes_of(EXPERIMENTS[asked.config.experiment])
    check(asked)


def test_there_are_commands():
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#:]+)\)", README))
def test_links_lead_somewhere(target):
    assert (REPOSITORY / target).exists()


@pytest.mark.parametrize("target", ["train", "test"])
def test_the_two_commands_are_targets(target):
    assert f"make {target}" in README
    assert re.search(rf"^{target}:", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
