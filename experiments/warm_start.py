"""Warm start: parameters of another run, or of released weights, in place of initial ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from flax import nnx

from experiments.config import Config
from experiments.config.build import is_within
from experiments.config.train import MeshPart
from experiments.errors import UsageError, as_usage_errors
from experiments.registry import TASKS
from experiments.tasks.task import Task
from experiments.training.session import restore
from experiments.workdir import Workdir

MOST_NAMED = 3  # parameters that do not match
Parameters = dict[tuple[Any, ...], Any]  # arrays by their path in a model


def parameters_to_start_from(task: Task, cache: Path) -> Parameters:
    """Return the parameters in the folder `train.start_from`, without those of `start_except`.

    Args:
        task: what is trained.
        cache: folder of generated data.

    Raises:
        UsageError: a folder without a trained model, or a model of another shape.
    """
    train = task.config.train
    if not train.start_from:
        return {}
    found = dict(nnx.to_flat_state(_load(Path(train.start_from), cache, task.config.mesh)))
    wanted = {
        path: variable.shape
        for path, variable in nnx.to_flat_state(task.learner.abstract_state.parameters)
        if not is_within(_name(path), train.start_except)
    }
    return matched(found, wanted, train.start_from)


def matched(found: Parameters, wanted: Parameters, folder: str) -> Parameters:
    """Return the wanted parameters among those that were found.

    Args:
        found: variables by path.
        wanted: shapes by path.
        folder: of the parameters, for the error.

    Raises:
        UsageError: some are missing or have another shape; it names the first ones.
    """
    differing = [
        f"{_name(path)} ({found[path].shape if path in found else 'missing'} there, {shape} here)"
        for path, shape in wanted.items()
        if path not in found or found[path].shape != shape
    ]
    if differing:
        more = len(differing) - MOST_NAMED
        raise UsageError(
            f"the model of train.start_from={folder} is another one: "
            + ", ".join(differing[:MOST_NAMED])
            + (f" and {more} more parameters differ" if more > 0 else " differ")
            + "; train.start_except names parts that are not taken from there"
        )
    return {path: found[path][...] for path in wanted}


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
