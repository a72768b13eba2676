"""--mode=benchmark of attention and of models, in their tiny forms, and the pages in docs."""

import json

import numpy as np
import pytest
from flax import nnx

import run
from configs.benchmark import get_config
from experiments.benchmarks import attention
from experiments.benchmarks.cases import Case
from experiments.benchmarks.contender import LIBRARY, Contender, Program
from experiments.benchmarks.report import as_json, attention_page, models_page
from experiments.config import Config, load_config
from experiments.data.tokenizers import EOS
from experiments.registry import TASKS
from tests.command_line.command import REPOSITORY, command, in_repository

CASE = Case("causal", 16, "float32", False, 1)


@pytest.fixture
def benchmark(tmp_path, capsys):
    """Return a function that runs a command: (exit status, standard output, standard error)."""

    def benchmark(*flags):
        return run.main(command(tmp_path, "run", "--mode=benchmark", *flags)), *capsys.readouterr()

    with in_repository():
        yield benchmark


def test_tiny_form_measures_and_reports(benchmark, tmp_path):
    names = ["attend:tiled", "attend:reference", "jax.nn"]
    flags = f"--config.page={tmp_path / 'page.md'}", f"--config.contenders={' '.join(names)}"
    status, output, _ = benchmark("--config=benchmark:tiny", *flags, "--config.seconds=0.02")
    text = (tmp_path / "run" / "benchmark.md").read_text()
    assert status == 0 and text in output and text == (tmp_path / "page.md").read_text()
    measured = json.loads((tmp_path / "page.json").read_text())["measurements"]
    for case in ("causal_64_float32_gradient", "packed_64_bfloat16_forward"):
        found = [one for one in measured if one["case"] == case]
        assert [one["contender"] for one in found] == names
        assert sum(one["chosen"] for one in found) == 1
        assert all(one["scratch"] > 0 < one["seconds"] and one["calls"] <= 2 for one in found)


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
    broken, large, able = attention.measure(CASE, contenders, get_config("tiny"))
    assert broken.reason == "TypeError: not today"
    assert large.reason == "needs 1.5 GiB of memory, more than is free"
    assert (able.reason, able.calls) == ("", 2)
    assert not [*attention.compare(CASE, contenders[:1])]
    assert capsys.readouterr().err.count("in crash") == 2
    with pytest.raises(TypeError, match="not today"):  # of this library
        [*attention.measure(CASE, [Contender("ours", LIBRARY, crash)], get_config("tiny"))]


@pytest.mark.parametrize(
    "flag, sentence",
    [
        ("contenders=torhc", "did you mean 'torch'?"),
        ("rounds=0", "rounds must be at least 1, got 0"),
        ("seconds=nan", "seconds must be finite and above 0, got nan"),
    ],
)
def test_usage_error(benchmark, tmp_path, flag, sentence):
    status, output, error = benchmark(f"--config.{flag}")
    assert (status, output) == (2, "") and not (tmp_path / "run").exists()
    assert sentence in error and error.count("\n") == 1


@pytest.mark.parametrize("name, page", [("BENCHMARKS", attention_page), ("MODELS", models_page)])
def test_page_of_the_documents_contains_the_figures_beside_it(name, page):
    record = json.loads((REPOSITORY / "docs" / f"{name}.json").read_text())
    assert page(record) == (REPOSITORY / "docs" / f"{name}.md").read_text()
    assert json.loads(as_json(record)) == record


def test_tiny_form_of_models_reports_what_is_absent(benchmark, tmp_path):
    status, output, _ = benchmark("--config=benchmark_models:tiny")
    record = json.loads((tmp_path / "run" / "models.json").read_text())
    assert record["absent"][0] == "translating: no run is named by --config.run=FOLDER"
    assert len(record["figures"]) == 1 or "training: torch is not installed" in record["absent"]
    assert status == 0 and (tmp_path / "run" / "models.md").read_text() in output


def test_ctranslate_finds_the_translations_of_greedy_search(tmp_path):
    """Of random parameters, which hardly ever produce the end."""
    pytest.importorskip("ctranslate2")
    from experiments.benchmarks.peers.ctranslate import CTranslator

    tree = load_config("toy_translation:tiny").to_dict()
    tree["model"] |= {"norm_placement": "post", "positions": "sinusoidal"}
    tree["decoding"] |= {"num_beams": 1}
    with in_repository():
        task = TASKS["translation"].prepare(Config.read(tree), tmp_path)
        parameters = task.learner.initial_state().parameters
        sources = [pair.source for pair in task.ids("test")][:8]
        ours = task.translate_ids(parameters, sources)
    peer = CTranslator(nnx.merge(task.learner.definition, parameters), task.config.model)
    theirs = peer.translate([[*ids, EOS] for ids in sources], task.config.decoding)
    assert np.mean([[*one] == [*other] for one, other in zip(ours, theirs, strict=True)]) > 0.8
