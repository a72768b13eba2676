"""Several processes: connected by flags or a launcher, they train, stop and end as one."""

import os
import signal
import socket
import sys
import time

import jax
import pytest

import run
from experiments import processes, train
from experiments.errors import UsageError
from experiments.processes import NUM_TASKS_VARIABLES, cores_per_process, start_processes
from tests.child import SLOW_STEPS, ended, read_log, start

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
    started = start(place, "two", number=2, patch=SLOW_STEPS, base=FLAGS)
    metrics, deadline = place / "two" / "metrics.jsonl", time.monotonic() + 300
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(started[1].pid, signal.SIGTERM)
    statuses, logs = ended(started, 60), [read_log(place, "two", rank) for rank in range(2)]
    assert statuses == [0, 0], logs
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
    with processes.exit_process():
        raise RuntimeError("NCCL: invalid usage")
    error = capsys.readouterr().err
    assert connected == [1] and "process 0 of 1 cannot reach another" in error
    assert "Traceback" in error and error.endswith("RuntimeError: NCCL: invalid usage\n")


def test_closed_output_of_one_of_several_processes_is_no_success(connected, monkeypatch):
    def parse(argv):
        raise BrokenPipeError

    monkeypatch.setattr("experiments.main.parse", parse)
    monkeypatch.setattr("experiments.main.is_output_closed", lambda: True)
    with open(os.devnull, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert run.main(["run.py"]) == 1
        monkeypatch.setattr(jax.distributed, "is_initialized", lambda: False)
        assert run.main(["run.py"]) == 0


@pytest.fixture
def initialized(monkeypatch):
    """What `jax.distributed.initialize` was called with, outside of any launcher."""
    calls = []
    for name in NUM_TASKS_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(jax.distributed, "initialize", lambda *given, **_: calls.append(given))
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    return calls


def test_one_process_connects_with_no_other(initialized, monkeypatch):
    start_processes(None, None, None)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    start_processes(None, None, None)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    start_processes(None, 1, None)
    assert initialized == []


@pytest.mark.parametrize("name", NUM_TASKS_VARIABLES)
def test_jax_finds_the_processes_of_a_launcher_unless_flags_name_them(
    initialized, monkeypatch, name
):
    monkeypatch.setenv(name, "4")
    start_processes(None, None, None)
    start_processes("host:1", 2, 1)
    assert initialized == [(None, None, None), ("host:1", 2, 1)]


def test_launcher_that_jax_does_not_know_is_one_sentence(initialized, monkeypatch):
    def fail(*_, **__):
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setattr(jax.distributed, "initialize", fail)
    with pytest.raises(UsageError, match=r"address should be defined\.\): give --coordinator, --"):
        start_processes(None, None, None)


def test_port_in_use_is_one_sentence(initialized):
    with socket.socket() as used:
        used.bind(("", 0))
        used.listen()
        port = used.getsockname()[1]
        with pytest.raises(
            UsageError, match=f"^--coordinator=localhost:{port} needs port {port}: "
        ):
            start_processes(f"localhost:{port}", 2, 0)
    assert initialized == []


def test_processes_of_one_machine_divide_its_cores(monkeypatch):
    monkeypatch.setattr(processes, "num_cores", lambda: 8)
    assert cores_per_process(None, None) == cores_per_process("node1:1", 4) == 8
    assert cores_per_process("localhost:1", 4) == 2
    assert cores_per_process("127.0.0.1:1", 9) == 1
