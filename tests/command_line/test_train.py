"""--mode=train: a run, resumption, and workdirs that are refused."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments.checkpoint import saved_steps
from experiments.metrics import read_metrics
from experiments.registry import TASKS
from experiments.trained import parameters_to_start_from, restore
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


def measured(place, workdir):
    """Return the bytes of the metrics of a run."""
    return (place / workdir / "metrics.jsonl").read_bytes()


def test_workdir_contains_everything(place, trained):
    names = {path.name for path in (place / "tiny").iterdir()}
    splits = "test", "compositional", "longer"
    expected = (
        "attention.png checkpoints config.json learning_curve.png metrics.jsonl results.json "
        "samples.txt starts.jsonl tensorboard texts.json timing.jsonl vocabulary.source.txt "
        "vocabulary.target.txt"
    )
    assert names == {*expected.split(), *(f"hypotheses.{split}.jsonl" for split in splits)}
    results = json.loads((place / "tiny" / "results.json").read_text())
    assert results["step"] == 20
    assert {"agreement", "order", "polysemy"} <= results["splits"].keys()
    for split in splits:
        assert split in trained
        scores = results["splits"][split]
        assert {"exact_match", "accuracy", "bleu", "bleu_signature", "nll"} <= scores.keys()
        hypotheses = (place / "tiny" / f"hypotheses.{split}.jsonl").read_text().splitlines()
        assert len(hypotheses) == scores["sentences"] == 20
    trained = [row for row in read_metrics(place / "tiny") if row["split"] == "train"]
    assert trained[-1]["nll"] < trained[0]["nll"]


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
    arrays = parameters_to_start_from(task, place / "cache")
    state = task.learner.initial_state().with_arrays(arrays)
    workdir = Workdir(place / "tiny")
    trained = restore(workdir, TASKS["translation"].load(config, workdir, workdir.path)).state
    jax.tree.map(np.testing.assert_array_equal, state.parameters, trained.parameters)
    assert int(state.step) == 0
    words = (place / "tiny" / "vocabulary.source.txt").read_bytes()
    assert task.tokenizers.source.as_bytes() == words


def test_warm_start_from_another_shape_names_the_parameters(place, run_command):
    start = f"--config.train.start_from={place / 'tiny'}"
    status, _, error = run_command(*TINY, start, "--config.model.hidden=64", workdir="warm")
    assert status == 2
    assert "is another one: " in error and "(32, 48) there, (32, 64) here)" in error
    assert error.count("\n") == 1 and not (place / "warm").exists()


def test_workdir_of_another_config_is_refused(place, run_command):
    before = {path: path.stat().st_mtime_ns for path in (place / "tiny").rglob("*")}
    status, _, error = run_command(*TINY, "--config.model.hidden=64")
    assert status == 2
    assert "contains a run of another configuration: choose another --workdir\n" in error
    assert error.endswith("\n  model.hidden: 48 there, 64 here\n")
    assert before == {path: path.stat().st_mtime_ns for path in (place / "tiny").rglob("*")}


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
    (place / "damaged" / "config.json").write_text("{")
    status, _, error = run_command(*TINY, workdir="damaged")
    assert status == 2
    assert "config.json cannot be read" in error


def test_a_sweep_reads_the_files_of_its_runs(place, run_command, tmp_path):
    shutil.copytree(place / "tiny", tmp_path / "sweep" / "seed=0")
    status, output, error = run_command("--mode=sweep", workdir=tmp_path / "sweep")
    assert (status, error) == (0, "")
    assert "0 of 1 runs have not reached their end" in output
    assert re.search(r"\| sweep \| 0 \| .* \| compositional \|", output)
