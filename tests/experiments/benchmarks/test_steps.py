"""Profile of a step: shares of a trace by source file, and the page."""

import json

import jax.numpy as jnp
import pytest

from configs import benchmark_steps
from experiments.benchmarks.record import as_json
from experiments.benchmarks.steps import suite
from experiments.benchmarks.steps.programs import Recorder
from experiments.benchmarks.steps.shares import (
    GAPS,
    UNKNOWN,
    Event,
    Share,
    exclusive,
    profiled,
    shares,
    sources_of,
)
from experiments.config_files import REPOSITORY
from experiments.errors import UsageError
from experiments.workdir import Workdir

HERE = "tests/experiments/benchmarks/test_steps.py"


def test_trace_of_a_program_is_divided_by_source_file():
    recorder = Recorder()
    program = recorder(lambda x: jnp.sin(x @ x))
    x = jnp.ones((300, 300))
    found = profiled(lambda: program(x).block_until_ready(), lambda: recorder.texts)
    assert len(recorder.texts) == 1
    assert sum(share.products + share.other for share in found) == pytest.approx(1)
    here = {share.part: share for share in found}[HERE]
    assert here.products > 0 and here.other > 0


def test_a_linear_layer_belongs_to_its_caller():
    program = f"""HloModule jit_step

FileNames
1 "{REPOSITORY}/attention/modules/transformer.py"
2 "{REPOSITORY}/attention/modules/layers.py"
3 "{REPOSITORY}/.venv/lib/python3.11/site-packages/optax/update.py"

FileLocations
1 {{file_name_id=1 function_name_id=1 line=7}}
2 {{file_name_id=2 function_name_id=1 line=8}}
3 {{file_name_id=3 function_name_id=1 line=9}}

StackFrames
1 {{file_location_id=1 parent_frame_id=1}}
2 {{file_location_id=2 parent_frame_id=2}}
3 {{file_location_id=3 parent_frame_id=2}}
4 {{file_location_id=3 parent_frame_id=1}}

ENTRY %main {{
  %dot.1 = f32[2]{{0}} dot(%a, %b), metadata={{op_name="jit(step)/dot_general" stack_frame_id=2}}
  %fusion = f32[2]{{0}} fusion(%dot.1), metadata={{op_name="jit(step)/add" stack_frame_id=3}}
  ROOT %copy = f32[2]{{0}} copy(%fusion), metadata={{stack_frame_id=4}}
}}
"""
    block = "attention/modules/transformer.py"
    expected = {"dot.1": (block, True), "fusion": (block, False), "copy": (UNKNOWN, False)}
    assert sources_of(program) == expected


def test_time_of_inner_events_is_not_counted_twice():
    events = [Event("b", 2, 5), Event("loop", 0, 10), Event("a", 1, 6), Event("after", 10, 11)]
    assert dict(exclusive(events)) == {"loop": 5, "a": 2, "b": 3, "after": 1}


def test_shares_are_of_the_time_of_all_cores():
    sources = {"dot": ("a.py", True), "add": ("a.py", False)}
    found = shares({"dot": 3.0, "add": 1.0, "copy": 1.0}, sources, total=10.0)
    assert found == [
        Share(GAPS, 0.0, pytest.approx(0.5)),
        Share("a.py", 0.3, 0.1),
        Share(UNKNOWN, 0.0, 0.1),
    ]


def test_page_adds_up_small_shares():
    rows = [Share("a.py", 0.3, 0.2), Share(GAPS, 0.0, 0.492), Share("b.py", 0.0, 0.008)]
    record = {
        "origin": {"command": "python run.py", "commit": "abc1234", "cores": "2"},
        "parameters": 1234,
        "sentences": "5 tokens each",
        "training": [share._asdict() for share in rows],
        "beam_search": [],
    }
    page = suite.page(json.loads(as_json(record)))
    assert "`configs/multi30k.py`, 1,234 parameters" in page
    assert (
        f"| `a.py` | 30 % | 20 % |\n| {GAPS} | - | 49 % |\n| smaller shares | 0 % | 1 % |" in page
    )


@pytest.mark.parametrize(
    "field, value, sentence",
    [
        ("steps", 0, "steps must be at least 1, got 0"),
        ("translating.length", 200, "translating.length must lie in 1 to translation.model"),
        ("translation.data.path", "nowhere", "data.path=nowhere has no train.en and train.de"),
        ("translation.data.path", "", "translation.data.path names no folder"),
        ("page", "page.html", "page=page.html must end in .md"),
    ],
)
def test_usage_error(field, value, sentence, tmp_path):
    config = benchmark_steps.get_config("tiny")
    config.update_from_flattened_dict({field: value})
    with pytest.raises(UsageError, match=sentence):
        suite.benchmark(config, Workdir(tmp_path / "run"), tmp_path)
    assert not (tmp_path / "run").exists()
