"""--mode=compare: what is trained and written, and runs that cannot be compared."""

import json

import pytest

from experiments.cli import parse
from experiments.commands import compare as comparison
from experiments.commands import sweep
from experiments.errors import UsageError
from experiments.registry import SOURCES, TASKS
from experiments.workdir import Workdir
from run import read_runs

FILES = ("--config=reverse:tiny", "--config=reverse_rnn:tiny")


def command(*arguments):
    return parse(["run.py", "--mode=compare", *FILES, *arguments])


def compare(place, *arguments):
    comparison.compare(read_runs(command(*arguments).runs), Workdir(place), place.parent)


def write_run(config, workdir, cache, wandb=None):
    """Write the files that a training leaves behind."""
    TASKS["translation"].prepare(config, cache).tokenizers.keep(workdir.path)
    splits = {"test": {"bleu": 50.0, "exact_match": 0.5, "nll": 1.0}}
    results = {"step": 20, "ended": True, "training_seconds": 1.5, "parameters": 1234}
    workdir.results.write_text(json.dumps({**results, "splits": splits}))
    rows = [{"step": step, "split": "train", "nll": 3 / step} for step in (10, 20)]
    (workdir.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split in SOURCES["reverse"].tests:
        workdir.keep_hypotheses(split, [("", "", f"{number} {number}") for number in range(20)])


def test_scores_chances_and_costs(tmp_path, monkeypatch, capsys):
    """Of recurrent models without attention, which compile faster."""
    monkeypatch.setattr(sweep, "train", write_run)
    monkeypatch.setattr(comparison, "LENGTHS", (8,))
    command = [
        "run.py",
        "--mode=compare",
        "--config=reverse_rnn:tiny",
        "--config.model.attention=none",
        "--grid.model.cell=lstm,gru",
    ]
    place = tmp_path / "both"
    comparison.compare(read_runs(parse(command).runs), Workdir(place), tmp_path / "cache")
    names = {f"comparison.{ending}" for ending in ("json", "md", "png")}
    assert {path.name for path in place.iterdir()} == {*names, "cell=lstm", "cell=gru"}
    written = json.loads((place / "comparison.json").read_text())
    assert [run["run"] for run in written["runs"]] == ["cell=lstm", "cell=gru"]
    assert written["p"]["test"] == {"cell=gru": 1.0}  # of equal translations
    assert all(run["8"] > 0 for run in written["seconds_by_length"].values())
    table = (place / "comparison.md").read_text()
    assert table in capsys.readouterr().out
    scores, note, costs = (part.splitlines() for part in table.strip().split("\n\n"))
    assert scores == [
        "| run | split | seeds | exact match | BLEU | p against cell=lstm |",
        "| --- | --- | --- | --- | --- | --- |",
        "| cell=lstm | test | 0 | 50.00% | 50.00 |  |",
        "| cell=gru | test | 0 | 50.00% | 50.00 | 1.000 |",
    ]
    assert note == ["p: paired bootstrap over sentences; it ignores the variance between seeds"]
    assert costs[0] == "| run | parameters | seconds of training | ms at 8 |"
    assert costs[2].startswith("| cell=lstm | 1,234 | 1.5 | ")


def test_translations_of_other_decoding_have_no_p(tmp_path, monkeypatch):
    def write_with_beam(config, workdir, cache, wandb=None):
        write_run(config, workdir, cache)
        if workdir.path.name == "reverse_rnn_tiny":
            found = {**workdir.load_results(), "decoding": {"num_beams": 5}}
            workdir.results.write_text(json.dumps(found))

    monkeypatch.setattr(sweep, "train", write_with_beam)
    monkeypatch.setattr(comparison, "seconds_by_length", lambda *_: {})
    monkeypatch.setattr(sweep, "draw_runs", lambda *_: None)
    compare(tmp_path / "both")
    table = (tmp_path / "both" / "comparison.md").read_text()
    assert "| reverse_rnn_tiny (decoding: num_beams=5) | test | 0 | 50.00% | 50.00 |\n" in table
    assert "p:" not in table
    assert json.loads((tmp_path / "both" / "comparison.json").read_text())["p"] == {}


def test_diverged_runs_are_left_out(tmp_path, monkeypatch, capsys):
    def diverge(config, workdir, cache, wandb=None):
        raise FloatingPointError("the loss became nan")

    monkeypatch.setattr(sweep, "train", diverge)
    with pytest.raises(UsageError, match=r"none of the runs in .* reached its end"):
        compare(tmp_path / "both")
    assert "reverse_tiny is left out: the loss became nan" in capsys.readouterr().err


def test_durations_are_counted_before_training(tmp_path, monkeypatch):
    steps = []

    def diverge(config, workdir, cache, wandb=None):
        steps.append((config.train.steps, workdir.load_config().train.steps))
        raise FloatingPointError("the loss became nan")

    monkeypatch.setattr(sweep, "train", diverge)
    for _ in range(2):
        with pytest.raises(UsageError, match="none of the runs"):
            compare(tmp_path / "both", "--config.train.duration=30 epochs")
    (count,) = {count for pair in steps for count in pair}
    assert len(steps) == 4 and count % 30 == 0
    with pytest.raises(UsageError, match="none of the runs"):
        compare(tmp_path / "both", "--config.train.duration=9 steps")
    assert steps[4:] == [(9, 9)] * 2  # without a checkpoint, a run may also be shortened


def test_workdir_is_named_after_the_runs():
    assert str(command().workdir) == "workdirs/reverse_tiny+reverse_rnn_tiny"


def test_a_field_may_vary():
    arguments = ["run.py", "--mode=compare", "--config=reverse:tiny"]
    runs = parse([*arguments, "--grid.model.positions=none,alibi", "--config.seed", "7"]).runs
    assert [*runs] == ["positions=none", "positions=alibi"]
    assert {run.seed for run in runs.values()} == {7}


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--config=reverse:tiny"], "needs configurations that differ, got reverse:tiny, rev"),
        (["--config=copy:tiny"], r"differ: a comparison is of the same data.*\n  data\."),
        (["--config.decoding.num_beams=0"], "reverse_tiny: decoding.num_beams must be at least 1"),
        (["--seeds=0,1"], "--seeds is for --mode=sweep alone, got --mode=compare"),
    ],
)
def test_runs_that_cannot_be_compared(arguments, sentence, tmp_path):
    with pytest.raises(UsageError, match=r"(?s)" + sentence):
        compare(tmp_path / "never", *arguments)
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--config=reverse"], "needs --config twice or --grid.FIELD=VALUE,VALUE"),
        (["--config=reverse", "--grid.model.widht=3"], r"did you mean --grid\.model\.width"),
        (["--workdir=nowhere"], "nowhere contains no runs: name a --config"),
    ],
)
def test_mistakes(arguments, sentence):
    with pytest.raises(UsageError, match=sentence):
        parse(["run.py", "--mode=compare", *arguments])
