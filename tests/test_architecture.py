"""Layers of imports, distance from `run.py` to the equation, cost of an import."""

import ast
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attention import scaled_dot_product

REPOSITORY = Path(__file__).resolve().parent.parent

# A file may import from earlier layers and from its own folder.
ORDER = [
    "attention.primitives",
    "attention.modules",
    "attention.decoding",
    "attention.weights",
    "attention",
    "attention.testing",
    "experiments",
    "run",
]
OURS = {"attention", "experiments", "configs", "run", "tests"}
LIBRARY_NEEDS = {"jax", "flax", "chex"}
# These may use NumPy, which jax needs in any case: to be independent of the code that they test, or
# to make arrays without compiling anything.
NUMPY = (
    "attention/testing",
    "attention/decoding/generate.py",
    "attention/decoding/program.py",
    "attention/decoding/text.py",
    "attention/primitives/arguments.py",
    "attention/primitives/dot_product_attention.py",
    "attention/primitives/masks.py",
)
# Modules that execute what they read.
EXECUTING = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
EXTRA = {"numpy", "safetensors", "tokenizers"}  # attention[weights]
KERNELS = {"tokamax", "absl"}  # attention[kernels]


def module_name(path: Path) -> str:
    """Return the dotted name: attention/primitives/masks.py is attention.primitives.masks."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_module(text: str) -> bool:
    """Return whether a text is the dotted name of a module below the packages of ours."""
    parts = re.fullmatch(r"(attention|experiments|configs)((\.[a-z_]+)+)", text)
    place = REPOSITORY / text.replace(".", "/")
    return bool(parts) and (place.with_suffix(".py").is_file() or (place / "__init__.py").is_file())


def imported_names(source: str, path: Path) -> Iterator[str]:
    """Yield the full dotted name of each module, or member of one, that a file imports.

    A string that is the name of a module of ours counts: `run.py` imports such a module late.
    """
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
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.partition(":")[0]  # "module:attribute" of a registry
            yield from [name] if path.parts[0] != "tests" and is_module(name) else []


def layer(name: str) -> str | None:
    """Return the layer of a dotted name, or None if it has no layer."""
    owners = [part for part in ORDER if name == part or name.startswith(part + ".")]
    return max(owners, key=len, default=None)


def wrong_imports(source: str, path: Path) -> list[str]:
    """List the imports of a file that its layer does not allow."""
    wrong = []
    here = layer(module_name(path))
    in_library, in_configs = path.parts[0] == "attention", path.parts[0] == "configs"
    for name in imported_names(source, path):
        top, there = name.split(".")[0], layer(name)
        backwards = here and there and ORDER.index(there) > ORDER.index(here)
        known = LIBRARY_NEEDS | {"attention"} | sys.stdlib_module_names
        known |= {"numpy"} if path.as_posix().startswith(NUMPY) else set()
        known |= EXTRA if path.as_posix().startswith("attention/weights") else set()
        known |= KERNELS if path.as_posix() == "attention/primitives/kernels.py" else set()
        foreign = in_library and top not in known
        framework = here == "attention.primitives" and top == "flax"
        is_config_type = f"{name}.".startswith("experiments.config.")
        not_data = in_configs and top in OURS - {"configs"} and not is_config_type
        upwards = in_library and top in OURS - {"attention"}
        in_tests = path.parts[0] != "tests" and top == "tests"
        if backwards or foreign or framework or not_data or upwards or in_tests:
            wrong.append(f"{path} imports {name}")
    return wrong


def files() -> list[Path]:
    """List the Python files of this repository, relative to its root."""
    folders = [REPOSITORY / name for name in sorted(OURS)]
    found = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    found += [path for path in [REPOSITORY / "run.py"] if path.exists()]
    return [path.relative_to(REPOSITORY) for path in found]


def imported_files(path: Path) -> Iterator[Path]:
    """Yield the files of this repository that a file imports."""
    for name in imported_names((REPOSITORY / path).read_text(), path):
        parts = name.split(".")
        for stem in (Path(*parts), Path(*parts[:-1])):  # a module, or a member of one
            for candidate in (stem.with_suffix(".py") if stem.name else stem, stem / "__init__.py"):
                if (REPOSITORY / candidate).is_file():
                    yield candidate


def shortest_path(start: Path, end: Path) -> list[Path]:
    """Return the shortest chain of imports between two files, both included, or no files."""
    paths, seen = [[start]], {start}
    while paths:
        path = paths.pop(0)
        if path[-1] == end:
            return path
        for following in imported_files(path[-1]):
            if following not in seen:
                seen.add(following)
                paths.append([*path, following])
    return []


@pytest.mark.parametrize("path", files(), ids=str)
def test_imports_run_one_way(path):
    assert wrong_imports((REPOSITORY / path).read_text(), path) == []


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
        ("attention/weights/new.py", "import torch"),
        ("attention/decoding/new.py", "from attention.weights import load"),
        ("attention/__init__.py", "from safetensors import safe_open"),
        ("attention/__init__.py", "import optax"),
        ("attention/decoding/new.py", "from configs import base"),
        ("experiments/ledger.py", "import run"),
        ("attention/modules/new.py", "late = 'experiments.ledger:ledger'"),
        ("experiments/ledger.py", "from tests.oracle import attention"),
        ("configs/new.py", "from experiments.optimizer import schedule"),
        ("configs/new.py", "import attention"),
    ],
)
def test_wrong_import_is_detected(path, source):
    assert len(wrong_imports(source, Path(path))) == 1


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
        ("attention/weights/new.py", "import safetensors\nfrom attention.modules import Layers"),
        ("attention/__init__.py", "from attention.decoding import beam"),
        ("experiments/ledger.py", "import numpy\nimport optax\nfrom attention import attend"),
        ("configs/new.py", "from configs import common\nfrom ml_collections import ConfigDict"),
        ("configs/new.py", "from experiments.config import Config"),
        ("run.py", "from experiments import ledger\nfrom absl import app"),
        ("run.py", "late = 'experiments.ledger:ledger'"),
        ("tests/test_new.py", "import run\nfrom experiments import ledger"),
    ],
)
def test_allowed_import_passes(path, source):
    assert wrong_imports(source, Path(path)) == []


def executing(source: str) -> list[str]:
    """Return what could execute code that a file contains: modules, and calls of builtins."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            found += [name for name in names if name.split(".")[0] in EXECUTING]
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("eval", "exec"):
            found.append(node.func.id)
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            found.append(node.arg)
    return found


