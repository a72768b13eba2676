"""The command line: parse the flags, choose the mode, call one experiment.

python run.py                                       train the toy translation task
python run.py --config=NAME                         train another experiment of configs/
python run.py --config=NAME:tiny                    its tiny form, which ends in seconds
python run.py --config.model.num_kv_heads=1         change any field of a configuration
python run.py --workdir=FOLDER                      continue the run in a folder
python run.py --workdir=FOLDER --config.train.steps=MORE                extend it
python run.py --coordinator=HOST:PORT --num_processes=4 --process_id=2  one process of four
python run.py --profile                             record a profiler trace of some steps
python run.py --wandb=PROJECT                       send the metrics to Weights & Biases too
python run.py --mode=evaluate                       measure a trained model
python run.py --mode=evaluate --split=validation    on this part of the data alone
python run.py --mode=evaluate --against=workdirs/B  beside another run
echo "Jane visits Africa" | python run.py --mode=predict
python run.py --mode=explain --sentence="Jane visits Africa"
python run.py --mode=explain --file=PAIRS --gold=LINKS
echo "the girl" | python run.py --mode=predict --workdir=workdirs/char_lm
echo "the _ is happy" | python run.py --mode=predict --workdir=workdirs/masked_lm --format=json
echo "Once upon a time" | python run.py --mode=predict --weights=FOLDER
python run.py --mode=sweep --seeds=0,1,2            several seeds, or values of a field:
python run.py --mode=sweep --grid.train.learning_rate=1e-3,3e-3
python run.py --mode=prepare                        store the data of a configuration
python run.py --mode=describe                       parameters, cache and FLOPs of a model
python run.py --mode=benchmark                      measure attention beside its peers
python run.py --mode=ledger                         results of all runs, as JSON and in tables
python run.py --help --config=NAME                  modes, configurations, flags and fields
"""

import errno
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from absl import logging
from ml_collections import ConfigDict

from experiments.cli import MULTI_PROCESS_MODES, PROCESS_FLAGS, SUFFIXES, USES, Command, parse
from experiments.config import Config
from experiments.errors import Stopped, UsageError, as_usage_errors, one_of
from experiments.registry import TASKS
from experiments.workdir import Workdir


class Experiment(NamedTuple):
    """A module that is no task, which is imported when it is used, and the modes that it has.

    Each mode is a function of the module.
    """

    module: str
    modes: tuple[str, ...]

    def load(self) -> ModuleType:
        """Import the module, and with it jax."""
        return import_module(self.module)


OF_TASKS = ("train", "evaluate", "predict", "explain", "prepare", "describe")
# `config.task`, if it is not a task -> module and modes.
EXPERIMENTS = {
    "pretrained": Experiment("experiments.pretrained", ("predict",)),
    "preset": Experiment("experiments.describe", ("describe",)),
    "benchmark": Experiment("experiments.benchmarks.attention", ("benchmark",)),
    "model_benchmark": Experiment("experiments.benchmarks.models", ("benchmark",)),
    "ledger": Experiment("experiments.ledger", ("ledger",)),
}
LOST = re.compile("gloo|nccl|connection", re.IGNORECASE)  # in errors after a process has ended
NAMED_SECONDS = 15  # in which jax ends a process that has lost another one, with its number
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a disk, a quota or a file is full


