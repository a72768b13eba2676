"""--mode=train: a run, resumption, and workdirs that are refused."""

import json
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments.checkpoint import digests, saved_steps
from experiments.data.pipeline import ShuffledBatches
from experiments.files import read_json_lines
from experiments.metrics import read_metrics
from experiments.registry import TASKS
from experiments.tasks.translation import Translation
from experiments.trained import restore
from experiments.warm_start import parameters_to_start_from
from experiments.workdir import Workdir
from tests.command_line.command import TINY, config_of, train

pytestmark = pytest.mark.usefixtures("trained")

# With a schedule that does not depend on the number of steps, an extended run compiles nothing.
TINY = (*TINY, "--config.train.schedule=inverse_sqrt")


@pytest.fixture(scope="module")
def trained(place, compile_once):
    """Train a tiny run to its end and return what it printed."""
    return train(place, "tiny", *TINY)


@pytest.fixture
def own(place, tmp_path):
    """Return a copy of the tiny run that a test may change."""
    return Path(shutil.copytree(place / "tiny", tmp_path / "own"))


def restored(workdir, config):
    return restore(workdir, TASKS["translation"].load(config, workdir, workdir.path)).state


def final_state(place, workdir):
    workdir = Workdir(place / workdir)
    return restored(workdir, config_of(workdir.path))


def measured(place, workdir):
    """Return the bytes of the metrics of a run."""
    return (place / workdir / "metrics.jsonl").read_bytes()


def test_workdir_contains_everything(place, trained):
    for split in ("test", "compositional", "longer"):
        assert split in trained
    names = {path.name for path in (place / "tiny").iterdir()}
    assert names == {
        "attention.png",
        "checkpoints",
        "config.json",
        *(f"hypotheses.{split}.jsonl" for split in ("test", "compositional", "longer")),
        "learning_curve.png",
        "metrics.jsonl",
        "results.json",
        "samples.txt",
        "starts.jsonl",
        "tensorboard",
        "texts.json",
        "timing.jsonl",
        "vocabulary.source.txt",
        "vocabulary.target.txt",
    }
    results = json.loads((place / "tiny" / "results.json").read_text())
    assert results["step"] == 20
    assert {"agreement", "order", "polysemy"} <= results["splits"].keys()
    for split in ("test", "compositional", "longer"):
        scores = results["splits"][split]
        assert {"exact_match", "accuracy", "bleu", "bleu_signature", "nll"} <= scores.keys()
        hypotheses = (place / "tiny" / f"hypotheses.{split}.jsonl").read_text().splitlines()
        assert len(hypotheses) == scores["sentences"] == 20
    assert (place / "tiny" / "samples.txt").read_text().count("step ") == 2
    rows = read_metrics(place / "tiny")
    assert [row["step"] for row in rows if row["split"] == "validation"] == [4, 8, 12, 16, 20]
    trained = [row for row in rows if row["split"] == "train"]
    assert trained[-1]["nll"] < trained[0]["nll"]
    assert (
        trained[0]["learning_rate"] > trained[-1]["learning_rate"] > 0 < trained[0]["gradient_norm"]
    )
    timing = read_json_lines(place / "tiny" / "timing.jsonl", {"step": int})
    assert [row["step"] for row in timing] == [4, 8, 10, 12, 16, 20]


def test_finished_run_is_evaluated_and_not_trained(place, run_command):
    before = (place / "tiny" / "metrics.jsonl").read_text()
    status, output, _ = run_command(*TINY)
    assert (status, "exact match" in output) == (0, True)
    assert (place / "tiny" / "metrics.jsonl").read_text() == before


@pytest.mark.usefixtures("echoing")
def test_stopped_run_continues_to_the_bit(place, run_command, monkeypatch):
    """A signal in step 15, and one in the evaluation of step 16."""
    with monkeypatch.context() as patch:
        _signal_in(patch, ShuffledBatches, "rows", lambda _, step: step == 14)
        status, _, error = run_command(*TINY, workdir="stopped")
        assert (status, error.splitlines()[-1]) == (
            0,
            "run.py: stopped at step 15 of 20: the same command continues",
        )
        assert error.count("a second signal ends the process at once\n") == 1
    with monkeypatch.context() as patch:
        _signal_in(patch, Translation, "validate", lambda _, state: state.step == 16)
        status, _, error = run_command(*TINY, workdir="stopped")
        assert (status, "stopped at step 16 of 20" in error) == (0, True)
    assert {path.name for path in (place / "stopped" / "checkpoints").iterdir()} == {
        "10",
        "15",
        "16",
    }
    assert run_command(*TINY, workdir="stopped")[0] == 0
    assert digests(final_state(place, "stopped")) == digests(final_state(place, "tiny"))
    assert measured(place, "stopped") == measured(place, "tiny")


def _signal_in(patch, owner, name, is_time):
    """Send SIGTERM to this process in a call of a method."""
    original = getattr(owner, name)

    def method(*arguments):
        if is_time(*arguments):
            signal.raise_signal(signal.SIGTERM)
        return original(*arguments)

    patch.setattr(owner, name, method)


@pytest.mark.usefixtures("echoing")
def test_the_workdir_alone_continues_a_run(own, place, run_command):
    shutil.rmtree(own / "checkpoints" / "20")
    assert run_command(workdir=own)[0] == 0
    assert saved_steps(own / "checkpoints")[-1] == 20
    assert measured(place, own) == measured(place, "tiny")


