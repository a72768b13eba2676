"""Scores that are printed, and the steps of a run."""

from types import SimpleNamespace

from experiments.results import report
from experiments.workdir import Workdir


def test_every_number_and_both_steps_are_printed(tmp_path, capsys):
    workdir = Workdir(tmp_path)
    (workdir.checkpoints / "20").mkdir(parents=True)
    config, learner = SimpleNamespace(decoding=None), SimpleNamespace(num_parameters=7)
    scores = {"loss": 1.0, "bleu": 50.0, "chrf": 60.0, "first_word": 0.25, "bleu_signature": "v"}
    report(config, workdir, learner, SimpleNamespace(step=5), 28.2, True, {"test": scores}, {})
    first, second, _ = capsys.readouterr().out.splitlines()
    assert first == "20 steps, 28.2 s of training; measured: step 5"
    assert second.split() == ["test", "BLEU", "50.00", "chrF", "60.00", "first_word", "0.250"]
