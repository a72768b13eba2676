"""Processes that train a tiny run, forked from one that has imported everything."""

import multiprocessing
import os
import socket
import sys
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


def forked() -> multiprocessing.context.BaseContext:
    """Return a context whose processes start in a hundredth of a second."""
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    context = multiprocessing.get_context("forkserver")
    modules = "experiments.train", "experiments.tasks.classification", "sklearn.datasets"
    context.set_forkserver_preload(["run", *modules])
    return context


def train_together(
    place: Path,
    workdir: str,
    number: int,
    flags: tuple[str, ...] = (),
    patch: str = "",
    base: tuple[str, ...] = FLAGS,
) -> list[multiprocessing.Process]:
    """Start several processes, each with one device, that train one run.

    Process r prints into the file "WORKDIR.r.txt". The arguments are those of `train`.
    """
    with socket.socket() as trial:
        trial.bind(("", 0))
        address = f"--coordinator=localhost:{trial.getsockname()[1]}", f"--num_processes={number}"
    processes = []
    for rank in range(number):
        given = (*address, f"--process_id={rank}", *flags)
        arguments = place, workdir, given, ONE_DEVICE + patch, f"{workdir}.{rank}", base
        processes.append(forked().Process(target=train, args=arguments))
        processes[-1].start()
    return processes


def train(
    place: Path,
    workdir: str,
    flags: tuple[str, ...] = (),
    patch: str = "",
    log: str = "",
    base: tuple[str, ...] = FLAGS,
) -> None:
    """Train a run to its end, without measuring the test split, and exit as `run.py`.

    Args:
        place: folder of workdirs, of the cache, and of what the process prints.
        workdir: name of the workdir.
        flags: more of the command line.
        patch: Python code that runs before.
        log: name of the file of what the process prints; that of the workdir by default.
        base: the first part of the command line.
    """
    log = place / f"{log or workdir.replace('/', '.')}.txt"
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(1, 2)
    import run
    from experiments import train as command

    command.measure = command.draw_learning_curve = lambda *_: None
    exec(patch, {})
    folders = f"--workdir={place / workdir}", f"--cache={place / 'cache'}"
    sys.argv = ["run.py", *folders, *base, *flags]
    with run.exit_process():
        sys.exit(run.main(sys.argv))
