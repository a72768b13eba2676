"""Figures of trained models in README, docs and cards are those of `results/`."""

import json
import re

import pytest
from ml_collections import ConfigDict

from experiments.errors import UsageError
from experiments.ledger import ledger
from experiments.workdir import Workdir
from tests.command_line.command import REPOSITORY, write_measured
from tools.results import BLOCK, CARD, Tables, documents, make_records

MEASURED = {"BENCHMARKS.md", "CONFORMANCE.md", "MODELS.md"}  # not of trained models
SCORES = "BLEU|chrF|[Pp]erplexity|[Ee]xact match|[Aa]ccuracy|[Ll]oss"
CELL = r"(?<=\| )[+-]? ?\d+\.\d+(?: to \d+\.\d+)? (?=\|)"
FIGURE = re.compile(rf"\d\.\d+ ?%|\d ± \d|\b(?:{SCORES})(?: of| is)? \d|{CELL}")
PROGRAM = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def tables():
    return Tables(REPOSITORY / "results", REPOSITORY / "configs")


def test_documents_and_cards_contain_the_figures_of_the_records(tables):
    texts = {path: path.read_text() for path in documents(REPOSITORY)}
    old = [str(path) for path, text in texts.items() if tables.updated(path) != text]
    assert old == [], "make results"


def test_documents_have_no_figure_of_a_model_outside_of_tables_of_results(tables):
    files = [path for path in documents(REPOSITORY) if path.name not in MEASURED]
    files = [path for path in files if path.suffix == ".md" or path.stem in tables.configs]
    for path in files:
        prose = path.read_text()
        for pattern in (BLOCK, CARD, PROGRAM):
            prose = pattern.sub("", prose)
        assert FIGURE.findall(prose) == [], path


@pytest.fixture
def runs(tmp_path):
    """Return a folder with two seeds of a run and the files that a training leaves behind."""
    for seed, accuracy in enumerate((0.5, 0.7)):
        folder = tmp_path / "workdirs" / "copy" / f"seed={seed}"
        folder.mkdir(parents=True)
        scores = {"exact_match": accuracy, "loss": 1.0, "tokens": 9}
        write_measured(folder, scores, training_seconds=90.0 + seed)
        config = {"task": "translation", "seed": seed, "model": {"width": 48, "per_layer": []}}
        (folder / "config.json").write_text(json.dumps(config))
        start = {"command": "python run.py --config=copy", "commit": f"c{seed}", "machine": "cpu"}
        (folder / "starts.jsonl").write_text(json.dumps(start) + "\n")
    return tmp_path / "workdirs"


def test_seeds_have_one_record(runs, tmp_path):
    make_records(runs, tmp_path / "results")
    record = json.loads((tmp_path / "results" / "copy.json").read_text())
    assert record["scores"]["test"] == {"exact_match": [0.5, 0.7], "loss": [1.0, 1.0]}
    assert record["scores"]["validation"] == {"accuracy": [0.25, 0.25]}
    assert (record["config"], record["changed"]) == ("copy", {"model.width": 48})
    assert (record["seeds"], record["commit"], record["seconds"]) == ([0, 1], "c0; c1", [90, 91])
    tables = Tables(tmp_path / "results", REPOSITORY / "configs")
    assert tables.figure("copy", "test", "exact_match") == "60.00% ± 14.14%"
    with pytest.raises(UsageError, match="no figure 'test/exact'; did you mean 'test/exact_match'"):
        tables.figure("copy", "test", "exact")


def test_a_record_of_more_seeds_or_another_config_is_kept(runs, tmp_path):
    make_records(runs, tmp_path / "results")
    kept = (tmp_path / "results" / "copy.json").read_text()
    (runs / "copy" / "seed=1" / "results.json").unlink()
    with pytest.raises(UsageError, match="more seeds"):
        make_records(runs, tmp_path / "results")
    assert (tmp_path / "results" / "copy.json").read_text() == kept


def test_ledger_lists_runs_and_writes_nothing(runs, capsys):
    before = sorted(runs.rglob("*"))
    ledger(ConfigDict(), Workdir(runs), runs)
    row = "| copy | 0, 1 | 1.5 | test | loss 1.000 ± 0.000, exact match 60.00% ± 14.14% |"
    assert row in capsys.readouterr().out
    assert sorted(runs.rglob("*")) == before
    with pytest.raises(UsageError, match="no folder"):
        ledger(ConfigDict(), Workdir(runs / "nowhere"), runs)
