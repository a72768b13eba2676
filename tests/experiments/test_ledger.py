"""The ledger: a row for each figure, runs of several seeds together, and a cut run told as such."""

import json
import re
import shutil

import pytest
from ml_collections import ConfigDict

from experiments import ledger
from experiments.config import Config
from experiments.errors import UsageError
from experiments.origin import commit
from experiments.workdir import Workdir

TRAIN = {"steps": 100, "warmup_steps": 0}
CONFIG = {"train": TRAIN, "literature": {"test": {"tok_bleu": "41.02 (Wu et al. 2021)"}}}
START = {"command": "python run.py", "commit": "abc1234", "machine": "cpu, 2 cores"}


def run(folder, name, seed, bleu, step=100, starts=(START,), config=CONFIG, ended=True):
    workdir = Workdir(folder / name)
    workdir.claim(Config.read({"task": "translation", **config, "seed": seed}))
    scores = {"test": {"tok_bleu": bleu, "accuracy": 0.5}, "longer": {"accuracy": 0.25}}
    results = {"step": step, "ended": ended, "training_seconds": 90.0, "parameters": 7}
    results["splits"] = scores
    workdir.results.write_text(json.dumps(results))
    for start in starts:
        workdir.keep_start(start)


@pytest.fixture
def rows(tmp_path):
    def rows():
        settings = ConfigDict({"folder": str(tmp_path), "page": str(tmp_path / "page.md")})
        ledger.check(settings)
        ledger.ledger(settings, None, None)
        lines = (tmp_path / "page.md").read_text().splitlines()
        return [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][2:]

    return rows


def test_seeds_share_a_row(tmp_path, rows):
    for seed, bleu in enumerate((40.0, 42.0)):
        run(tmp_path, f"runs/{seed}", seed, bleu)
    published = "41.02 (Wu et al. 2021)"
    assert rows() == [
        [
            *("runs/0", "test tokenized BLEU", "41.00 ± 1.00", published),
            *("0, 1", "100", "1.5 min", "abc1234", "cpu, 2 cores"),
        ]
    ]
    assert "- runs/0: `python run.py`" in (tmp_path / "page.md").read_text()


def test_a_run_that_is_elsewhere_stays_as_it_was_told(tmp_path, rows):
    for name, bleu in (("first", 30.0), ("second", 40.0)):
        run(tmp_path, name, 0, bleu, config={**CONFIG, "data": {"seed": int(bleu)}})
    (first, _), page = rows(), (tmp_path / "page.md").read_text()
    assert rows() and (tmp_path / "page.md").read_text() == page
    shutil.rmtree(tmp_path / "first")
    shutil.rmtree(tmp_path / "second")
    run(tmp_path, "second", 0, 41.0)
    kept, renewed = rows()
    assert kept == first and renewed[2] == "41.00"
    assert "- first: `python run.py`\n- second: `" in (tmp_path / "page.md").read_text()


def test_a_cut_run_and_one_that_moved_say_so(tmp_path, rows):
    moved = START, START, {**START, "commit": "def5678+", "machine": "gpu"}
    run(tmp_path, "cut", 3, 39.0, step=60, starts=moved, ended=False)
    ((*_, steps, _, commits, machines),) = rows()
    assert steps == "**60 of 100**"
    assert (commits, machines) == ("abc1234; def5678+", "cpu, 2 cores; gpu")


def test_patience_ends_where_it_ends(tmp_path, rows):
    patient = {**CONFIG, "train": {**TRAIN, "patience": 2}}
    for seed, step in enumerate((60, 80)):
        run(tmp_path, f"runs/{seed}", seed, 40.0, step=step, config=patient)
    ((*_, steps, _, _, _),) = rows()
    assert steps == "60, 80"
    run(tmp_path, "cut", 2, 40.0, step=70, config=patient, ended=False)
    assert [row[5] for row in rows()] == ["**70 of 100**", "60, 80"]


def test_a_copy_of_a_run_is_not_another_seed(tmp_path, rows, capsys):
    run(tmp_path, "one", 0, 40.0)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    ((name, _, ours, _, seeds, *_),) = rows()
    assert (name, ours, seeds) == ("one", "40.00", "0")
    assert "two is left out: one has the same seed" in capsys.readouterr().err


