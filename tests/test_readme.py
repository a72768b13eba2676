"""README, docs and docstrings: programs run, commands parse, links and named functions exist."""

import doctest
import importlib
import re
import shlex
from contextlib import ExitStack, suppress
from unittest.mock import patch

import jax
import numpy as np
import pytest

from attention.modules import ACTIVATIONS, POSITIONS
from experiments.cli import parse
from experiments.config import REPOSITORY, load_config
from experiments.sharding import TABLE
from experiments.workdir import Workdir

PAGES = ["README.md", "CONTRIBUTING.md"]
PAGES += sorted(str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "docs").rglob("*.md"))
TEXTS = {page: (REPOSITORY / page).read_text(encoding="utf-8") for page in PAGES}


def blocks(language, page):
    return re.findall(rf"```{language}\n(.*?)```", TEXTS[page], re.DOTALL)


# tests/test_extending.py runs extending.md, the blocks of which are a plugin, and
# tests/test_tutorial.py the tutorial.
PROGRAMS = [
    page
    for page in PAGES
    if blocks("python", page) and not page.startswith(("docs/extending", "docs/tutorial"))
]
# The command of a measured page is that of the commit which it names.
OTHERS = {"docs/MODELS.md", "docs/BENCHMARKS.md"}
SHELL = [block for page in PAGES if page not in OTHERS for block in blocks("sh", page)]
FOUND = re.findall(r"python (run\.py[^#|\n]*)", "\n".join(SHELL).replace("\\\n", ""))
COMMANDS = {" ".join(command.split()): None for command in FOUND if "mine.py" not in command}


@pytest.fixture(autouse=True)
def session_of_a_user(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    with jax.numpy_dtype_promotion("standard"), ExitStack() as stack:
        for registry in (ACTIVATIONS, POSITIONS, TABLE):  # the snippets add names
            stack.enter_context(patch.dict(registry))
        yield


@pytest.mark.parametrize("page", PROGRAMS)
def test_python_blocks_run_and_print_their_comments(page, capsys):
    names = {}
    for block in blocks("python", page):
        exec(compile(block, page, "exec"), names)
        printed = re.findall(r"^print\(.*\n((?:# .*\n)+)", block, re.MULTILINE)
        expected = [line.removeprefix("# ") for lines in printed for line in lines.splitlines()]
        assert capsys.readouterr().out.splitlines() == expected


def test_sketch_equals_the_definition():
    """Where no row is fully masked, the four lines of the README are what the library computes."""
    from attention import masks, scaled_dot_product

    names = {}
    exec(blocks("python", "README.md")[0], names)
    query, key, value = jax.random.normal(jax.random.key(0), (3, 7, 5))
    causal = masks.causal()(np.arange(7)[:, None], np.arange(7)[None, :])
    sketch = names["attention"](query, key, value, causal)
    np.testing.assert_allclose(scaled_dot_product(query, key, value, causal)[0], sketch, rtol=2e-5)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_parses(command, monkeypatch):
    """The workdir of a command contains a run of the configuration of its name."""
    monkeypatch.setattr(Workdir, "load_config", lambda workdir: load_config(workdir.path.name))
    with suppress(SystemExit):  # after --help
        parse(shlex.split(command.replace("/mqa", "/toy_translation")))


@pytest.mark.parametrize("page", PAGES)
def test_links_exist(page):
    prose = re.sub(r"^```.*?^```", "", TEXTS[page], flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)#:]+)[^):]*\)", prose)
    folder = (REPOSITORY / page).parent
    assert [target for target in targets if not (folder / target).exists()] == []


def test_path_of_a_batch_names_files_and_functions():
    rows = re.findall(r"^\| \d+\..*\| `(.+)` \| `(.+)` \|$", TEXTS["docs/architecture.md"], re.M)
    assert len(rows) > 10
    for path, name in rows:
        text = (REPOSITORY / path).read_text(encoding="utf-8")
        assert re.search(rf"\b(def|class) {name}\b", text), (path, name)


EXAMPLES = [
    path.relative_to(REPOSITORY)
    for package in ("attention", "experiments")
    for path in sorted((REPOSITORY / package).rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("path", EXAMPLES, ids=str)
def test_examples_in_docstrings_return_what_they_show(path):
    module = importlib.import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
    with jax.numpy_rank_promotion("allow"):
        failed, attempted = doctest.testmod(module)
    assert attempted > 0 == failed
