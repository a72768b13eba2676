"""The report of a benchmark and its goals."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from experiments.benchmarks.steps import suite as steps

from configs import benchmark
from experiments.benchmarks import products
from experiments.benchmarks.cases import CASES, named
from experiments.benchmarks.goals import goals
from experiments.benchmarks.models import suite as models
from experiments.benchmarks.record import as_json
from experiments.benchmarks.report import page
from experiments.benchmarks.results import Deviation, Measurement, Results
from experiments.benchmarks.selection import selected

FULL = named("full", 4096)
PACKED = named("packed", 4096)
MEMORY = named("causal", 8192, gradient=True)
ORIGIN = {"command": "the command", "commit": "abc1234", "platform": "abacus", "cores": "2"}
DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = {"BENCHMARKS": page, "MODELS": models.page, "STEPS": steps.page}


def measured(case, contender, *times, chosen=False, scratch=None, reason=""):
    return Measurement(case, contender, f"{contender} 1", chosen, times, scratch, reason)


def results(ours=3.0):
    return Results(
        [
            measured(FULL, "attend:tiled", 9.0, ours - 1, ours, chosen=True, scratch=2**21),
            measured(FULL, "torch", 5.0, 10.0, 5.0),
            measured(FULL, "jax.nn", reason="not today"),
            measured(PACKED, "attend:tiled", 0.5, chosen=True),
            measured(MEMORY, "attend:tiled", 1.0, chosen=True, scratch=50 * 2**20),
        ],
        [
            Deviation(FULL, "attend:tiled", True, 1e-7, 6e-7),
            Deviation(FULL, "jax.nn", False, 2e-7, 4e-7),
        ],
    )


def record(found, **fields):
    record = {"origin": ORIGIN, "products": [], "absent": [], "failed": []}
    record |= {name: list(map(asdict, found)) for name, found in vars(found).items()}
    return json.loads(as_json(record | fields))


def judged(found):
    return {goal.name: goal.measure(found) for goal in goals()}


def test_goals_are_ratios_of_medians():
    found = judged(results())
    assert found["forward, full, T 4096 ÷ torch"] == pytest.approx(0.6)
    assert found["forward, eight packed segments of 512 ÷ one of 4096"] == pytest.approx(1 / 6)
    assert found["scratch memory in MiB, forward + backward, causal, T 8192"] == 50
    assert found["forward, causal, T 4096 ÷ torch"] is None
    errors = [value for name, value in found.items() if name.startswith("error of")]
    assert errors == pytest.approx([0.5, 1.5])


def test_ratio_to_the_faster_of_two_peers():
    case = named("causal", 64, gradient=True)
    found = Results(
        [
            measured(case, "attend:reference", 2.0, chosen=True),
            measured(case, "attend:tiled", 1.0),
            measured(case, "jax.nn", 4.0),
            measured(case, "torch", 1.0),
        ]
    )
    name = "forward + backward, causal, T 64 ÷ the better of jax.nn and torch"
    assert judged(found)[name] == 2.0
    assert judged(Results(found.measurements[:-1]))[name] is None


def test_default_run_measures_every_goal():
    config = benchmark.get_config()
    cases = [CASES[name] for name in selected("cases", config.cases, list(CASES))]
    everything = [
        measured(case, name, 1.0, chosen=name == "attend:tiled", scratch=1)
        for case in cases
        for name in ("attend:tiled", "jax.nn", "torch", "torch:flex_attention")
    ]
    accuracy = [CASES[name] for name in selected("accuracy", config.accuracy, list(CASES))]
    errors = [
        Deviation(case, name, name == "attend:tiled", 1.0, 1.0)
        for case in accuracy
        for name in ("attend:tiled", "jax.nn")
    ]
    assert None not in judged(Results(everything, errors)).values()


def test_page_compares_with_goals_and_lists_missing_results():
    speed = products.Product("2 x 2 x 2", "XLA", 0.125)._asdict()
    absent = [("tokamax", "not installed")]
    text = page(record(results(), products=[speed], absent=absent, failed=["`ours`: no"]))
    assert "```sh\nthe command\n```" in text
    assert "Measured at commit abc1234 on platform abacus; cores 2.\n" in text
    assert "## Failures of this library\n\n- `ours`: no\n" in text
    assert "| forward, full, T 4096 ÷ torch | 0.6 | 0.6 | yes |" in text
    assert (
        "gradient against float64 ÷ that of jax.nn, the largest ratio | 1 | 1.5 | **no** |" in text
    )
    assert "| forward, causal, T 4096 ÷ torch | 0.6 | - | - |" in text
    assert "| full_4096_float32_forward | 1 | tiled | 3000 | 2 |  | 0.6 |" in text
    assert "| full_4096_float32_forward | 1.00e-07 / 6.00e-07 | 2.00e-07 / 4.00e-07 |" in text
    assert "| 2 x 2 x 2 | 0.125 |" in text
    assert "- `tokamax`: not installed" in text
    assert "- `jax.nn`, full_4096_float32_forward: not today" in text
    slower = page(record(results(3.1)))
    assert "Failures" not in slower
    assert "| forward, full, T 4096 ÷ torch | 0.6 | 0.62 | **no** |" in slower


def test_results_are_read_from_their_record():
    assert Results.read(record(results())) == results()


def test_each_element_of_a_list_is_a_line_of_the_record():
    text = as_json({"origin": ORIGIN, "absent": [], "failed": [["a", 2**25], {"c": 2 / 3}]})
    assert text.count("\n") == 8
    assert json.loads(text)["failed"] == [["a", 2**25], {"c": 0.666667}]


def test_each_page_with_a_record_equals_it():
    for path in DOCS.glob("*.json"):
        made = PAGES[path.stem](json.loads(path.read_text()))
        assert made == path.with_suffix(".md").read_text(), path.stem


def test_products_are_timed_and_counted(monkeypatch):
    monkeypatch.setattr(products, "SHAPES", {"tiny": (2, 3, 5, 7)})
    monkeypatch.setattr(products, "seconds_of", lambda run: run() is None or 1e-6)
    found = list(products.products(with_torch=False))
    assert found == [products.Product("tiny", "XLA", pytest.approx(0.42))]
