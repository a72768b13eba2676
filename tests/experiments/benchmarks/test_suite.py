"""The benchmark as a person launches it, in its tiny form."""

import csv
from pathlib import Path

import jax
import pytest

import run
from configs import benchmark
from experiments.benchmarks import suite
from experiments.benchmarks.cases import Case
from experiments.benchmarks.contender import Contender, Program

REPOSITORY = Path(__file__).resolve().parents[3]
TINY = "--config=configs/benchmark.py:tiny"
CASE = Case("causal", 16, "float32", False, 1)


@pytest.fixture
def knock(tmp_path, monkeypatch, capsys):
    """Calls the door and returns (exit status, standard output, standard error)."""
    monkeypatch.chdir(REPOSITORY)
    before = jax.config.jax_compilation_cache_dir

    def knock(*arguments):
        places = [f"--cache={before}/..", f"--workdir={tmp_path / 'run'}"]
        return run.main(["run.py", *places, *arguments]), *capsys.readouterr()

    yield knock
    jax.config.update("jax_compilation_cache_dir", before)


def test_the_tiny_form_measures_and_reports(knock, tmp_path):
    status, output, _ = knock("--mode=benchmark", TINY, f"--config.page={tmp_path / 'page.md'}")
    assert status == 0
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "benchmark.csv",
        "benchmark.md",
        "benchmark.png",
        "config.json",
    }
    text = (tmp_path / "run" / "benchmark.md").read_text()
    assert text in output
    assert (tmp_path / "page.md").read_text() == text
    assert "| window_64_float32_gradient | " in text
    with (tmp_path / "run" / "benchmark.csv").open() as file:
        table = list(csv.DictReader(file))
    cases = {"causal_64_float32_gradient", "packed_64_bfloat16_forward"}
    assert {row["case"] for row in table} == cases
    for case in cases:
        found = {row["contender"]: row for row in table if row["case"] == case}
        assert sum(row["chosen"] == "1" for row in found.values()) == 1
        for name in ("attend:tiled", "attend:reference", "jax.nn"):
            assert float(found[name]["median_ms"]) > 0
            assert float(found[name]["scratch_mib"]) > 0
            assert 1 <= int(found[name]["rounds"]) <= 2
        if jax.default_backend() == "cpu":
            assert found["attend:pallas"]["not_measured"].endswith("the platform is cpu")


def config(**fields):
    found = benchmark.get_config("tiny")
    found.update(fields)
    return found


def test_who_fails_or_needs_too_much_memory_is_left_out_with_the_reason():
    def broken(case, inputs):
        raise NotImplementedError("not on Sundays\nTraceback")

    def hungry(case, inputs):
        return Program(lambda: pytest.fail("it must not run"), tuple, scratch=3 * 2**29)

    everybody = [
        Contender("broken", "1", broken),
        Contender("hungry", "1", hungry),
        Contender("able", "1", lambda case, inputs: Program(lambda: (), tuple, scratch=2**30)),
    ]
    found = {one.contender: one for one in suite.measure(CASE, everybody, config(memory_gib=1.0))}
    assert found["broken"].reason == "not on Sundays"
    assert found["hungry"].reason == "it needs 1.5 GiB of scratch memory and may take 1.0"
    assert (found["able"].reason, len(found["able"].times)) == ("", 2)
    assert list(suite.deviations(CASE, everybody[:1])) == []


def test_nobody_is_given_memory_that_is_not_there(monkeypatch):
    assert suite.free_memory() > 2**20
    monkeypatch.setattr(suite, "free_memory", lambda: 2**29)
    hungry = Contender("hungry", "1", lambda *_: Program(lambda: (), tuple, scratch=2**30))
    (found,) = suite.measure(CASE, [hungry], config(memory_gib=9.0))
    assert found.reason == "it needs 1.0 GiB of scratch memory and may take 0.5"


def test_the_whole_grid_is_one_word():
    assert len(suite._cases("all")) == 160


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--config=configs/benchmark.py"], "benchmark has no mode 'train', it has benchmark"),
        (
            ["--mode=benchmark", "--config=configs/toy_translation.py"],
            "translation has no mode 'benchmark', it has train, evaluate, translate",
        ),
        (["--mode=benchmark", "--config.cases=casual_64_*"], "cases has no 'casual_64_*'"),
        (["--mode", "benchmark", "--config.contenders=torhc"], "did you mean 'torch'?"),
        (["--mode=benchmark", "--config.accuracy=x"], "accuracy has no 'x'"),
        (["--mode=benchmark", "--config.rounds=0"], "rounds must be at least 1, got 0"),
        (["--mode=benchmark", "--config.seconds=nan"], "seconds must be a number above 0, got nan"),
        (["--mode=benchmark", "--config.memory_gib=0.0"], "memory_gib must be a number above 0"),
        (["--mode=benchmark", "--config.page=no/where.md"], "page=no/where.md has no folder"),
    ],
)
def test_a_mistake_is_one_sentence(knock, tmp_path, arguments, sentence):
    status, output, error = knock(*arguments)
    assert (status, output) == (2, "")
    assert sentence in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
