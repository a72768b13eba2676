"""Which processes are connected, before any is."""

import socket

import jax
import pytest

from experiments import processes
from experiments.errors import UsageError
from experiments.processes import NUM_TASKS_VARIABLES, cores_per_process, start_processes


@pytest.fixture
def connected(monkeypatch):
    """What `jax.distributed.initialize` was called with, outside of any launcher."""
    calls = []
    for name in NUM_TASKS_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(jax.distributed, "initialize", lambda *given, **_: calls.append(given))
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    return calls


def test_one_process_connects_with_no_other(connected, monkeypatch):
    start_processes(None, None, None)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    start_processes(None, None, None)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    start_processes(None, 1, None)
    assert connected == []


@pytest.mark.parametrize("name", NUM_TASKS_VARIABLES)
def test_jax_finds_the_processes_of_a_launcher(connected, monkeypatch, name):
    monkeypatch.setenv(name, "4")
    start_processes(None, None, None)
    assert connected == [(None, None, None)]


def test_flags_come_before_a_launcher(connected, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    start_processes("host:1", 2, 1)
    assert connected == [("host:1", 2, 1)]


def test_launcher_that_jax_does_not_know_is_one_sentence(connected, monkeypatch):
    def fail(*_, **__):
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setattr(jax.distributed, "initialize", fail)
    with pytest.raises(UsageError, match=r"address should be defined\.\): give --coordinator, --"):
        start_processes(None, None, None)


def test_port_in_use_is_one_sentence(connected):
    with socket.socket() as used:
        used.bind(("", 0))
        used.listen()
        port = used.getsockname()[1]
        with pytest.raises(
            UsageError, match=f"^--coordinator=localhost:{port} needs port {port}: "
        ):
            start_processes(f"localhost:{port}", 2, 0)
    assert connected == []


def test_processes_of_one_machine_divide_its_cores(monkeypatch):
    monkeypatch.setattr(processes, "num_cores", lambda: 8)
    assert cores_per_process(None, None) == cores_per_process("node1:1", 4) == 8
    assert cores_per_process("localhost:1", 4) == 2
    assert cores_per_process("127.0.0.1:1", 9) == 1
