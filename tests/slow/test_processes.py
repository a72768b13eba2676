"""Several processes: signals and kills of each, and another number of processes later."""

import os
import re
import signal
import time

import numpy as np
import pytest

from experiments.metrics import read_metrics
from tests.child import SLOW_STEPS, forked, train, train_together

pytestmark = pytest.mark.slow

MESH = "--config.mesh.data=0"
# Four examples of each step, and the rows that are read, which every process prints.
NAMES_EXAMPLES = """
import sys
from experiments.data.pipeline import ShuffledBatches
get = ShuffledBatches.rows
def log(self, step):
    rows = get(self, step)
    images = rows.read(slice(0, 4)).inputs
    print("examples", step, images.sum(axis=(1, 2, 3)).tolist(), file=sys.stderr, flush=True)
    def read(part):
        print("reads", part.stop - part.start, "of", rows.number, file=sys.stderr, flush=True)
        return rows.read(part)
    return rows._replace(read=read)
ShuffledBatches.rows = log
"""
SLOW_COMPILATION = "import jax; jax.config.update('jax_enable_compilation_cache', False)"
WHEN = {  # text that process 0 prints before the signal, and code that runs before
    "training": ("tokens/s", SLOW_STEPS),
    "compilation": ("0/30 [", SLOW_COMPILATION),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("processes")


def read_log(place, workdir, rank):
    path = place / f"{workdir}.{rank}.txt"
    return path.read_text() if path.exists() else ""


def wait_for(text, place, workdir, processes):
    while text not in read_log(place, workdir, 0) and processes[0].is_alive():
        time.sleep(0.001)


def ended(processes, timeout=900):
    for process in processes:
        process.join(timeout)
    return [process.exitcode for process in processes]


def steps(place, workdir):
    return sorted(int(path.name) for path in (place / workdir / "checkpoints").iterdir())


def alone(place, workdir, *arguments):
    process = forked().Process(target=train, args=(place, workdir, *arguments))
    process.start()
    return [process]


@pytest.fixture(scope="module")
def unbroken(place):
    """The metrics of a run of one process with all devices."""
    assert ended(alone(place, "unbroken", (MESH,))) == [0]
    return read_metrics(place / "unbroken")


def assert_equal(found, expected):
    assert [row["step"] for row in found] == [row["step"] for row in expected]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-5)


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize(("number", "rank"), [(2, 0), (2, 1), (4, 0), (4, 3)])
def test_signal_to_one_stops_all_at_the_same_step(place, unbroken, number, rank, when):
    text, patch = WHEN[when]
    workdir = f"{when}.{number}.{rank}"
    processes = train_together(place, workdir, number, (MESH,), patch)
    wait_for(text, place, workdir, processes)
    os.kill(processes[rank].pid, signal.SIGTERM)
    assert ended(processes) == [0] * number, read_log(place, workdir, 0)
    step = steps(place, workdir)[-1]
    assert step < 30
    for each in range(number):
        assert f"stopped at step {step} of 30: the same" in read_log(place, workdir, each)
    processes = train_together(place, workdir, number, (MESH,))
    assert ended(processes) == [0] * number, read_log(place, workdir, 0)
    assert_equal(read_metrics(place / workdir), unbroken)


@pytest.mark.parametrize(("number", "rank"), [(2, 0), (2, 1), (4, 0), (4, 2)])
def test_killed_process_ends_all_and_is_named(place, unbroken, number, rank):
    workdir = f"killed.{number}.{rank}"
    processes = train_together(place, workdir, number, (MESH,), SLOW_STEPS)
    wait_for("tokens/s", place, workdir, processes)
    os.kill(processes[rank].pid, signal.SIGKILL)
    killed = time.monotonic()
    assert all(ended(processes))
    assert time.monotonic() - killed < 15
    for each in {*range(number)} - {rank}:
        name = r"leader \(usually slice 0 task 0\)" if rank == 0 else rf"heartbeats\):\n{rank}\n"
        assert re.search(name, read_log(place, workdir, each))
    assert ended(train_together(place, workdir, number, (MESH,))) == [0] * number
    assert_equal(read_metrics(place / workdir), unbroken)


def test_examples_are_the_same_for_any_number_of_processes(place):
    """A run of 1, 2, 4 and again 1 process has the examples of an unbroken one in each.

    A process reads an equal share of the rows of each step.
    """
    warmup = "--config.train.warmup_steps=4"
    for number, steps in ((1, 8), (2, 16), (4, 24), (1, 30)):
        flags = MESH, warmup, f"--config.train.steps={steps}"
        processes = train_together(place, "elastic", number, flags, NAMES_EXAMPLES)
        assert ended(processes) == [0] * number, read_log(place, "elastic", 0)
    assert ended(alone(place, "whole", (MESH, warmup), NAMES_EXAMPLES)) == [0]
    pattern = re.compile(r"examples (\d+) (\[.*\])")
    expected = dict(pattern.findall((place / "whole.txt").read_text()))
    for rank in range(4):
        shares = re.findall(r"reads (\d+) of (\d+)", read_log(place, "elastic", rank))
        wanted = [{1, 2, 4}, {2, 4}, {4}, {4}][rank]
        assert {int(rows) / int(read) for read, rows in shares} == wanted
        found = pattern.findall(read_log(place, "elastic", rank))
        assert found and all(expected[step] == examples for step, examples in found)
    assert {step for step, _ in pattern.findall(read_log(place, "elastic", 0))} == {*expected}


def test_processes_that_read_other_data_are_refused(place):
    other = (
        "import jax\n"
        "from experiments.data.source import ImageStore\n"
        "ImageStore.fingerprint = property(lambda _: str(jax.process_index()))"
    )
    assert ended(train_together(place, "other_data", 2, (MESH,), other)) == [2, 2]
    for rank in range(2):
        message = "process 1 reads other digits data than process 0: give all the same files"
        assert message in read_log(place, "other_data", rank)
    assert not (place / "other_data").exists()
