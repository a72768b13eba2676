"""The shape of the house: who imports whom, how far a reader walks, what an import costs."""

import ast
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attention import scaled_dot_product

REPOSITORY = Path(__file__).resolve().parent.parent

# Imports run one way: a file may import what stands before it, and its own folder.
ORDER = [
    "attention.primitives",
    "attention.modules",
    "attention.decoding",
    "attention",
    "attention.testing",
    "experiments",
    "run",
]
OURS = {"attention", "experiments", "configs", "run", "tests"}
LIBRARY_NEEDS = {"jax", "flax", "chex"}
JUDGE = "attention/testing"  # computes in NumPy, to be independent of what it judges


def module_name(path: Path) -> str:
    """attention/primitives/masks.py is attention.primitives.masks; a package is its folder."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(source: str, path: Path) -> Iterator[str]:
    """Every module, or member of one, that a file imports anywhere, with its full dotted name."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def layer(name: str) -> str | None:
    """The part of the house a dotted name lives in; None for what is not in the order."""
    owners = [part for part in ORDER if name == part or name.startswith(part + ".")]
    return max(owners, key=len, default=None)


def faults(source: str, path: Path) -> list[str]:
    """What a file imports and should not."""
    wrong = []
    here = layer(module_name(path))
    in_library, in_configs = path.parts[0] == "attention", path.parts[0] == "configs"
    for name in imported_names(source, path):
        top, there = name.split(".")[0], layer(name)
        backwards = here and there and ORDER.index(there) > ORDER.index(here)
        known = LIBRARY_NEEDS | {"attention"} | sys.stdlib_module_names
        known |= {"numpy"} if path.as_posix().startswith(JUDGE) else set()
        foreign = in_library and top not in known
        framework = here == "attention.primitives" and top == "flax"
        not_data = in_configs and top in OURS - {"configs"}
        upwards = in_library and top in OURS - {"attention"}
        in_tests = path.parts[0] != "tests" and top == "tests"
        if backwards or foreign or framework or not_data or upwards or in_tests:
            wrong.append(f"{path} imports {name}")
    return wrong


def files() -> list[Path]:
    """Every Python file of ours, relative to the repository."""
    folders = [REPOSITORY / name for name in sorted(OURS)]
    found = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    found += [path for path in [REPOSITORY / "run.py"] if path.exists()]
    return [path.relative_to(REPOSITORY) for path in found]


def neighbours(path: Path) -> Iterator[Path]:
    """The files of ours that a file imports."""
    for name in imported_names((REPOSITORY / path).read_text(), path):
        parts = name.split(".")
        for stem in (Path(*parts), Path(*parts[:-1])):  # a module, or a member of one
            for candidate in (stem.with_suffix(".py") if stem.name else stem, stem / "__init__.py"):
                if (REPOSITORY / candidate).is_file():
                    yield candidate


def shortest_walk(start: Path, end: Path) -> list[Path]:
    """The files a reader opens from one to the other, both included; empty if there is no way."""
    walks, seen = [[start]], {start}
    while walks:
        walk = walks.pop(0)
        if walk[-1] == end:
            return walk
        for following in neighbours(walk[-1]):
            if following not in seen:
                seen.add(following)
                walks.append([*walk, following])
    return []


@pytest.mark.parametrize("path", files(), ids=str)
def test_imports_run_one_way(path):
    assert faults((REPOSITORY / path).read_text(), path) == []


@pytest.mark.parametrize(
    "path, source",
    [
        ("attention/primitives/new.py", "from attention.modules import multi_head"),
        ("attention/primitives/new.py", "from attention import modules"),
        ("attention/primitives/new.py", "from ..decoding import beam"),
        ("attention/primitives/new.py", "from .. import attend"),
        ("attention/primitives/__init__.py", "from .. import modules"),
        ("attention/primitives/new.py", "from flax import nnx"),
        ("attention/primitives/new.py", "def late():\n    import flax.nnx"),
        ("attention/primitives/new.py", "import numpy as np"),
        ("attention/modules/new.py", "import attention.decoding.beam"),
        ("attention/modules/new.py", "from experiments import training"),
        ("attention/testing/new.py", "import experiments.data.toy as toy"),
        ("attention/testing/new.py", "from tests import oracle"),
        ("attention/testing/new.py", "import hypothesis"),
        ("attention/modules/new.py", "from attention.testing import check_attention"),
        ("attention/__init__.py", "import optax"),
        ("attention/decoding/new.py", "from configs import base"),
        ("experiments/translation.py", "import run"),
        ("experiments/translation.py", "from tests.oracle import attention"),
        ("configs/new.py", "from experiments.training import schedule"),
        ("configs/new.py", "import attention"),
    ],
)
def test_a_wrong_import_is_seen(path, source):
    assert len(faults(source, Path(path))) == 1


@pytest.mark.parametrize(
    "path, source",
    [
        ("attention/primitives/new.py", "import jax.numpy as jnp\nfrom dataclasses import field"),
        ("attention/primitives/new.py", "from attention.primitives import masks"),
        ("attention/primitives/new.py", "from . import masks\nfrom .masks import Mask"),
        (
            "attention/modules/new.py",
            "from flax import nnx\nfrom attention.primitives import masks",
        ),
        ("attention/decoding/new.py", "from attention.modules import multi_head\nimport chex"),
        ("attention/testing/new.py", "import numpy as np\nfrom attention import attend"),
        ("attention/__init__.py", "from attention.decoding import beam"),
        ("experiments/translation.py", "import numpy\nimport optax\nfrom attention import attend"),
        ("configs/new.py", "from configs import common\nfrom ml_collections import ConfigDict"),
        ("run.py", "from experiments import translation\nfrom absl import app"),
        ("tests/test_new.py", "import run\nfrom experiments import translation"),
    ],
)
def test_a_right_import_passes(path, source):
    assert faults(source, Path(path)) == []


def test_the_walk_over_the_files_finds_them():
    assert Path("attention/primitives/attend.py") in files()
    assert Path("tests/test_architecture.py") in files()
    masks = Path("attention/primitives/masks.py")
    assert masks in set(neighbours(Path("attention/__init__.py")))
    assert shortest_walk(masks, Path("attention/primitives/attend.py")) == []


def test_a_reader_meets_the_equation_within_five_files():
    """From the door, once there is one; from the front page of the library in any case."""
    equation = Path(inspect.getsourcefile(scaled_dot_product)).relative_to(REPOSITORY)
    assert 1 <= len(shortest_walk(Path("attention/__init__.py"), equation)) <= 2
    if (REPOSITORY / "run.py").exists():
        assert 1 <= len(shortest_walk(Path("run.py"), equation)) <= 5


def test_the_equation_fits_in_twenty_five_lines():
    assert len(inspect.getsource(scaled_dot_product).splitlines()) <= 25


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_importing_the_library_starts_no_backend():
    """No backend has this name: whoever needs one fails, as the second program shows."""
    nowhere = {"JAX_PLATFORMS": "no_such_platform"}
    imported = python("import attention", **nowhere)
    assert imported.returncode == 0, imported.stderr
    assert "no_such_platform" in python("import attention, jax; jax.devices()", **nowhere).stderr


def test_importing_the_library_does_no_work():
    """Processor time beyond its dependencies, so that a busy machine does not count."""
    code = (
        "import time, chex, flax.nnx, jax.numpy; start = time.process_time(); import attention; "
        "print(time.process_time() - start)"
    )
    result = python(code)
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) < 0.5
