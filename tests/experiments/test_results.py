"""Scores that are added to those of a run, and printed."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from experiments.results import report

from experiments.workdir import Workdir

ABOUT = {"step": 5, "training_seconds": 28.2}


@pytest.fixture
def workdir(tmp_path):
    return Workdir(tmp_path)


def test_every_number_and_both_steps_are_printed(workdir, capsys):
    (workdir.checkpoints / "20").mkdir(parents=True)
    scores = {"loss": 1.0, "bleu": 50.0, "chrf": 60.0, "first_word": 0.25, "bleu_signature": "v"}
    report(workdir, ABOUT, {"test": scores}, {})
    first, second, _ = capsys.readouterr().out.splitlines()
    assert first == "20 steps, 28.2 s of training; measured: step 5"
    assert second.split() == ["test", "BLEU", "50.00", "chrF", "60.00", "first_word", "0.250"]


def test_scores_may_be_numbers_of_numpy_and_jax(workdir, capsys):
    scores = {"right": np.int64(3), "mine": np.float32(0.5), "yours": jnp.float32(0.25)}
    report(workdir, ABOUT, {"test": scores}, {})
    written = json.loads(workdir.results.read_text())["splits"]["test"]
    assert written == {"right": 3, "mine": 0.5, "yours": 0.25}
    assert "right 3.000   mine 0.500   yours 0.250" in capsys.readouterr().out


@pytest.mark.parametrize("step", [5, 4])
def test_scores_of_the_same_step_stay(workdir, capsys, step):
    before = {"step": step, "splits": {"test": {"bleu": 1.0}, "longer": {"bleu": 2.0}}}
    report(workdir, ABOUT, {"test": {"chrf": 3.0}}, before)
    splits = json.loads(workdir.results.read_text())["splits"]
    if step == 5:
        assert splits == {"test": {"bleu": 1.0, "chrf": 3.0}, "longer": {"bleu": 2.0}}
    else:
        assert splits == {"test": {"chrf": 3.0}}
        assert "scores of step 4 are left out: longer" in capsys.readouterr().out
