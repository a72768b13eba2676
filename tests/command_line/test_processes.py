"""Two processes train as one with two devices, stop together, and one continues their run."""

import os
import signal
import sys
import time

import jax
import pytest

import run
from experiments import train
from tests.child import SLOW_STEPS, train_together

FLAGS = (
    "--config=word_vectors:tiny",
    "--config.mesh.data=2",
    "--config.train.log_every=4",
    "--config.train.steps=80",
    "--config.train.evaluate_every=40",
    "--config.train.checkpoint_every=40",
    "--config.train.sample_every=80",
)


def test_two_processes_equal_one_and_continue_as_one(place, run_command, monkeypatch):
    processes = train_together(place, "two", 2, patch=SLOW_STEPS, base=FLAGS)
    metrics, deadline = place / "two" / "metrics.jsonl", time.monotonic() + 300
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(processes[1].pid, signal.SIGTERM)
    for process in processes:
        process.join(60)
    logs = [(place / f"two.{rank}.txt").read_text() for rank in range(2)]
    assert [process.exitcode for process in processes] == [0, 0], logs
    (step,) = [path.name for path in (place / "two" / "checkpoints").iterdir()]
    assert all(f"stopped at step {step} of 80" in each for each in logs)
    for name in ("measure", "draw_learning_curve"):
        monkeypatch.setattr(train, name, lambda *_: None)
    status, _, error = run_command(*FLAGS, workdir="two")
    assert status == 0, error
    assert run_command(*FLAGS, workdir="one")[0] == 0
    # The sum of two numbers has the same bits in any order, so even the text is equal.
    found, expected = ((place / name / "metrics.jsonl").read_text() for name in ("two", "one"))
    assert found == expected


@pytest.fixture
def connected(monkeypatch):
    """The exit statuses of this process, which is one of several."""
    statuses = []
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(os, "_exit", statuses.append)
    return statuses


def test_error_that_resembles_a_lost_process_has_its_traceback(connected, monkeypatch, capsys):
    monkeypatch.setattr("experiments.processes.NAMED_SECONDS", 0)
    with run.exit_process():
        raise RuntimeError("NCCL: invalid usage")
    error = capsys.readouterr().err
    assert connected == [1] and "process 0 of 1 cannot reach another" in error
    assert "Traceback" in error and error.endswith("RuntimeError: NCCL: invalid usage\n")


def test_closed_output_of_one_of_several_processes_is_no_success(connected, monkeypatch):
    def parse(argv):
        raise BrokenPipeError

    monkeypatch.setattr(run, "parse", parse)
    monkeypatch.setattr(run, "is_output_closed", lambda: True)
    with open(os.devnull, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert run.main(["run.py"]) == 1
        monkeypatch.setattr(jax.distributed, "is_initialized", lambda: False)
        assert run.main(["run.py"]) == 0
