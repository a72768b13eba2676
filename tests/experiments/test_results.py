"""Scores that are printed, and the steps of a run."""

import json
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np

from experiments.results import report
from experiments.workdir import Workdir


def reported(path, scores):
    """Report the scores of a test split."""
    workdir = Workdir(path)
    config, learner = SimpleNamespace(decoding=None), SimpleNamespace(num_parameters=7)
    report(config, workdir, learner, SimpleNamespace(step=5), 28.2, True, {"test": scores}, {})
    return json.loads(workdir.results.read_text())["splits"]["test"]


def test_every_number_and_both_steps_are_printed(tmp_path, capsys):
    (Workdir(tmp_path).checkpoints / "20").mkdir(parents=True)
    scores = {"loss": 1.0, "bleu": 50.0, "chrf": 60.0, "first_word": 0.25, "bleu_signature": "v"}
    reported(tmp_path, scores)
    first, second, _ = capsys.readouterr().out.splitlines()
    assert first == "20 steps, 28.2 s of training; measured: step 5"
    assert second.split() == ["test", "BLEU", "50.00", "chrF", "60.00", "first_word", "0.250"]


def test_scores_may_be_numbers_of_numpy_and_jax(tmp_path, capsys):
    scores = {"right": np.int64(3), "mine": np.float32(0.5), "yours": jnp.float32(0.25)}
    assert reported(tmp_path, scores) == {"right": 3, "mine": 0.5, "yours": 0.25}
    assert "right 3.000   mine 0.500   yours 0.250" in capsys.readouterr().out