@pytest.mark.usefixtures("echoing")
def test_finished_run_is_extended(own, place, run_command):
    assert run_command("--config.train.steps=25", workdir=own)[0] == 0
    assert saved_steps(own / "checkpoints")[-1] == 25
    assert json.loads((own / "config.json").read_text())["train"]["steps"] == 25
    assert json.loads((own / "changes.jsonl").read_text())["changed"] == {"train.steps": [20, 25]}
    assert measured(place, own).startswith(measured(place, "tiny"))
    assert run_command("--mode=evaluate", *TINY, workdir=own)[0] == 0  # whose config has 20 steps
    assert json.loads((own / "results.json").read_text())["step"] == 25


@pytest.mark.usefixtures("initial_states")
def test_warm_start_takes_parameters_and_tokens_of_a_run(place):
    config = config_of(place / "tiny")
    train = replace(config.train, start_from=str(place / "tiny"))
    sizes = replace(config.data.sizes, train=1_100)
    task = TASKS["translation"].prepare(
        replace(config, train=train, data=replace(config.data, sizes=sizes)), place / "cache"
    )
    found = parameters_to_start_from(task, place / "cache")
    state = task.learner.initial_state(found)
    jax.tree.map(
        np.testing.assert_array_equal, state.parameters, final_state(place, "tiny").parameters
    )
    assert int(state.step) == 0
    words = (place / "tiny" / "vocabulary.source.txt").read_bytes()
    assert task.tokenizers.source.as_bytes() == words


def test_warm_start_from_another_shape_names_the_parameters(place, run_command):
    status, _, error = run_command(
        *TINY,
        f"--config.train.start_from={place / 'tiny'}",
        "--config.model.hidden=64",
        workdir="warm",
    )
    assert status == 2
    assert "is another one: " in error and "(32, 48) there, (32, 64) here)" in error
    assert error.count("\n") == 1
    assert not (place / "warm").exists()


def test_workdir_of_another_config_is_refused(place, run_command):
    before = {path: path.stat().st_mtime_ns for path in (place / "tiny").rglob("*")}
    status, _, error = run_command(*TINY, "--config.model.hidden=64")
    assert status == 2
    assert "contains a run of another configuration: choose another --workdir\n" in error
    assert error.endswith("\n  model.hidden: 48 there, 64 here\n")
    status, _, error = run_command("--mode=evaluate", *TINY, "--config.seed=1")
    assert status == 2
    assert error.endswith("\n  seed: 0 there, 1 here\n")
    assert before == {path: path.stat().st_mtime_ns for path in (place / "tiny").rglob("*")}


def test_folder_without_a_run_is_refused(place, run_command):
    (place / "letters").mkdir()
    (place / "letters" / "dear.txt").write_text("dear")
    status, _, error = run_command(*TINY, workdir="letters")
    assert status == 2
    assert "exists and is not a run: choose another --workdir" in error
    assert [path.name for path in (place / "letters").iterdir()] == ["dear.txt"]


@pytest.mark.usefixtures("initial_states")
def test_nonfinite_loss_stops_the_run_without_a_checkpoint(place, run_command):
    flags = "--config=digits:tiny", "--config.train.learning_rate=1e30"
    status, _, error = run_command(*flags, workdir="diverged")
    assert status == 2
    assert re.search(r"^run.py: the (loss|gradient norm) became (nan|inf) in step ", error, re.M)
    assert not saved_steps(place / "diverged" / "checkpoints")


def test_model_too_short_for_a_split_is_refused_before_training(place, run_command):
    short = "--config.model.max_length=24", "--config.batch.bucket_lengths=(24,)"
    status, _, error = run_command(*TINY, *short, "--config.model.num_heads=2", workdir="short")
    assert status == 2
    assert "the longer split needs" in error
    assert re.search("positions, for '.+': raise model.max_length=24$", error.strip())
    assert not (place / "short" / "metrics.jsonl").exists()


def test_damaged_files_are_reported_and_not_overwritten(place, run_command):
    shutil.copytree(place / "tiny", place / "damaged")
    words = place / "damaged" / "vocabulary.source.txt"
    words.write_text(words.read_text() + "more\n")
    status, _, error = run_command(*TINY, workdir="damaged")
    assert status == 2
    assert "vocabulary.source.txt holds other words than the data" in error
    assert words.read_text().endswith("more\n")
    words.unlink()
    status, _, error = run_command("--mode=evaluate", workdir="damaged")
    assert status == 2
    assert "vocabulary.source.txt cannot be read" in error
    shutil.rmtree(place / "damaged" / "checkpoints")
    before = (place / "damaged" / "metrics.jsonl").read_text()
    status, _, error = run_command(*TINY, workdir="damaged")
    assert status == 2
    assert "the checkpoints of" in error
    assert (place / "damaged" / "metrics.jsonl").read_text() == before
    (place / "damaged" / "config.json").write_text("{")
    status, _, error = run_command(*TINY, workdir="damaged")
    assert status == 2
    assert "config.json cannot be read" in error


def test_a_sweep_reads_the_files_of_its_runs(place, run_command, tmp_path):
    shutil.copytree(place / "tiny", tmp_path / "sweep" / "seed=0")
    status, output, error = run_command("--mode=sweep", workdir=tmp_path / "sweep")
    assert (status, error) == (0, "")
    assert "0 of 1 runs have not reached their end" in output
    (record,) = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert {"validation", "test", "compositional", "longer"} < {*record["scores"]}
    assert (record["run"], record["seeds"], record["steps"]) == ("sweep", [0], [20])
    assert f"| sweep | test | 0 | {record['scores']['test']['loss']['mean']:.3f} |" in output