def test_no_file_of_a_run_is_executed():
    found = {path: executing((REPOSITORY / path).read_text()) for path in files()}
    assert not [path for path, uses in found.items() if uses and path.parts[0] != "tests"]


@pytest.mark.parametrize(
    "source", ["import pickle", "from joblib import load", "eval(text)", "load(allow_pickle=True)"]
)
def test_execution_of_a_file_is_detected(source):
    assert len(executing(source)) == 1


@pytest.mark.parametrize(
    "path", [path for path in files() if path.parts[:2] == ("experiments", "training")], ids=str
)
def test_training_imports_no_task(path):
    """Tasks are passed to it; a registry names them, so it is not imported either."""
    source = (REPOSITORY / path).read_text()
    assert tasks_imported(source, path) == []


def tasks_imported(source: str, path: Path) -> list[str]:
    """List the imports of tasks, and of what imports them."""
    upper = ("experiments.tasks", "experiments.commands", "experiments.registry")
    return [name for name in imported_names(source, path) if name.startswith(upper)]


@pytest.mark.parametrize(
    "source",
    [
        "from experiments.tasks.translation import Translation",
        "def late():\n    import experiments.tasks.task",
        "from experiments import tasks",
        "from experiments.registry import TASKS",
    ],
)
def test_import_of_a_task_is_detected(source):
    assert len(tasks_imported(source, Path("experiments/new.py"))) == 1


def test_files_of_the_smoke_tests_exist():
    """`make` stops at a file that the target needs and that is missing."""
    subprocess.run(["make", "--dry-run", "smoke"], cwd=REPOSITORY, check=True)


def test_files_and_their_imports_are_found():
    assert Path("attention/primitives/attend.py") in files()
    assert Path("tests/test_architecture.py") in files()
    masks = Path("attention/primitives/masks.py")
    assert masks in set(imported_files(Path("attention/__init__.py")))
    assert shortest_path(masks, Path("attention/primitives/attend.py")) == []


def test_equation_is_at_most_five_imports_from_run():
    """And two from `attention/__init__.py`."""
    equation = Path(inspect.getsourcefile(scaled_dot_product)).relative_to(REPOSITORY)
    assert 1 <= len(shortest_path(Path("attention/__init__.py"), equation)) <= 2
    if (REPOSITORY / "run.py").exists():
        assert 1 <= len(shortest_path(Path("run.py"), equation)) <= 5


def test_equation_has_at_most_twenty_five_lines():
    assert len(inspect.getsource(scaled_dot_product).splitlines()) <= 25


IMPORT = """
import sys, time
import chex, flax.nnx, jax
start = time.process_time()
import attention
print(time.process_time() - start)
found = [name for name in sys.modules if name.startswith("jax")]
print([name for name in found if "pallas.triton" in name or "splash" in name])
try:
    jax.devices()
except RuntimeError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def imported() -> list[str]:
    """Return what a process prints that imports the library where no backend can start."""
    result = subprocess.run(
        [sys.executable, "-c", IMPORT],
        cwd=REPOSITORY,
        env=os.environ | {"JAX_PLATFORMS": "no_such_platform"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_import_starts_no_backend(imported):
    """No backend has this name, so starting one fails, as the last lines show."""
    assert "no_such_platform" in "".join(imported[2:])


def test_import_takes_little_time(imported):
    """Processor time without its dependencies, which a busy machine does not change."""
    assert float(imported[0]) < 0.5


def test_import_loads_no_kernels(imported):
    """Pallas kernels and splash attention are imported on first use."""
    assert imported[1] == "[]"


INTERNAL = re.compile(
    r"jax\._src|jax\.interpreters|jax\.extend\.core\.Primitive|import\b.*\bPrimitive\b|core\.Primitive\b"
)


def internal_uses(source: str) -> list[str]:
    """List the lines that use parts of JAX outside its public interface."""
    return [line.strip() for line in source.splitlines() if INTERNAL.search(line)]


@pytest.mark.parametrize(
    "path", [path for path in files() if path.parts[0] == "attention"], ids=str
)
def test_library_uses_public_jax_only(path):
    assert internal_uses((REPOSITORY / path).read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "from jax._src import core",
        "from jax.interpreters import mlir",
        "primitive = jax.extend.core.Primitive('attend')",
        "from jax.extend.core import Jaxpr, Primitive",
        "primitive = core.Primitive('attend')",
    ],
)
def test_internal_use_is_detected(line):
    assert internal_uses(f"import jax\n{line}\n") == [line]
