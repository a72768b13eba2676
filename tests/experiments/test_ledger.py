"""--mode=ledger: one JSON file for runs that differ in their seed, and tables made from them."""

import json
import shutil
import statistics

import pytest
from ml_collections import ConfigDict

from experiments import ledger
from experiments.config import Config
from experiments.errors import UsageError
from experiments.records import Record, summary
from experiments.workdir import Workdir

TRAIN = {"steps": 100, "warmup_steps": 0}
CONFIG = {"train": TRAIN, "literature": {"test": {"tok_bleu": "41.02 (Wu et al. 2021)"}}}
START = {"command": "python run.py", "commit": "abc1234", "machine": "cpu, 2 cores"}
START["date"] = "2026-11-25"
PLACES = {"folder": "workdirs", "results": "results", "documents": ("page.md",), "configs": "none"}
EMPTY = "<!-- all results -->\n<!-- end of results -->\n"


def run(folder, name, seed, bleu, step=100, starts=(START,), config=CONFIG, ended=True):
    workdir = Workdir(folder / "workdirs" / name)
    workdir.save_config(Config.read({"task": "translation", **config, "seed": seed}))
    scores = {"test": {"tok_bleu": bleu, "accuracy": 0.5}, "longer": {"accuracy": 0.25}}
    results = {"step": step, "ended": ended, "training_seconds": 90.0, "parameters": 7}
    results["splits"] = scores
    workdir.results.write_text(json.dumps(results))
    for start in starts:
        workdir.add_start(start)
    return workdir


