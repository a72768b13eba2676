"""A trained run: the state that is measured and used, and its model in Python."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from flax import nnx

from experiments.checkpoint import Progress, mean_of_checkpoints, read_newest, saved_steps
from experiments.config import Config
from experiments.config.parts import MeshPart, TrainPart, without_own_fields
from experiments.data.tokenizers import Tokenizers
from experiments.errors import UsageError, as_usage_errors, one_of
from experiments.learner import TrainState
from experiments.registry import TASKS
from experiments.sharding import one_copy
from experiments.tasks.prediction import Prediction
from experiments.workdir import Workdir

Losses = Sequence[tuple[int, float]]  # step and monitored loss of each evaluation, oldest first


class Trained(NamedTuple):
    """A trained model.

    Attributes:
        state: that is measured and used.
        seconds: of training.
        ended: whether the training has ended.
    """

    state: TrainState
    seconds: float
    ended: bool


def restore(workdir: Workdir, task: Any) -> Trained:  # noqa: ANN401 - a task
    """Restore the state of a run that is measured and used, as `chosen`.

    If the run still trains and deletes a checkpoint meanwhile, the newest are read again.

    Raises:
        UsageError: the run has no checkpoint yet, or its newest is damaged.
    """
    while True:
        steps = saved_steps(workdir.checkpoints)
        newest, progress = read_newest(workdir.checkpoints, task.learner.abstract_state)
        try:
            return chosen(workdir, newest, progress, task.config.train)
        except UsageError:
            if saved_steps(workdir.checkpoints)[-1:] == steps[-1:]:
                raise


def chosen(workdir: Workdir, newest: TrainState, progress: Progress, train: TrainPart) -> Trained:
    """Return the state that is used, given the newest one.

    With `train.patience`, it is that of the checkpoint with the lowest validation loss, if one was
    measured. Its parameters are their moving average, or the mean of those of the last
    `train.average` checkpoints up to there.

    Raises:
        UsageError: as `mean_of_checkpoints`.
    """
    losses, every = progress.losses, train.checkpoint_interval
    last = best_step(losses) if train.patience and losses else int(newest.step)
    number = min(train.average, math.ceil(last / every))
    state = mean_of_checkpoints(workdir.checkpoints, newest, number=number, last=last, every=every)
    return Trained(state, progress.seconds, is_finished(int(newest.step), losses, train))


def is_finished(step: int, losses: Losses, train: TrainPart) -> bool:
    """Return whether the last step is done, or `train.patience` evaluations came after the best."""
    since = sum(later > best_step(losses) for later, _ in losses)
    return step >= train.steps or 0 < train.patience <= since


def best_step(losses: Losses) -> int:
    """Return the step of the lowest loss, the first of several."""
    return min(losses, key=lambda evaluation: evaluation[1])[0]


def monitored_loss(measured: Mapping[str, float], train: TrainPart) -> float:
    """Return the value of the validation split that training follows, negated if higher is better.

    Raises:
        UsageError: there is no such value.
    """
    with as_usage_errors():
        one_of("train.monitor", train.monitor, tuple(measured))
    return measured[train.monitor] * (1 if train.is_lower_better else -1)


@dataclass(frozen=True)
class Run:
    """A trained run.

    Attributes:
        task: of the run.
        state: of the training, whose parameters are used.
    """

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
        """Yield the answer to each line as `--mode=predict`, with details and errors."""
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