def test_a_run_that_does_not_say_whether_it_ended_is_named(tmp_path, rows):
    run(tmp_path, "old", 0, 40.0)
    results = json.loads((tmp_path / "old" / "results.json").read_text())
    del results["ended"]
    (tmp_path / "old" / "results.json").write_text(json.dumps(results))
    with pytest.raises(UsageError, match="old does not say whether its training ended"):
        rows()


def test_another_decoding_and_a_run_of_unknown_origin_say_so(tmp_path, rows):
    greedy = {**CONFIG, "decoding": {"length_penalty": 1.0}}
    run(tmp_path, "beams", 0, 40.0, starts=(), config=greedy)
    results = json.loads((tmp_path / "beams" / "results.json").read_text())
    # The last one does not change the translations.
    results["decoding"] = {"num_beams": 5, "length_penalty": 1.0, "hypotheses": 7}
    (tmp_path / "beams" / "results.json").write_text(json.dumps(results))
    ((_, figure, *_, commit, machine),) = rows()
    assert figure == "test tokenized BLEU (decoding: num_beams=5)"
    assert commit == machine == "unknown"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", "{}"),
        ("config.json", "[1]"),
        ("config.json", '{"task": "translation", "a.b": 1}'),
        ("results.json", "{"),
        ("results.json", '{"step": "x"}'),
        ("starts.jsonl", "{}\n"),
        ("starts.jsonl", "[7]\n"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, rows, name, text):
    run(tmp_path, "broken", 0, 40.0)
    (tmp_path / "broken" / name).write_text(text)
    with pytest.raises(UsageError, match=f"broken/{re.escape(name)}.* cannot be read"):
        rows()


def test_what_nobody_published_has_the_first_score_of_each_split(tmp_path, rows):
    run(tmp_path, "ours", 0, 39.0, config={"train": TRAIN})
    assert [row[1:4] for row in rows()] == [
        ["test accuracy", "50.00%", ""],
        ["longer accuracy", "25.00%", ""],
    ]


def test_a_published_figure_of_other_text_stands_beside_nothing(tmp_path, rows):
    run(tmp_path, "other", 0, 39.0, config={**CONFIG, "literature": {"test": {"bleu": "60"}}})
    assert [row[1:4] for row in rows()] == [["test accuracy", "50.00%", ""]]


@pytest.mark.parametrize(("text", "told"), [("abc", "41.02"), ("def", ""), (None, "")])
def test_a_figure_of_a_text_stands_beside_that_text_alone(tmp_path, rows, text, told):
    literature = {"test": {"tok_bleu": "41.02", "text": "abc"}}
    run(tmp_path, "ours", 0, 39.0, config={**CONFIG, "literature": literature})
    if text:
        Workdir(tmp_path / "ours").keep_texts({"train": "abc", "test": text})
    assert [row[1:4] for row in rows()] == [["test tokenized BLEU", "39.00", told]]


def test_a_split_that_was_not_measured_is_named(tmp_path, rows):
    run(tmp_path, "other", 0, 39.0, config={**CONFIG, "literature": {"dev": {"tok_bleu": "60"}}})
    with pytest.raises(UsageError, match="other has no tok_bleu of dev in its results"):
        rows()


def test_a_seed_that_was_measured_on_less_is_refused(tmp_path, rows):
    for seed in (0, 1):
        run(tmp_path, f"runs/{seed}", seed, 39.0, config={"train": TRAIN})
    less = Workdir(tmp_path / "runs" / "1")
    results = less.load_results()
    del results["splits"]["longer"]
    less.results.write_text(json.dumps(results))
    with pytest.raises(UsageError, match="runs/1 has no accuracy of longer in its results"):
        rows()


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"folder": "nowhere", "page": "page.md"}, "folder=nowhere holds no run that was measured"),
        ({"folder": ".", "page": "."}, "page=. is no file in a folder that is there"),
        ({"folder": ".", "page": "nowhere/page.md"}, "page=nowhere/page.md is no file in a folder"),
    ],
)
def test_mistakes(tmp_path, monkeypatch, settings, sentence):
    run(tmp_path, "run", 0, 39.0)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=sentence):
        ledger.check(ConfigDict(settings))
        ledger.ledger(ConfigDict(settings), None, None)


def test_without_git_nobody_knows_the_commit(tmp_path):
    assert commit(tmp_path / "nowhere") == "unknown"
