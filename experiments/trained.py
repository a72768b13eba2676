"""A trained run: the state that is used, its model in Python, and the warm start from it."""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import jax
from flax import nnx

from experiments.checkpoint import Progress, read_checkpoint, read_newest, saved_steps
from experiments.config import Config
from experiments.config.build import is_within
from experiments.config.parts import MeshPart, TrainPart, without_own_fields
from experiments.data.tokenizers import Tokenizers
from experiments.errors import UsageError, as_usage_errors, nearest
from experiments.learner import TrainState
from experiments.registry import TASKS
from experiments.sharding import one_copy
from experiments.tasks.prediction import Prediction
from experiments.workdir import Workdir

FEW_STEPS = 100  # of the tiny form of a config
Losses = Sequence[tuple[int, float]]  # step and monitored loss of each evaluation, oldest first


def smoke_test(step: int) -> str:
    """Return the end of a sentence about a run of so few steps that it has learned nothing."""
    return ", a smoke test: its answers mean nothing" if step < FEW_STEPS else ""


class Trained(NamedTuple):
    """A state that is measured and used, seconds of training, and whether that has ended."""

    state: TrainState
    seconds: float
    ended: bool


def restore(workdir: Workdir, task: Any) -> Trained:  # noqa: ANN401 - a task
    """Restore the state of a run that is measured and used, as `chosen`.

    Raises:
        UsageError: the run has no checkpoint yet, or its newest is damaged.
    """
    newest, progress = read_newest(workdir.checkpoints, task.learner.abstract_state)
    return chosen(workdir, newest, progress, task.config.train)


def chosen(workdir: Workdir, newest: TrainState, progress: Progress, train: TrainPart) -> Trained:
    """Return the state that is used, given the newest one.

    With `train.patience`, it is that of the checkpoint with the lowest validation loss, if one was
    measured. Its parameters are their moving average, or the mean of those of the last
    `train.average` checkpoints up to there (Vaswani et al. 2017, section 6.1).

    Raises:
        UsageError: a checkpoint cannot be read.
    """
    losses, every, folder = progress.losses, train.checkpoint_interval, workdir.checkpoints
    last = lowest(losses)[0] if train.patience and losses else int(newest.step)
    earlier = [step for step in saved_steps(folder)[::-1] if step < last and step % every == 0]
    states = [
        newest if step == newest.step else read_checkpoint(folder, step, newest)[0]
        for step in [last, *earlier][: train.average]
    ]
    if len(states) < (expected := min(train.average, math.ceil(last / every))):
        print(f"the mean is of {len(states)} checkpoints, not of {expected}", file=sys.stderr)
    state = states[0].with_ema()
    if len(states) > 1:
        trees = [each.parameters for each in states]
        mean = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *trees)
        state = state._replace(parameters=mean)
    return Trained(state, progress.seconds, is_finished(int(newest.step), losses, train))


def is_finished(step: int, losses: Losses, train: TrainPart) -> bool:
    """Return whether the last step is done, or `train.patience` evaluations came after the best."""
    since = len(losses) - 1 - losses.index(lowest(losses)) if losses else 0
    return step >= train.steps or 0 < train.patience <= since


def lowest(losses: Losses) -> tuple[int, float]:
    """Return step and value of the lowest loss, the first of several."""
    return min(losses, key=itemgetter(1))


