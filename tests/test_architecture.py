"""Layers of imports, public jax alone, no code from files, and the cost of an import."""

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attention import scaled_dot_product
from experiments.cli import MODES as MODULES

REPOSITORY = Path(__file__).resolve().parent.parent
MODES = tuple(f"experiments.{mode}" for mode in MODULES)
PARTS = ("primitives", "modules", "decoding", "weights", "testing")  # each may import those before
# Folders, and what their files must not import.
FORBIDDEN = {
    "attention": ("experiments", "configs", "run", "tests"),
    "attention/primitives": ("flax",),
    "experiments": ("configs", "run", "tests"),
    "experiments/data": ("experiments.tasks", *MODES),
    "experiments/analysis": ("experiments.tasks", *MODES),
    "experiments/tasks": MODES,
    "configs": ("run", "tests", "experiments.tasks", *MODES),
}
for index, part in enumerate(PARTS):
    later = tuple(f"attention.{each}" for each in PARTS[index + 1 :])
    FORBIDDEN[f"attention/{part}"] = (*FORBIDDEN.get(f"attention/{part}", ()), *later)
# What the library may import of other packages, and what some of its files may import too.
OTHERS = {
    "attention/": {"attention", "jax", "flax", "chex", "numpy"},  # jax needs NumPy
    "attention/primitives/": set(),
    "attention/primitives/kernels.py": {"tokamax", "absl"},
    "attention/weights/": {"safetensors", "tokenizers"},
}
EXECUTING = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
INTERNAL = re.compile(r"jax\._src|jax\.interpreters|import\b.*\bPrimitive\b|core\.Primitive\b")
FILES = [
    path.relative_to(REPOSITORY).as_posix()
    for name in ("attention", "experiments", "configs")
    for path in sorted((REPOSITORY / name).rglob("*.py"))
]


@pytest.mark.parametrize("path", FILES)
def test_imports_run_one_way_and_no_file_is_executed(path):
    source, names = (REPOSITORY / path).read_text(), []
    nodes = [*ast.walk(ast.parse(re.sub(r"if TYPE_CHECKING:\n(    .*\n)+", "", source)))]
    for node in nodes:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names]
    wrong = [name for name in names if name.split(".")[0] in ("", *EXECUTING)]
    for folder, banned in FORBIDDEN.items():
        if path.startswith(f"{folder}/"):
            wrong += [x for x in names if any(f"{x}.".startswith(f"{each}.") for each in banned)]
    if path.startswith("attention/"):
        known = set.union(*(own for place, own in OTHERS.items() if path.startswith(place)))
        known |= sys.stdlib_module_names
        wrong += [name for name in names if name.split(".")[0] not in known | {""}]
        wrong += INTERNAL.findall(source)
    calls = [getattr(node.func, "id", "") for node in nodes if isinstance(node, ast.Call)]
    wrong += [name for name in calls if name in ("eval", "exec")]
    assert wrong + re.findall(r"allow_pickle=True", source) == []


def test_equation_has_at_most_twenty_five_lines():
    assert len(inspect.getsource(scaled_dot_product).splitlines()) <= 25


IMPORT = """
import sys, time
import chex, flax.nnx, jax
start = time.process_time()
import attention
print(time.process_time() - start)
print([name for name in sys.modules if "pallas.triton" in name or "splash" in name])
jax.devices()
"""


def test_import_is_fast_and_starts_no_backend():
    """No backend has this name, so starting one fails; kernels are imported on first use."""
    options = {"cwd": REPOSITORY, "capture_output": True, "text": True, "check": False}
    environment = os.environ | {"JAX_PLATFORMS": "no_such_platform"}
    ran = subprocess.run([sys.executable, "-c", IMPORT], env=environment, **options)
    seconds, kernels = ran.stdout.splitlines()
    assert float(seconds) < 0.5  # of the processor, without dependencies
    assert kernels == "[]"
    assert "no_such_platform" in ran.stderr
