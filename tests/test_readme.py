"""README and guides in docs: Python blocks run, commands are understood, links exist."""

import importlib
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from attention.modules import ACTIVATIONS, POSITIONS
from experiments.cli import parse
from experiments.workdir import Workdir
from run import check, check_mode

REPOSITORY = Path(__file__).resolve().parent.parent
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def blocks(language, text=README):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture(autouse=True)
def as_a_user_has_it(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    registries = ACTIVATIONS, POSITIONS  # to which snippets add names
    before = [{**registry} for registry in registries]
    with jax.numpy_dtype_promotion("standard"):
        yield
    for registry, names in zip(registries, before, strict=True):
        registry.clear()
        registry.update(names)


@pytest.mark.parametrize("document", ["README.md", "docs/architectures.md", "docs/modules.md"])
def test_python_runs_and_prints_its_comments(document, capsys):
    names, text = {}, (REPOSITORY / document).read_text(encoding="utf-8")
    for block in blocks("python", text):
        exec(compile(block, document, "exec"), names)
        printed = re.findall(r"^print\(.*\n((?:# .*\n)+)", block, re.MULTILINE)
        expected = [line.removeprefix("# ") for lines in printed for line in lines.splitlines()]
        assert capsys.readouterr().out.splitlines() == expected


def test_architectures_are_described_by_two_snippets():
    text = (REPOSITORY / "docs/architectures.md").read_text(encoding="utf-8")
    assert len(blocks("python", text)) == 2
    assert len(text.splitlines()) <= 80


def test_modules_are_shown_in_few_lines():
    text = (REPOSITORY / "docs/modules.md").read_text(encoding="utf-8")
    assert len(blocks("python", text)) == 6
    assert len(text.splitlines()) < 150


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
    if "--help" in command:
        with pytest.raises(SystemExit):
            parse(command.split())
        return
    asked = parse(command.split())
    check_mode(asked)
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
