"""The benchmark from its command line, in its tiny form."""

import json
from pathlib import Path

import jax
import pytest

import run
from configs import benchmark
from experiments.benchmarks import suite
from experiments.benchmarks.cases import Case
from experiments.benchmarks.contender import LIBRARY, Contender, Program
from experiments.benchmarks.report import page
from experiments.benchmarks.results import Results

REPOSITORY = Path(__file__).resolve().parents[3]
TINY = "--config=configs/benchmark.py:tiny"
CASE = Case("causal", 16, "float32", False, 1)


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run a command and return (exit status, standard output, standard error)."""
    monkeypatch.chdir(REPOSITORY)
    before = jax.config.jax_compilation_cache_dir

    def command(*arguments):
        places = [f"--cache={before}/..", f"--workdir={tmp_path / 'run'}"]
        return run.main(["run.py", *places, *arguments]), *capsys.readouterr()

    yield command
    jax.config.update("jax_compilation_cache_dir", before)


def test_tiny_form_measures_and_reports(command, tmp_path):
    names = "attend:reference attend:tiled jax.nn"
    flags = f"--config.page={tmp_path / 'page.md'}", f"--config.contenders={names}"
    status, output, _ = command("--mode=benchmark", TINY, *flags, "--config.seconds=0.02")
    assert status == 0
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "benchmark.json",
        "benchmark.md",
        "benchmark.png",
        "config.json",
    }
    text = (tmp_path / "run" / "benchmark.md").read_text()
    assert text in output
    assert (tmp_path / "page.md").read_text() == text
    record = json.loads((tmp_path / "page.json").read_text())
    assert page(record) == text
    assert "| window_64_float32_gradient | " in text
    measurements = Results.read(record).measurements
    cases = {"causal_64_float32_gradient", "packed_64_bfloat16_forward"}
    assert {one.case.name for one in measurements} == cases
    for case in cases:
        found = {one.contender: one for one in measurements if one.case.name == case}
        assert sum(one.chosen for one in found.values()) == 1
        for name in names.split():
            assert found[name].scratch > 0
            assert 1 <= len(found[name].times) <= 2
            assert min(found[name].times) > 0


def config(**fields):
    found = benchmark.get_config("tiny")
    found.update(fields)
    return found


def crash(case, inputs):
    raise TypeError("not today\nmore")


def test_contenders_without_result_are_left_out_with_the_reason(capsys):
    def large(case, inputs):
        return Program(lambda: pytest.fail("it must not run"), tuple, scratch=3 * 2**29)

    contenders = [
        Contender("broken", "1", crash),
        Contender("large", "1", large),
        Contender("able", "1", lambda case, inputs: Program(lambda: (), tuple, scratch=2**30)),
    ]
    errors = []
    measured = suite.measure(CASE, contenders, config(memory_gib=1.0), errors)
    found = {one.contender: one for one in measured}
    assert found["broken"].reason == "TypeError: not today"
    assert found["large"].reason == "needs 1.5 GiB of scratch memory, and 1.0 are allowed"
    assert (found["able"].reason, len(found["able"].times)) == ("", 2)
    compared = list(suite.deviations(CASE, contenders[:1], errors))
    assert compared == [("broken", "error of causal_16_float32_gradient: TypeError: not today")]
    assert errors == []
    shown = capsys.readouterr().err
    assert shown.count("in crash") == 2 and f"`broken`, {CASE.name}" in shown


def test_crash_of_this_library_is_an_error_after_the_page(command, tmp_path, monkeypatch):
    ours = Contender("attend:tiled", LIBRARY, crash)
    monkeypatch.setattr(suite, "contenders", lambda: ({ours.name: ours}, []))
    arguments = ["--mode=benchmark", TINY, "--config.contenders=all"]
    with pytest.raises(ExceptionGroup) as raised:  # the interpreter then exits with status 1
        command(*arguments)
    assert len(raised.value.exceptions) == 3
    text = (tmp_path / "run" / "benchmark.md").read_text()
    failures, missing = text.split("## Goals")[0], text.split("## Not measured")[1]
    for case in ("causal_64_float32_gradient", "window_64_float32_gradient"):
        assert f"- `attend:tiled`, {case}: TypeError: not today\n" in failures
    assert "attend:tiled" not in missing


def test_contender_must_fit_free_memory(monkeypatch):
    assert suite.free_memory() > 2**20
    monkeypatch.setattr(suite, "free_memory", lambda: 2**29)
    large = Contender("large", "1", lambda *_: Program(lambda: (), tuple, scratch=2**30))
    (found,) = suite.measure(CASE, [large], config(memory_gib=9.0), [])
    assert found.reason == "needs 1.0 GiB of scratch memory, and 0.5 are allowed"


def test_all_means_every_case():
    assert len(suite._cases("all")) == 160


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--config=configs/benchmark.py"], "benchmark has no mode 'train', it has benchmark"),
        (
            ["--mode=benchmark", "--config=configs/toy_translation.py"],
            "translation has no mode 'benchmark', it has train, evaluate, predict, ",
        ),
        (["--mode=benchmark", "--config.cases=casual_64_*"], "cases has no 'casual_64_*'"),
        (["--mode", "benchmark", "--config.contenders=torhc"], "did you mean 'torch'?"),
        (["--mode=benchmark", "--config.accuracy=x"], "accuracy has no 'x'"),
        (["--mode=benchmark", "--config.rounds=0"], "rounds must be at least 1, got 0"),
        (["--mode=benchmark", "--config.seconds=nan"], "seconds must be a number above 0, got nan"),
        (["--mode=benchmark", "--config.memory_gib=0.0"], "memory_gib must be a number above 0"),
        (["--mode=benchmark", "--config.page=no/where.md"], "page=no/where.md has no folder"),
        (["--mode=benchmark", "--config.page=page.html"], "page=page.html must end in .md"),
    ],
)
def test_usage_error(command, tmp_path, arguments, sentence):
    status, output, error = command(*arguments)
    assert (status, output) == (2, "")
    assert sentence in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
