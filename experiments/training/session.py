"""Training in a workdir from its newest checkpoint, and the state that is used afterwards."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, Self

from experiments.config import Config
from experiments.errors import UsageError
from experiments.origin import origin
from experiments.training.checkpoint import Checkpoints
from experiments.training.learner import Learner
from experiments.training.loop import BEGINNING, Batches, fit
from experiments.training.metrics import Metrics, read_metrics
from experiments.training.plateau import best_step, out_of_patience
from experiments.training.profile import profiled
from experiments.training.step import TrainState
from experiments.training.weights_and_biases import start_wandb
from experiments.workdir import Workdir


class Trainable(Protocol):
    """A task of `experiments.tasks`.

    Attributes:
        config: of the run.
    """

    config: Config

    @property
    def learner(self) -> Learner:
        """Model, loss and optimizer."""

    def validate(self, state: TrainState) -> dict[str, float]:
        """Measure the validation split."""

    def sample(self, state: TrainState) -> str:
        """Show in a few lines what the model can do."""

    def sample_maps(self, state: TrainState) -> Mapping[str, Any]:
        """Return the attention of a validation example and the step, as JSON values."""


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

    @classmethod
    def of(
        cls,
        checkpoints: Checkpoints,
        newest: TrainState,
        progress: Mapping[str, Any],
        config: Config,
    ) -> Self:
        """Choose the state that is used; see `restore`."""
        last = best_step(progress["losses"]) if config.train.patience else int(newest.step)
        saved = math.ceil(last / config.train.checkpoint_interval)
        state = checkpoints.averaged(newest, min(config.train.average, saved), last)
        return cls(state, progress["seconds"], _has_ended(newest, progress, config))


def fit_in(
    workdir: Workdir,
    task: Trainable,
    batches: Batches,
    parameters: Mapping[Any, Any],
    *,
    profile: bool = False,
    wandb: str | None = None,
) -> Trained:
    """Train a model from the newest checkpoint of its workdir, or from the start, to the last step.

    Args:
        workdir: where checkpoints, metrics and samples go.
        task: what is trained.
        batches: the batch of each step.
        parameters: arrays by path that replace initial ones; unused if there is a checkpoint.
        profile: whether some steps are traced into the folder `profile`.
        wandb: project of Weights & Biases that takes the metrics too.

    Returns:
        What `restore` returns.

    Raises:
        UsageError: another process trains this run, its checkpoints are missing or damaged, or
            `profile` or `wandb` cannot start.
    """
    config, learner = task.config, task.learner
    with workdir.alone(), _checkpoints(workdir, config) as checkpoints:
        progress = BEGINNING
        if checkpoints.latest_step() is None:
            _check_new(workdir, config.train.checkpoint_interval)
            state = learner.initial_state(parameters)
        else:
            state, progress = checkpoints.restore(learner.abstract_state)
        first, train_step, run = int(state.step), learner.train_step, None
        if not _has_ended(state, progress, config):
            workdir.keep_start(origin())
            if profile:
                train_step = profiled(train_step, workdir.path, config.train.steps - first)
            if wandb:
                run = start_wandb(wandb, workdir.path, config.to_dict())
        workdir.drop_samples(first)
        if config.train.sample_maps and first == 0:
            workdir.keep_maps(task.sample_maps(state.to_use()))

        def sample(state: TrainState) -> str:
            state = state.to_use()
            if config.train.sample_maps:
                workdir.keep_maps(task.sample_maps(state))
            return workdir.keep_sample(int(state.step), task.sample(state))

        with Metrics(workdir.path, step=first, wandb=run) as metrics:
            state, progress = fit(
                state,
                batches,
                train_step,
                config=config.train,
                metrics=metrics,
                checkpoints=checkpoints,
                evaluate=lambda state: task.validate(state.to_use()),
                sample=sample,
                flops=learner.flops,
                progress=progress,
            )
        return Trained.of(checkpoints, state, progress, config)


def restore(workdir: Workdir, task: Trainable) -> Trained:
    """Restore the state of a run that is measured and used.

    It is that of the newest checkpoint, or of the one with the lowest validation loss where
    `train.patience` waits for a lower one; its parameters are their moving average, or the mean of
    those of the last `train.average` checkpoints up to there. If the run still trains and deletes
    one of them meanwhile, the newest are read again.

    Raises:
        UsageError: the run has no checkpoint yet, or its newest is damaged.
    """
    failed = -1
    while True:
        with _checkpoints(workdir, task.config, read_only=True) as checkpoints:
            step = checkpoints.latest_step()
            try:
                found = checkpoints.restore(task.learner.abstract_state)
                return Trained.of(checkpoints, *found, task.config)
            except UsageError:
                if step in (None, failed):
                    raise
                failed = step


def _check_new(workdir: Workdir, interval: int) -> None:
    """Refuse to start a run again whose checkpoints were deleted.

    Raises:
        UsageError: there are metrics of steps after the first checkpoint.
    """
    if any(row["step"] > interval for row in read_metrics(workdir.path)):
        raise UsageError(
            f"the checkpoints of {workdir.path} are gone, and its metrics are left as they are: "
            "choose another --workdir"
        )


def _checkpoints(workdir: Workdir, config: Config, *, read_only: bool = False) -> Checkpoints:
    # Behind the best there are as many as its patience waits for.
    keep = config.train.average + config.train.patience
    return Checkpoints(workdir.checkpoints, keep=keep, read_only=read_only)


def _has_ended(newest: TrainState, progress: Mapping[str, Any], config: Config) -> bool:
    """Return whether the last step is done, or patience has ended the training."""
    patience = config.train.patience
    return int(newest.step) >= config.train.steps or out_of_patience(progress["losses"], patience)
