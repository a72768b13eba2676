"""The door: parse flags, choose the mode, call one experiment.

python run.py                                       train the toy translation task
python run.py --config=configs/NAME.py              train another experiment
python run.py --config=configs/NAME.py:tiny         its tiny form, which ends in seconds
python run.py --config.model.num_kv_heads=1         change any field of a configuration
python run.py --mode=evaluate                       measure a trained model
python run.py --mode=evaluate --split=validation    on this part of the data alone
python run.py --mode=evaluate --against=workdirs/B  beside what another run says
echo "Jane visits Africa" | python run.py --mode=translate
echo "the girl" | python run.py --mode=generate --workdir=workdirs/char_lm
echo "Once upon a time" | python run.py --mode=generate --weights=FOLDER
python run.py --mode=compare --config=configs/A.py --config=configs/B.py
python run.py --mode=describe                       parameters, cache and FLOPs of a model
python run.py --mode=benchmark                      measure attention beside its peers
python run.py --mode=ledger                         what all runs achieved, as a table
"""

import os
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax
from flax import nnx

from attention.primitives.choice import one_of
from experiments import (
    classification,
    comparison,
    describe,
    language_model,
    ledger,
    masked_language_model,
    pretrained,
    translation,
    word_vectors,
)
from experiments.benchmarks import suite
from experiments.benchmarks.models import suite as model_suite
from experiments.environment import num_cores
from experiments.errors import UsageError, as_usage_errors
from experiments.flags import MODES, USES, Command, parse
from experiments.prompt import lines_as_they_come
from experiments.training.sharding import cores_as_devices
from experiments.workdir import Workdir

EXPERIMENTS = {
    "translation": translation,
    "language_model": language_model,
    "masked_language_model": masked_language_model,
    "classification": classification,
    "word_vectors": word_vectors,
    "pretrained": pretrained,
    "comparison": comparison,
    "preset": describe,
    "benchmark": suite,
    "model_benchmark": model_suite,
    "ledger": ledger,
}
LINE_BY_LINE = ("translate", "generate")  # what reads standard input


def main(argv: Sequence[str]) -> int:
    """Does what the command line says and returns the exit status."""
    try:
        command = parse(argv)
        if command.mode != "benchmark":  # which times compiling too
            # Programs compiled by one run start the next one in seconds.
            jax.config.update("jax_compilation_cache_dir", str((command.cache / "jax").absolute()))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
        return run(command)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (UsageError, FloatingPointError, OSError) as error:  # of a full disk, for instance
        print(f"{os.path.basename(argv[0])}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "\nstopped; the same command goes on from the last checkpoint, if there is one",
            file=sys.stderr,
        )
        return 130


def run(command: Command) -> int:
    """Calls the experiment that the configuration names."""
    if command.cache.exists() and not command.cache.is_dir():
        raise UsageError(f"--cache={command.cache} is no folder")
    workdir = Workdir(command.weights or command.workdir)
    config, cache = command.config, command.cache
    with as_usage_errors():
        one_of("experiment", config.experiment, tuple(EXPERIMENTS))
    experiment = EXPERIMENTS[config.experiment]
    if command.mode == "compare" and config.experiment != "comparison":
        raise UsageError("a comparison needs several runs: give --config twice, or a file of runs")
    modes = modes_of(experiment)
    if command.mode not in modes:
        told = ", ".join(modes)
        where = "; its runs have folders of their own" if config.experiment == "comparison" else ""
        raise UsageError(f"{config.experiment} has no mode {command.mode!r}, it has {told}{where}")
    check(command)
    if command.mode == "describe":
        describe.describe(config, abstract_model(command))
        return 0
    if command.mode in USES and command.weights is None:
        config = workdir.as_trained(config)
    do = getattr(experiment, command.mode)
    if command.mode in LINE_BY_LINE:
        if sys.stdin is None:
            raise UsageError(f"--mode={command.mode} reads standard input, which is closed")
        return 1 if do(config, workdir, lines_as_they_come(sys.stdin)) else 0
    do(config, workdir, cache, **asked(command))
    return 0


def abstract_model(command: Command) -> nnx.Module:
    """What is described: the model of a run, with the words that it knows, or that of a file."""
    experiment, config = EXPERIMENTS[command.config.experiment], command.config
    if command.is_of_run and hasattr(experiment, "load_task"):
        return experiment.load_task(config, Workdir(command.workdir)).learner.abstract_model
    return experiment.abstract_model(config, command.cache)


def modes_of(experiment: ModuleType) -> list[str]:
    """What can be done with an experiment, as its functions are named; a model can be described."""
    functions = {"describe": "abstract_model"}
    return [mode for mode in MODES if hasattr(experiment, functions.get(mode, mode))]


def asked(command: Command) -> dict[str, Any]:
    """What is asked of the evaluation.

    Raises:
        UsageError: translations to be held against others, of what translates nothing.
    """
    if command.mode != "evaluate":
        return {}
    if command.against is None:
        return {"split": command.split}
    if command.config.experiment != "translation":
        raise UsageError(f"--against is for translations, and {command.config.experiment} has none")
    return {"split": command.split, "against": Workdir(command.against)}


def check(command: Command) -> None:
    """Lets the experiment refuse its configuration, before anything is read or written.

    What was trained may be used far from its data, or be measured by a part of it.

    Raises:
        UsageError: in one sentence.
    """
    experiment = EXPERIMENTS[command.config.experiment]
    try:
        is_used = command.mode in USES or command.is_of_run
        if is_used and hasattr(experiment, "check_use"):
            experiment.check_use(command.config)
        else:
            experiment.check(command.config)
    except (AttributeError, KeyError, TypeError) as error:
        raise UsageError(
            "this is not a configuration of the kind that its names ask for "
            f"({_reason(error)}): start from the file in configs/ that is"
        ) from error


def _reason(error: Exception) -> str:
    """What is wrong with a configuration; the name of a missing field comes in quotes of quotes."""
    within = error.args[0] if isinstance(error, AttributeError) else error
    missing = re.search(r"\w+", str(within)) if isinstance(within, KeyError) else None
    return f"it has no field {missing[0]!r}" if missing else str(error)


if __name__ == "__main__":
    cores_as_devices(num_cores())
    sys.exit(main(sys.argv))
