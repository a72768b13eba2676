"""Warm start: parameters of another run, or of released weights, in place of initial ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from flax import nnx

from experiments.config import Config
from experiments.config.build import is_within
from experiments.config.parts import MeshPart
from experiments.errors import UsageError, as_usage_errors
from experiments.registry import TASKS
from experiments.tasks.task import Task
from experiments.trained import restore
from experiments.workdir import Workdir

MOST_NAMED = 3  # parameters that do not match
Parameters = dict[tuple[Any, ...], Any]  # arrays by their path in a model


def parameters_to_start_from(task: Task, cache: Path) -> Parameters:
    """Return the parameters in the folder `train.start_from`, without those of `start_except`.

    Raises:
        UsageError: a folder without a trained model, or a model of another shape; it names the
            first parameters that differ.
    """
    train = task.config.train
    if not train.start_from:
        return {}
    there = dict(nnx.to_flat_state(_load(Path(train.start_from), cache, task.config.mesh)))
    here = {
        path: variable.shape
        for path, variable in nnx.to_flat_state(task.learner.abstract_state.parameters)
        if not is_within(_name(path), train.start_except)
    }
    differing = [
        f"{_name(path)} ({there[path].shape if path in there else 'missing'} there, {shape} here)"
        for path, shape in here.items()
        if path not in there or there[path].shape != shape
    ]
    if differing:
        more = len(differing) - MOST_NAMED
        raise UsageError(
            f"the model of train.start_from={train.start_from} is another one: "
            + ", ".join(differing[:MOST_NAMED])
            + (f" and {more} more parameters differ" if more > 0 else " differ")
            + "; train.start_except names parts that are not taken from there"
        )
    return {path: there[path][...] for path in here}


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))


def _load(folder: Path, cache: Path, mesh: MeshPart) -> nnx.State:
    """Return the parameters in a folder; those of a run are restored onto this mesh."""
    run = Workdir(folder)
    if run.checkpoints.is_dir():
        config = replace(Config.read(run.load_config().to_dict()), mesh=mesh)
        return restore(run, TASKS[config.task].load(config, run, cache)).state.parameters
    try:
        from attention.weights import load
    except ModuleNotFoundError as error:
        raise UsageError('released weights need an extra: pip install ".[weights]"') from error
    try:
        with as_usage_errors("train.start_from: "):
            model = load(folder)
    except FileNotFoundError as error:
        raise UsageError(
            f"train.start_from={folder} contains neither a trained run nor released weights"
        ) from error
    print(f"the tokens of {folder} are taken to be those of the data")
    return nnx.state(model)
