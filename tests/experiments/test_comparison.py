"""Runs side by side: what is trained, what is written of it, and what does not compare."""

import csv

import pytest

from configs import defaults, reverse_rnn
from experiments import comparison
from experiments.cli import parse
from experiments.errors import UsageError
from experiments.inference.translator import Translator
from experiments.workdir import Workdir
from run import read_config

FILES = ("--config=configs/reverse.py:tiny", "--config=configs/reverse_rnn.py:tiny")


def asked(*arguments):
    return parse(["run.py", "--mode=compare", *FILES, *arguments])


def test_runs_stand_side_by_side(tmp_path, monkeypatch, capsys):
    """Of two recurrent models, which compile faster, and say what they read."""
    monkeypatch.setattr(Translator, "__call__", lambda _, __, texts, batch_size: [*texts])
    monkeypatch.setattr(comparison, "LENGTHS", (8,))
    runs = {cell: reverse_rnn.get_config("tiny") for cell in ("lstm", "gru")}
    for cell, each in runs.items():
        each.model.cell, each.train.steps = cell, 10
    place = tmp_path / "both"
    comparison.compare(defaults.comparison(runs), Workdir(place), tmp_path / "cache")
    written = {path.name for path in place.iterdir()}
    assert written == {
        *("comparison.csv", "comparison.md", "comparison.png", "config.json"),
        *("lstm", "gru"),
    }
    with (place / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["run"] for row in rows] == ["gru", "lstm"]  # by name
    chance = "test bleu p % against gru"
    wanted = {"parameters", "tokens/s", "test exact match", "test bleu", "ms at 8"}
    assert wanted <= rows[0].keys()
    assert rows[0][chance] == "" and 0 <= float(rows[1][chance]) <= 100
    table = (place / "comparison.md").read_text()
    assert table.count("\n") == 4
    assert table in capsys.readouterr().out


def test_a_run_that_diverges_is_left_out(tmp_path, monkeypatch, capsys):
    def diverge(config, workdir, cache):
        raise FloatingPointError("the loss became nan")

    monkeypatch.setattr(comparison, "train", diverge)
    with pytest.raises(UsageError, match=r"none of the runs in .* reached its end"):
        comparison.compare(asked().config, Workdir(tmp_path / "both"), tmp_path)
    assert "reverse_tiny is left out: the loss became nan" in capsys.readouterr().err


def test_durations_are_counted_before_any_training(tmp_path, monkeypatch):
    """And once more where the comparison goes on."""
    begun = []

    def diverge(config, workdir, cache):
        begun.append((config.train.steps, workdir.load_config().train.steps))
        raise FloatingPointError("the loss became nan")

    monkeypatch.setattr(comparison, "train", diverge)
    place = Workdir(tmp_path / "both")
    for _ in range(2):
        given = asked("--config.train.duration=30 epochs").config
        with pytest.raises(UsageError, match="none of the runs"):
            comparison.compare(given, place, tmp_path)
    (steps,) = {steps for pair in begun for steps in pair}
    assert len(begun) == 4 and steps % 30 == 0
    assert {run.train.steps for run in place.load_config().runs.values()} == {steps}
    with pytest.raises(UsageError, match=r"duration: '30 epochs' there, '9 steps' here"):
        comparison.compare(asked("--config.train.duration=9 steps").config, place, tmp_path)


def test_its_folder_is_named_after_the_runs():
    assert str(asked().workdir) == "workdirs/reverse_tiny+reverse_rnn_tiny"


@pytest.mark.parametrize("said", [("--config.seed=7",), ("--config.seed", "7")])
def test_an_override_of_a_file_of_runs_holds_for_each(said):
    file = "--config=configs/reverse_positions.py:tiny"
    one = "--config.runs.alibi.model.width=48"
    runs = parse(["run.py", "--mode=compare", file, *said, one]).config.runs
    assert {run.seed for run in runs.values()} == {7}
    assert {name for name, run in runs.items() if run.model.width == 48} == {"alibi"}


def test_a_field_that_no_run_has_is_named():
    file = "--config=configs/reverse_positions.py:tiny"
    with pytest.raises(UsageError, match=r"did you mean --config\.runs\.alibi\.model\.width"):
        parse(["run.py", "--mode=compare", file, "--config.model.widht=48"])


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (("--config=configs/reverse.py:tiny",), "needs configurations that differ"),
        (
            ("--config=configs/copy.py:tiny",),
            r"differ: a comparison is of the same data.*\n  data\.",
        ),
        (
            ("--config.decoding.num_beams=0",),
            "reverse_rnn_tiny: decoding.num_beams must be at least 1",
        ),
        (("--config=configs/digits.py:tiny",), "translation compares"),
    ],
)
def test_what_does_not_compare_is_refused(arguments, sentence, tmp_path):
    with pytest.raises(UsageError, match=sentence):
        command = asked(*arguments)
        comparison.compare(read_config(command.config), Workdir(tmp_path / "never"), tmp_path)
    assert not (tmp_path / "never").exists()