@dataclass(frozen=True)
class Run:
    """A trained run: its task, and the state whose parameters are used."""

    task: Any
    state: TrainState

    @classmethod
    def load(cls, workdir: Workdir, cache: Path, config: Config | None = None) -> "Run":
        """Load a run.

        Args:
            workdir: of the run.
            cache: folder of generated data.
            config: with other decoding or another mesh than that of the run; by default that of the
                run, on all devices.

        Raises:
            UsageError: a folder without a trained model, or a damaged one.
        """
        if config is None:
            config = replace(Config.read(workdir.load_config().to_dict()), mesh=MeshPart())
        task = TASKS[config.task].load(config, workdir, cache)
        return cls(task, restore(workdir, task).state)

    @property
    def config(self) -> Config:
        """Config of the run."""
        return self.task.config

    @property
    def tokenizers(self) -> Tokenizers:
        """Tokenizers of source and target: `encode` adds neither begin nor end."""
        return self.task.tokenizers

    @cached_property
    def model(self) -> nnx.Module:
        """The trained model, such as an `attention.modules.EncoderDecoder`."""
        return nnx.merge(self.task.learner.definition, one_copy(self.state.parameters))

    def predict(self, lines: Sequence[str]) -> Iterator[Prediction]:
        """Yield the answer to each line as `--mode=predict`, with details and errors.

        Raises:
            ValueError: a string in place of a list of them.
        """
        if isinstance(lines, str):
            raise ValueError("lines is one string: pass a list of strings")
        return self.task.predict(self.state, lines)

    def answer(self, lines: Sequence[str]) -> list[str]:
        """Return the answer to each line; of `task="translation"` the translation.

        Raises:
            ValueError: a line that the model cannot read.
        """
        answers = []
        for number, prediction in enumerate(self.predict(lines), start=1):
            if prediction.error:
                raise ValueError(f"line {number}: {prediction.error}")
            answers.append("".join(prediction.text))
        return answers

    translate = answer

    def save(self, folder: Path | str) -> None:
        """Save the model for `attention.weights.load`, which needs the extra `[weights]`.

        A model that a `TransformerConfig` alone does not describe, such as one with experts, is
        saved without a config: `load` then needs `model=`.
        """
        from attention.weights import save

        save(self.model, folder, config=without_own_fields(self.config.model))


def parameters_to_start_from(task: Any, cache: Path) -> dict[tuple[Any, ...], Any]:  # noqa: ANN401 - a task
    """Return the arrays in `train.start_from`, without those of `start_except`, by their paths.

    Raises:
        UsageError: a folder without a trained model, a model of another shape, of which the first
            parameters that differ are named, or a part in `start_except` that the model lacks.
    """
    train, mesh = task.config.train, task.config.mesh
    paths = [path for path, _ in nnx.to_flat_state(task.learner.abstract_state.parameters)]
    parts = {".".join(map(str, path[:end])) for path in paths for end in range(1, len(path) + 1)}
    for part in train.start_except:
        if part not in parts:
            hint = nearest(part, parts)
            raise UsageError(f"train.start_except: the model has no part {part!r}{hint}")
    there = dict(nnx.to_flat_state(_parameters(Path(train.start_from), cache, mesh)))
    here = {
        path: variable.shape
        for path, variable in nnx.to_flat_state(task.learner.abstract_state.parameters)
        if not is_within(".".join(map(str, path)), train.start_except)
    }
    found = {path: there[path].shape if path in there else "missing" for path in here}
    differing = [
        f"{'.'.join(map(str, path))} ({found[path]} there, {shape} here)"
        for path, shape in here.items()
        if found[path] != shape
    ]
    if differing:
        raise UsageError(
            f"the model of train.start_from={train.start_from} is another one: "
            f"{', '.join(differing[:3])}; {len(differing)} parameters differ, and "
            "train.start_except names parts that are not taken from there"
        )
    return {path: there[path][...] for path in here}


def _parameters(folder: Path, cache: Path, mesh: MeshPart) -> nnx.State:
    """Return the parameters in a folder; those of a run are restored onto this mesh."""
    run = Workdir(folder)
    if run.checkpoints.is_dir():
        config = replace(Config.read(run.load_config().to_dict()), mesh=mesh)
        return Run.load(run, cache, config).state.parameters
    try:
        from attention.weights import load

        with as_usage_errors("train.start_from: "):
            model = load(folder)
    except ModuleNotFoundError as error:
        raise UsageError(
            'released weights need an extra: pip install "attention-jax[weights]"'
        ) from error
    except FileNotFoundError as error:
        raise UsageError(
            f"train.start_from={folder} contains neither a trained run nor released weights"
        ) from error
    print(f"the tokens of {folder} are taken to be those of the data")
    return nnx.state(model)
