"""Pages of benchmarks, made from the figures beside them."""

import json
from pathlib import Path

import pytest

from experiments.benchmarks.cases import CASES, select
from experiments.benchmarks.report import (
    Deviation,
    Measurement,
    as_json,
    attention_page,
    models_page,
)
from experiments.errors import UsageError

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.parametrize("name, page", [("BENCHMARKS", attention_page), ("MODELS", models_page)])
def test_a_page_of_the_documents_contains_the_figures_beside_it(name, page):
    record = json.loads((DOCS / f"{name}.json").read_text())
    assert page(record) == (DOCS / f"{name}.md").read_text()
    assert json.loads(as_json(record)) == record


def test_figures_of_attention():
    case = "full_4096_float32_forward"
    measurements = [
        Measurement(case, 1, "attend:tiled", True, 0.5, 3, 2**21),
        Measurement(case, 1, "torch", False, 0.25, 3),
        Measurement(case, 1, "jax.nn", False, reason="not today"),
    ]
    record = {
        "origin": {"command": "the command", "commit": "abc1234", "machine": "abacus"},
        "measurements": [one._asdict() for one in measurements],
        "deviations": [Deviation(case, "torch", 1e-7, 6e-7)._asdict()],
        "absent": [["tokamax", "not installed"]],
    }
    page = attention_page(json.loads(as_json(record)))
    assert "Measured at commit abc1234 on machine abacus." in page
    assert f"| {case} | 1 | tiled | 500 | 2 | 2 |" in page
    assert f"| {case} | 1.00e-07 / 6.00e-07 |" in page
    assert "- `tokamax`: not installed\n- `jax.nn`, full_4096_float32_forward: not today" in page


def test_names_and_patterns_select_cases():
    assert select("cases", "full_64_float32_forward", list(CASES)) == ["full_64_float32_forward"]
    assert len(select("cases", "causal_*, window_64_*", list(CASES))) == 44
    assert select("cases", "all", list(CASES)) == list(CASES)
    with pytest.raises(UsageError, match="cases has no 'casual_64_"):
        select("cases", "casual_64_float32_forward", list(CASES))
