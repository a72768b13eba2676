"""Weights & Biases by a module that stands in for it: nothing is sent."""

import sys
from types import SimpleNamespace

import pytest

from experiments.errors import UsageError
from experiments.training.metrics import Metrics
from experiments.training.weights_and_biases import import_wandb, start_wandb


class Run:
    def __init__(self, **options):
        self.options, self.rows, self.is_finished = options, [], False

    def log(self, values, step):
        self.rows.append((step, values))

    def finish(self):
        self.is_finished = True


@pytest.fixture
def wandb(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=Run))


@pytest.mark.usefixtures("wandb")
def test_rows_are_logged_and_a_resumed_run_keeps_its_id(tmp_path):
    first, again = (start_wandb("project", tmp_path, {"seed": 0}) for _ in range(2))
    assert first.options == again.options
    assert first.options["project"] == "project" and first.options["config"] == {"seed": 0}
    with Metrics(tmp_path, step=0, wandb=first) as metrics:
        metrics.write(5, "train", {"loss": 2.0})
        metrics.write_timing(5, {"steps_per_second": 3.0})
    assert first.rows == [(5, {"train/loss": 2.0}), (5, {"timing/steps_per_second": 3.0})]
    assert first.is_finished


def test_a_missing_module_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=r'--wandb needs an extra: pip install "attention\[wandb'):
        import_wandb()


def test_a_run_that_cannot_start_is_one_sentence(monkeypatch, tmp_path):
    def init(**_):
        raise RuntimeError("no\nlogin")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    with pytest.raises(UsageError, match="--wandb=project cannot start: no login"):
        start_wandb("project", tmp_path, {})