def change_results(workdir, change):
    results = workdir.load_results()
    change(results)
    workdir.results.write_text(json.dumps(results))


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """Return a function that writes the page of all results and returns its rows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "workdirs").mkdir()
    page = tmp_path / "page.md"
    page.write_text(EMPTY)

    def rows():
        ledger.ledger(ConfigDict(PLACES), None, None)
        lines = [line for line in page.read_text().splitlines() if line.startswith("| ")]
        names, _, *cells = [[cell.strip(" `") for cell in line[1:-1].split("|")] for line in lines]
        return [dict(zip(names, each, strict=True)) for each in cells]

    return rows


@pytest.mark.parametrize(
    "names, label",
    [
        (("runs/0", "runs/1"), "runs/0"),
        (("wide,seed=0", "wide,seed=1"), "wide"),
        (("runs/seed=0", "runs/seed=1"), "runs"),
    ],
)
def test_seeds_share_a_row(tmp_path, rows, names, label):
    for seed, bleu in enumerate((40.0, 42.0)):
        run(tmp_path, names[seed], seed, bleu)
    assert rows() == [
        {
            **{"run": label, "figure": "test tokenized BLEU", "result": "41.00 ± 1.41"},
            **{"for comparison": "41.02 (Wu et al. 2021)", "training": "1.5 min", "seeds": "0, 1"},
            **{"commit": "abc1234", "steps": "100", "date": "2026-11-25"},
            "machine": "cpu, 2 cores",
        }
    ]
    assert f"- {label}: `python run.py`" in (tmp_path / "page.md").read_text()
    record = json.loads((tmp_path / "results" / f"{label}.json").read_text())
    assert {name: record[name] for name in START} == START
    assert record["seeds"] == [0, 1]
    assert record["scores"]["test"]["tok_bleu"] == {
        "mean": 41.0,
        "std": statistics.stdev([40.0, 42.0]),  # n - 1
        "values": [40.0, 42.0],
    }


def test_the_page_is_made_from_json_alone(tmp_path, rows):
    for name, bleu in (("first", 30.0), ("second", 40.0)):
        run(tmp_path, name, 0, bleu, config={**CONFIG, "data": {"seed": int(bleu)}})
    (first, _), page = rows(), (tmp_path / "page.md").read_text()
    shutil.rmtree(tmp_path / "workdirs")
    with pytest.raises(UsageError, match="folder=workdirs does not exist: name a folder"):
        rows()
    (tmp_path / "page.md").write_text(EMPTY)
    ledger.ledger(ConfigDict(PLACES | {"folder": ""}), None, None)
    assert (tmp_path / "page.md").read_text() == page
    run(tmp_path, "second", 0, 41.0, config={**CONFIG, "data": {"seed": 40}})
    kept, renewed = rows()
    assert kept == first and renewed["result"] == "41.00"
    assert "- first: `python run.py`\n- second: `" in (tmp_path / "page.md").read_text()


def test_a_run_that_was_stopped_or_moved_is_marked(tmp_path, rows):
    moved = START, START, {**START, "commit": "def5678+", "machine": "gpu"}
    run(tmp_path, "cut", 3, 39.0, step=60, starts=moved, ended=False)
    (row,) = rows()
    assert row["steps"] == "**60 of 100**"
    assert row["commit"] == "abc1234; def5678+"
    assert row["machine"] == "cpu, 2 cores; gpu"


def test_runs_that_patience_ended_are_whole(tmp_path, rows):
    patient = {**CONFIG, "train": {**TRAIN, "patience": 2}}
    for seed, step in enumerate((60, 80)):
        run(tmp_path, f"runs/seed={seed}", seed, 40.0, step=step, config=patient)
    (row,) = rows()
    assert row["steps"] == "60, 80"
    run(tmp_path, "runs/seed=2", 2, 40.0, step=70, config=patient, ended=False)
    assert [(row["run"], row["steps"]) for row in rows()] == [
        ("runs", "60, 80"),
        ("runs/seed=2", "**70 of 100**"),
    ]


def test_seeds_with_other_intervals_share_a_row(tmp_path, rows):
    for seed, log_every in enumerate((10, 20)):
        config = {**CONFIG, "train": {**TRAIN, "log_every": log_every}}
        run(tmp_path, f"runs/seed={seed}", seed, 40.0, config=config)
    assert [(row["run"], row["seeds"]) for row in rows()] == [("runs", "0, 1")]


def test_runs_on_other_texts_share_no_row(tmp_path, rows):
    for seed, text in enumerate(("0123456789abcdef", "fedcba9876543210")):
        run(tmp_path, f"runs/seed={seed}", seed, 40.0).save_fingerprints({"train": text})
    assert [row["seeds"] for row in rows()] == ["0", "1"]


def test_a_copy_of_a_run_is_no_other_seed(tmp_path, rows, capsys):
    run(tmp_path, "one", 0, 40.0)
    shutil.copytree(tmp_path / "workdirs" / "one", tmp_path / "workdirs" / "two")
    (row,) = rows()
    assert (row["run"], row["result"], row["seeds"]) == ("one", "40.00", "0")
    assert "two is left out: one has the same seed" in capsys.readouterr().err


def test_other_decoding_and_unknown_origin(tmp_path, rows):
    greedy = {**CONFIG, "decoding": {"length_penalty": 1.0}}
    beams = run(tmp_path, "beams", 0, 40.0, starts=(), config=greedy)
    # The last field does not change the translations.
    used = {"num_beams": 5, "length_penalty": 1.0, "hypotheses": 7}
    change_results(beams, lambda results: results.update(decoding=used))
    (row,) = rows()
    assert row["figure"] == "test tokenized BLEU (decoding: num_beams=5)"
    assert row["commit"] == row["machine"] == row["date"] == "unknown"


def damage_table(run):
    (run.explanation / "test").mkdir(parents=True)
    (run.explanation / "test" / "senses.csv").write_bytes(b"vector,accuracy\n\xff,1\n")


def drop(name):
    return lambda results: results.pop(name)


@pytest.mark.parametrize(
    "damage, reason",
    [
        (lambda run: run.config.write_text("{}"), "config.json cannot be read"),
        (lambda run: run.results.write_text("{"), "results.json cannot be read"),
        (lambda run: run.starts.write_text("[7]\n"), "starts.jsonl, line 1 cannot be read"),
        (damage_table, "senses.csv cannot be read"),
        (lambda run: change_results(run, drop("ended")), "has results without the field 'ended'"),
        (lambda run: change_results(run, lambda r: r["splits"].pop("test")), "no scores of test"),
    ],
)
def test_an_unreadable_workdir_is_left_out(tmp_path, rows, capsys, damage, reason):
    run(tmp_path, "sound", 0, 40.0)
    damage(run(tmp_path, "old", 0, 40.0, config={**CONFIG, "data": {"seed": 7}}))
    assert [row["run"] for row in rows()] == ["sound"]
    error = capsys.readouterr().err
    assert error.startswith("old is left out: ") and reason in error
    assert error.count("\n") == 1


def test_a_seed_with_fewer_scores_is_left_out(tmp_path, rows, capsys):
    for seed in (0, 1):
        last = run(tmp_path, f"runs/{seed}", seed, 39.0, config={"train": TRAIN})
    change_results(last, lambda results: results["splits"].pop("longer"))
    assert [row["seeds"] for row in rows()] == ["0", "0"]
    assert "runs/1 is left out: it has no accuracy of longer" in capsys.readouterr().err


def test_without_published_figures_each_split_has_one(tmp_path, rows):
    run(tmp_path, "ours", 0, 39.0, config={"train": TRAIN})
    assert [list(row.values())[1:4] for row in rows()] == [
        ["test accuracy", "50.00%", ""],
        ["longer accuracy", "25.00%", ""],
    ]


def test_a_published_figure_of_another_score_is_left_out(tmp_path, rows):
    run(tmp_path, "other", 0, 39.0, config={**CONFIG, "literature": {"test": {"bleu": "60"}}})
    assert [list(row.values())[1:4] for row in rows()] == [["test accuracy", "50.00%", ""]]


@pytest.mark.parametrize(("text", "published"), [("abc", "41.02"), ("def", ""), (None, "")])
def test_a_published_figure_belongs_to_one_text(tmp_path, rows, text, published):
    literature = {"test": {"tok_bleu": "41.02", "text": "abc"}}
    workdir = run(tmp_path, "ours", 0, 39.0, config={**CONFIG, "literature": literature})
    if text:
        workdir.save_fingerprints({"train": "abc", "test": text})
    assert [list(row.values())[1:4] for row in rows()] == [
        ["test tokenized BLEU", "39.00", published]
    ]


def test_a_record_of_another_configuration_is_kept(tmp_path, rows, capsys):
    run(tmp_path, "one", 0, 40.0)
    before = rows()
    shutil.rmtree(tmp_path / "workdirs")
    run(tmp_path, "one", 0, 1.0, config={**CONFIG, "train": {**TRAIN, "steps": 20}}, step=20)
    assert rows() == before
    error = capsys.readouterr().err
    assert error.startswith("one is left out: ") and error.count("\n") == 1
    assert "one.json is of another configuration (train.steps: 100 there, 20 here)" in error


def test_a_record_of_more_seeds_is_kept(tmp_path, rows, capsys):
    for seed in (0, 1):
        run(tmp_path, f"runs/{seed}", seed, 40.0 + seed)
    before = rows()
    shutil.rmtree(tmp_path / "workdirs" / "runs" / "1")
    assert rows() == before
    assert "runs/0.json is of more seeds (0, 1)" in capsys.readouterr().err


def explained(folder, accuracy, step=100):
    folder.mkdir(parents=True)
    (folder / "senses.csv").write_text(f"vector,accuracy,by\nlayer 1; all,{accuracy},\n")
    made = {"command": "python run.py --mode=explain", "commit": "b", "machine": "m", "step": step}
    (folder / "origin.json").write_text(json.dumps(made))


def test_tables_of_explanations_have_a_record_for_all_seeds(tmp_path, rows):
    for seed, accuracy in ((0, 99.5), (1, 98.5)):
        explained(run(tmp_path, f"one/seed={seed}", seed, 40.0).explanation / "test", accuracy)
    assert [(row["run"], row["result"]) for row in rows()] == [
        ("one", "40.00 ± 0.00"),
        ("one/explain_test", "in results/one/explain_test.json"),
    ]
    record = Record.load(tmp_path / "results" / "one" / "explain_test.json")
    assert record.scores == {"senses: layer 1, all": {"accuracy, %": summary([99.5, 98.5])}}
    assert (record.seeds, record.published) == ([0, 1], {})
    command = "python run.py --mode=explain"
    assert (record.command, record.commit, record.steps) == (command, "b", [100, 100])


def test_explanations_of_runs_of_several_records_are_kept_apart(tmp_path, rows):
    for seed, step in ((0, 100), (1, 50)):  # the second run was cut
        workdir = run(tmp_path, f"one/seed={seed}", seed, 40.0, step=step, ended=seed == 0)
        explained(workdir.explanation / "test", 99.5, step)
    names = [row["run"] for row in rows()]
    assert names == ["one", "one/explain_test", "one/seed=1", "one/seed=1/explain_test"]


def test_an_explanation_of_an_earlier_step_is_left_out(tmp_path, rows, capsys):
    explained(run(tmp_path, "one", 0, 40.0).explanation / "test", 99.5, step=90)
    assert [row["run"] for row in rows()] == ["one"]
    sentence = "one/explain_test is left out: it is of step 90: explain the run again\n"
    assert capsys.readouterr().err == sentence


def test_no_run_and_no_record(rows):
    sentence = "results contains no record"
    with pytest.raises(UsageError, match=f"^{sentence}, and folder=workdirs contains no run that"):
        rows()
    with pytest.raises(UsageError, match=f"^{sentence}$"):
        ledger.ledger(ConfigDict(PLACES | {"folder": ""}), None, None)


def test_a_damaged_record_is_named(tmp_path, rows):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "run.json").write_text('{"run": 7}')
    with pytest.raises(UsageError, match=r"results/run\.json cannot be read: its run is 7"):
        rows()


def test_a_record_that_was_changed_is_named(tmp_path, rows):
    run(tmp_path, "one", 0, 40.0)
    rows()
    path = tmp_path / "results" / "one.json"
    path.write_text(path.read_text().replace("40.0", "41.0"))
    with pytest.raises(UsageError, match=r"results/one\.json was changed after it was written"):
        rows()