def main(argv: Sequence[str]) -> int:
    """Run a command line and return the exit status."""
    try:
        command = parse(argv)
        check_mode(command)
        config = read_runs(command.runs) or read_config(command.config)
        start_jax(command)
        status = run(command, config)
        sys.stdout.flush()  # or an error of it is reported when Python ends
        return status
    except BrokenPipeError:  # the program that reads our output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(is_one_of_several())  # the others have not ended: no success
    except (UsageError, FloatingPointError, OSError) as error:  # of a full disk, for instance
        print(f"{os.path.basename(argv[0])}: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        if not any(os.strerror(number) in str(error) for number in FULL):
            raise
        # Libraries report a full disk in errors of their own.
        print(f"{os.path.basename(argv[0])}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except Stopped as stopped:
        print(f"{os.path.basename(argv[0])}: {stopped}", file=sys.stderr)
        return 0


def check_mode(command: Command) -> None:
    """Refuse, before jax is imported, an experiment or a mode that does not exist.

    Raises:
        UsageError: in one sentence.
    """
    if command.cache.exists() and not command.cache.is_dir():
        raise UsageError(f"--cache={command.cache} is no folder")
    for config in command.runs.values() or [command.config]:
        name = config.get("task")
        with as_usage_errors():
            one_of("task", name, (*TASKS, *EXPERIMENTS))
        modes = (*OF_TASKS, *SUFFIXES)
        if name not in TASKS:
            modes = EXPERIMENTS[name].modes
        if command.mode not in modes:
            raise UsageError(f"{name} has no mode {command.mode!r}, it has {', '.join(modes)}")
    if "against" in command.options and name != "translation":
        raise UsageError(f"--against is for translations, and {name} has none")


def read_config(config: ConfigDict) -> Config | ConfigDict:
    """Check the config of a task, before jax is imported; other configs are returned as they are.

    Raises:
        UsageError: in one sentence.
    """
    if config.task in TASKS:
        return Config.read(config.to_dict())
    return config


def read_runs(runs: Mapping[str, ConfigDict]) -> dict[str, Config]:
    """Check the config of each run of a sweep.

    Raises:
        UsageError: in one sentence, with the name of the run.
    """
    read = {}
    for name, config in runs.items():
        try:
            read[name] = Config.read(config.to_dict())
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from error
    return read


def start_jax(command: Command) -> None:
    """Import jax, make each core a device, connect the processes, and set the cache of programs."""
    import jax

    from experiments.devices import cores_as_devices, num_cores
    from experiments.processes import cores_per_process, start_processes

    coordinator, number, process = map(command.options.get, PROCESS_FLAGS)
    if command.mode == "describe":
        import_module("experiments.describe").simulate_devices(command.config)
    cores_as_devices(cores_per_process(num_cores(), coordinator, number))
    if command.mode in MULTI_PROCESS_MODES:
        start_processes(coordinator, number, process)
    if command.mode != "benchmark":  # which times compiling too
        # Programs compiled by one run start the next one in seconds.
        jax.config.update("jax_compilation_cache_dir", str((command.cache / "jax").absolute()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
        # A program that cannot be stored, as on a full disk, is compiled again next time.
        warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")


def run(command: Command, config: Config | ConfigDict | Mapping[str, Config]) -> int:
    """Call the experiment that the configuration names; return the exit status."""
    workdir = Workdir(command.weights or command.workdir)
    if command.mode in MULTI_PROCESS_MODES:
        from experiments.processes import own_workdir

        with own_workdir(workdir, config) as own:
            return call(command, config, own)
    return call(command, config, workdir)


def call(
    command: Command, config: Config | ConfigDict | Mapping[str, Config], workdir: Workdir
) -> int:
    """Call the experiment with a workdir; return the exit status."""
    cache = command.cache
    if command.runs:
        do = getattr(import_module(f"experiments.{command.mode}"), command.mode)
        do(config, workdir, cache, **options(command))
        return 0
    if command.mode == "describe":
        task = None
        if config.task in TASKS:
            kind = TASKS[config.task]
            task = kind.load(config, workdir, cache) if command.is_of_run else None
            task = task or kind.prepare(config, cache)
        import_module("experiments.describe").describe(config, task)
        return 0
    if command.mode in USES and command.weights is None:
        config = workdir.as_trained(config, other_data=command.mode == "evaluate")
    if config.task in TASKS:
        experiment = import_module(f"experiments.{command.mode}")
    else:
        experiment = EXPERIMENTS[config.task].load()
    do = getattr(experiment, command.mode)
    if command.mode == "predict":
        if sys.stdin is None:
            raise UsageError("--mode=predict reads standard input, which is closed")
        from experiments.prompt import lines_as_they_come

        groups = lines_as_they_come(sys.stdin)
        return 1 if do(config, workdir, cache, groups, command.options.get("format", "text")) else 0
    do(config, workdir, cache, **options(command))
    return 0


def options(command: Command) -> dict[str, Any]:
    """Return the arguments of a mode that flags decide."""
    return {name: value for name, value in command.options.items() if name not in PROCESS_FLAGS}


def silence_threads() -> None:
    """Stop libraries from printing a traceback for each error that they raise in `main` as well.

    When a checkpoint cannot be written, orbax logs the error of each of its threads, and each
    callback of tensorstore that comes too late is an unraisable error: hundreds of lines.
    """
    logging.set_verbosity(logging.FATAL)
    sys.unraisablehook = lambda _: None


def is_one_of_several() -> bool:
    """Return whether this process is connected with the others of its run."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


@contextmanager
def exit_process() -> Iterator[None]:
    """Exit: shut down jax.distributed after success; after an error without the barrier.

    The other processes exit when they miss the heartbeat of this one. They would not reach the
    barrier.
    """
    try:
        yield
    except BaseException as error:
        if not is_one_of_several():
            raise
        import jax

        if isinstance(error, SystemExit) and not error.code:
            jax.distributed.shutdown()
            raise
        if LOST.search(str(error)):
            rank = f"process {jax.process_index()} of {jax.process_count()}"
            print(
                f"run.py: {rank} cannot reach another, which jax names below if it has ended",
                file=sys.stderr,
                flush=True,
            )
            time.sleep(NAMED_SECONDS)
        if not isinstance(error, SystemExit):
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.code if isinstance(error, SystemExit) else 1)


if __name__ == "__main__":
    silence_threads()
    with exit_process():
        sys.exit(main(sys.argv))
