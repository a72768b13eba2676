"""Several processes: signals and kills of each, and another number of processes later."""

import os
import re
import signal
import time
from functools import partial

import numpy as np
import pytest

from experiments.checkpoint import saved_steps
from experiments.metrics import read_metrics
from tests import child
from tests.child import SLOW_STEPS, ended, read_log

pytestmark = pytest.mark.slow

start = partial(child.start, base=(*child.FLAGS, "--config.mesh.data=0"))

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


@pytest.fixture(scope="module")
def finish(place):
    """Return a function that trains a run to its end and compares it with one of one process."""
    assert ended(start(place, "unbroken")) == [0]
    expected = read_metrics(place / "unbroken")

    def finish(workdir, number):
        assert ended(start(place, workdir, number=number)) == [0] * number, read_log(place, workdir)
        found = read_metrics(place / workdir)
        assert [row["step"] for row in found] == [row["step"] for row in expected]
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-5)

    return finish


def interrupt(place, workdir, number, rank, which, text, patch):
    """Send a signal to one process once the first prints a text; return statuses and seconds."""
    processes = start(place, workdir, number=number, patch=patch)
    while text not in read_log(place, workdir) and processes[0].is_alive():
        time.sleep(0.001)
    os.kill(processes[rank].pid, which)
    sent = time.monotonic()
    return ended(processes), time.monotonic() - sent


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize(("number", "rank"), [(2, 0), (2, 1), (4, 0), (4, 3)])
def test_signal_to_one_stops_all_at_the_same_step(place, finish, number, rank, when):
    workdir = f"{when}.{number}.{rank}"
    statuses, _ = interrupt(place, workdir, number, rank, signal.SIGTERM, *WHEN[when])
    assert statuses == [0] * number, read_log(place, workdir)
    step = saved_steps(place / workdir / "checkpoints")[-1]
    assert step < 30
    for each in range(number):
        assert f"stopped at step {step} of 30: the same" in read_log(place, workdir, each)
    finish(workdir, number)


@pytest.mark.parametrize(("number", "rank"), [(2, 0), (2, 1), (4, 0), (4, 2)])
def test_killed_process_ends_all_and_is_named(place, finish, number, rank):
    workdir = f"killed.{number}.{rank}"
    statuses, seconds = interrupt(place, workdir, number, rank, signal.SIGKILL, *WHEN["training"])
    assert all(statuses) and seconds < 15
    for each in {*range(number)} - {rank}:
        name = r"leader \(usually slice 0 task 0\)" if rank == 0 else rf"heartbeats\):\n{rank}\n"
        assert re.search(name, read_log(place, workdir, each))
    finish(workdir, number)


def test_examples_are_the_same_for_any_number_of_processes(place):
    """A run of 1, 2, 4 and again 1 process has the examples of an unbroken one in each.

    A process reads an equal share of the rows of each step.
    """
    warmup = "--config.train.warmup_steps=4"
    for number, steps in ((1, 8), (2, 16), (4, 24), (1, 30)):
        flags = warmup, f"--config.train.steps={steps}"
        processes = start(place, "elastic", *flags, number=number, patch=NAMES_EXAMPLES)
        assert ended(processes) == [0] * number, read_log(place, "elastic")
    assert ended(start(place, "whole", warmup, patch=NAMES_EXAMPLES)) == [0]
    pattern = re.compile(r"examples (\d+) (\[.*\])")
    expected = dict(pattern.findall(read_log(place, "whole")))
    for rank in range(4):
        shares = re.findall(r"reads (\d+) of (\d+)", read_log(place, "elastic", rank))
        wanted = [{1, 2, 4}, {2, 4}, {4}, {4}][rank]
        assert {int(rows) / int(read) for read, rows in shares} == wanted
        found = pattern.findall(read_log(place, "elastic", rank))
        assert found and all(expected[step] == examples for step, examples in found)
    assert {step for step, _ in pattern.findall(read_log(place, "elastic"))} == {*expected}


def test_processes_that_read_other_data_are_refused(place):
    other = (
        "import jax\n"
        "from experiments.data.source import ImageStore\n"
        "ImageStore.fingerprint = property(lambda _: str(jax.process_index()))"
    )
    assert ended(start(place, "other_data", number=2, patch=other)) == [2, 2]
    for rank in range(2):
        message = "process 1 reads other digits data than process 0: give all the same files"
        assert message in read_log(place, "other_data", rank)
    assert not (place / "other_data").exists()
