"""The command: parse the flags, choose the mode, call one function of one module."""

import errno
import os
import select
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import jax

from experiments.cli import MODES_OF_RUNS, MULTI_PROCESS_MODES, OTHER_TASKS, Command, parse
from experiments.describe import simulate_devices
from experiments.errors import Stopped, UsageError
from experiments.predict import lines_as_they_come
from experiments.processes import cores_as_devices, cores_per_process, exit_process, start_processes
from experiments.registry import TASKS
from experiments.workdir import Workdir, own_workdir


def main(argv: Sequence[str]) -> int:
    """Run a command line and return the exit status; only errors of ours become one sentence."""
    status = 2
    try:
        command = parse(argv)
        start_jax(command)
        workdir = Workdir(command.workdir)
        if command.mode in MULTI_PROCESS_MODES:
            with own_workdir(workdir, command.config) as own:
                status = call(command, own)
        else:
            status = call(command, workdir)
        if sys.stdout:  # None where it is closed
            sys.stdout.flush()
    except UsageError as error:
        print(f"{Path(argv[0]).name}: {error}", file=sys.stderr)
    except Stopped as stopped:
        print(f"{Path(argv[0]).name}: {stopped}", file=sys.stderr)
        status = 0
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        status = 130
    except OSError as error:
        if error.errno == errno.ENOSPC:
            full = error.filename or "standard output"
            print(f"{Path(argv[0]).name}: {full}: {error.strerror}", file=sys.stderr)
        elif isinstance(error, BrokenPipeError) and is_output_closed():
            # The program that reads our output has ended; other processes have not: no success.
            status = int(jax.distributed.is_initialized())
        else:
            raise  # of a file or another pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes it too
    return status


def is_output_closed() -> bool:
    """Return whether the program that reads standard output has ended."""
    poll = select.poll()
    poll.register(1, 0)  # errors alone
    return bool(poll.poll(0))


def start_jax(command: Command) -> None:
    """Make each core a device, connect the processes, and set the cache of programs.

    Raises:
        UsageError: jax has no device of the platform in JAX_PLATFORMS.
    """
    coordinator, number, process = command.processes
    if command.mode == "describe":
        simulate_devices(command.config)
    cores_as_devices(cores_per_process(coordinator, number))
    if command.mode in MULTI_PROCESS_MODES:
        start_processes(coordinator, number, process)
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        platforms = os.environ.get("JAX_PLATFORMS", "")
        reason = " ".join(str(error).split()) or "it is not there"
        raise UsageError(f"jax cannot use JAX_PLATFORMS={platforms}: {reason}") from error
    if command.mode != "benchmark":  # which times compiling too
        # Programs compiled by one run start the next one in seconds.
        jax.config.update("jax_compilation_cache_dir", str((command.cache / "jax").absolute()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
        # A program that cannot be stored, as on a full disk, is compiled again next time.
        warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
    # orbax leaves coroutines behind where a checkpoint cannot be read or written.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)


def call(command: Command, workdir: Workdir) -> int:
    """Call the function of the mode; return the exit status."""
    mode, config, cache = command.mode, command.config, command.cache
    _, name = OTHER_TASKS.get(getattr(config, "task", None), (mode, f"experiments.{mode}"))
    module = import_module(name)
    if mode in MODES_OF_RUNS and config.task in TASKS:
        config = workdir.as_trained(config, command.fields, other_data=mode == "evaluate")
    if mode != "predict":
        getattr(module, mode)(command.runs or config, workdir, cache, **command.options)
        return 0
    if sys.stdin is None:
        raise UsageError("--mode=predict reads standard input, which is closed")
    groups = lines_as_they_come(sys.stdin)
    form = command.options.get("format", "text")
    return int(module.predict(config, workdir, cache, groups, form) > 0)


def console() -> None:
    """Run `python run.py`, or the command `attention`, with the arguments of this process."""
    with exit_process():
        sys.exit(main(sys.argv))
