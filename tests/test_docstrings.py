"""Examples in docstrings run and return what they show."""

import doctest
import importlib
from pathlib import Path

import jax
import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
EXAMPLES = [
    path.relative_to(REPOSITORY)
    for package in ("attention", "experiments")
    for path in sorted((REPOSITORY / package).rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("path", EXAMPLES, ids=str)
def test_examples_return_what_they_show(path):
    module = importlib.import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        failed, attempted = doctest.testmod(module)
    assert attempted > 0 == failed
