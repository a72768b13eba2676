"""Processes that train a tiny run, forked from one that has imported everything."""

import multiprocessing
import os
import socket
import sys
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

FLAGS = (
    "--config=digits:tiny",
    "--config.train.steps=30",
    "--config.train.log_every=3",
    "--config.train.evaluate_every=5",
    "--config.train.sample_every=10",
    "--config.train.checkpoint_every=4",
)
ONE_DEVICE = "import jax; jax.config.update('jax_num_cpu_devices', 1)\n"
SLOW_STEPS = """
import time
from experiments import sharding
place = sharding.place_rows
sharding.place_rows = lambda *given, **named: time.sleep(0.1) or place(*given, **named)
"""


def start(
    place: Path,
    workdir: str,
    *flags: str,
    number: int = 1,
    patch: str = "",
    base: Sequence[str] = FLAGS,
) -> list[BaseProcess]:
    """Start the processes of the run `workdir` in a folder, each within a hundredth of a second.

    Several have one device each. `patch` is Python code that runs before, `base` and `flags` are
    the command line, and `read_log` reads what process r prints.
    """
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    context = multiprocessing.get_context("forkserver")
    modules = "experiments.train", "experiments.tasks.classification", "sklearn.datasets"
    context.set_forkserver_preload(["run", *modules])
    with socket.socket() as trial:
        trial.bind(("", 0))
        address = f"--coordinator=localhost:{trial.getsockname()[1]}", f"--num_processes={number}"
    arguments = [f"--workdir={place / workdir}", f"--cache={place / 'cache'}", *base, *flags]
    processes = []
    for rank in range(number):
        own = (*address, f"--process_id={rank}") if number > 1 else ()
        code = ONE_DEVICE + patch if number > 1 else patch
        given = place, workdir, rank, [*arguments, *own], code
        processes.append(context.Process(target=_train, args=given))
        processes[-1].start()
    return processes


def ended(processes: Sequence[BaseProcess], timeout: float = 900) -> list[int | None]:
    """Wait for processes, and return their exit statuses."""
    for process in processes:
        process.join(timeout)
    return [process.exitcode for process in processes]


def read_log(place: Path, workdir: str, rank: int = 0) -> str:
    """Return what a process of a run has printed."""
    path = place / f"{workdir.replace('/', '.')}.{rank}.txt"
    return path.read_text() if path.exists() else ""


def _train(place: Path, workdir: str, rank: int, arguments: list[str], patch: str) -> None:
    """Train a run to its end, without measuring the test split, and exit as `run.py`."""
    log = place / f"{workdir.replace('/', '.')}.{rank}.txt"
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(1, 2)
    from experiments import train as command
    from experiments.main import console

    command.measure = command.draw_learning_curve = lambda *_: None
    exec(patch, {})
    sys.argv = ["run.py", *arguments]
    console()
