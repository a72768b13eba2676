"""The benchmark of attention from its command line, in its tiny form."""

import json
from pathlib import Path

import jax
import pytest

import run
from configs.benchmark import get_config
from experiments.benchmarks import attention
from experiments.benchmarks.cases import Case
from experiments.benchmarks.contender import LIBRARY, Contender, Program

REPOSITORY = Path(__file__).resolve().parents[3]
TINY = "--config=configs/benchmark.py:tiny"
CASE = Case("causal", 16, "float32", False, 1)


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run a command and return (exit status, standard output, standard error)."""
    monkeypatch.chdir(REPOSITORY)
    before = jax.config.jax_compilation_cache_dir

    def command(*arguments):
        folders = [f"--cache={before}/..", f"--workdir={tmp_path / 'run'}"]
        return run.main(["run.py", *folders, *arguments]), *capsys.readouterr()

    yield command
    jax.config.update("jax_compilation_cache_dir", before)


def test_tiny_form_measures_and_reports(command, tmp_path):
    names = "attend:reference attend:tiled jax.nn"
    flags = f"--config.page={tmp_path / 'page.md'}", f"--config.contenders={names}"
    status, output, _ = command("--mode=benchmark", TINY, *flags, "--config.seconds=0.02")
    assert status == 0
    text = (tmp_path / "run" / "benchmark.md").read_text()
    assert text in output and text == (tmp_path / "page.md").read_text()
    record = json.loads((tmp_path / "page.json").read_text())
    cases = {"causal_64_float32_gradient", "packed_64_bfloat16_forward"}
    assert {one["case"] for one in record["measurements"]} == cases
    for case in cases:
        found = {one["contender"]: one for one in record["measurements"] if one["case"] == case}
        assert sum(one["chosen"] for one in found.values()) == 1
        for name in names.split():
            assert found[name]["scratch"] > 0 and found[name]["seconds"] > 0
            assert 1 <= found[name]["calls"] <= 2


def crash(case, inputs):
    raise TypeError("not today\nmore")


def test_contenders_without_result_are_left_out_with_the_reason(capsys, monkeypatch):
    def large(case, inputs):
        return Program(lambda: pytest.fail("it must not run"), tuple, scratch=3 * 2**29)

    monkeypatch.setattr(attention, "free_memory", lambda: 2**30)
    contenders = [
        Contender("broken", "1", crash),
        Contender("large", "1", large),
        Contender("able", "1", lambda case, inputs: Program(lambda: (), tuple, scratch=2**30)),
    ]
    config = get_config("tiny")
    found = {one.contender: one for one in attention.measure(CASE, contenders, config)}
    assert found["broken"].reason == "TypeError: not today"
    assert found["large"].reason == "needs 1.5 GiB of memory, more than is free"
    assert (found["able"].reason, found["able"].calls) == ("", 2)
    assert not [*attention.compare(CASE, contenders[:1])]
    assert capsys.readouterr().err.count("in crash") == 2


def test_crash_of_this_library_is_an_error():
    ours = Contender("attend:tiled", LIBRARY, crash)
    with pytest.raises(TypeError, match="not today"):
        [*attention.measure(CASE, [ours], get_config("tiny"))]


@pytest.mark.parametrize(
    "argument, sentence",
    [
        ("--config.contenders=torhc", "did you mean 'torch'?"),
        ("--config.rounds=0", "rounds must be at least 1, got 0"),
        ("--config.seconds=nan", "seconds must be finite and above 0, got nan"),
    ],
)
def test_usage_error(command, tmp_path, argument, sentence):
    status, output, error = command("--mode=benchmark", argument)
    assert (status, output) == (2, "")
    assert sentence in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()
