"""Training in a workdir, from its newest checkpoint to the last step, and restoring its state."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, Self

from experiments.config import Config
from experiments.errors import UsageError
from experiments.origin import origin
from experiments.training.checkpoint import Checkpoints
from experiments.training.learner import Learner
from experiments.training.loop import BEGINNING, Batches, fit
from experiments.training.metrics import Metrics
from experiments.training.plateau import best_step, out_of_patience
from experiments.training.profile import TRACED, WARM_UP, profiled
from experiments.training.sharding import replicated
from experiments.training.step import TrainState
from experiments.training.weights_and_biases import start_wandb
from experiments.workdir import Workdir


class Trainable(Protocol):
    """What is trained: a task of `experiments.tasks`.

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


class Trained(NamedTuple):
    """A run.

    Attributes:
        state: that is measured and used.
        seconds: of training.
        ended: whether it was trained to its end.
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
        """Choose the state that is used, as `restore` describes it."""
        last = best_step(progress["losses"]) if config.train.patience else int(newest.step)
        saved = math.ceil(last / config.train.checkpoint_every)
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
        UsageError: a workdir that is being trained already, or whose checkpoints are gone or
            damaged.
    """
    config, learner = task.config, task.learner
    with workdir.alone(), _checkpoints(workdir, config) as checkpoints:
        progress = BEGINNING
        if checkpoints.latest_step() is None:
            workdir.check_fresh(config.train.checkpoint_every)
            state = learner.initial_state(parameters)
        else:
            state, progress = checkpoints.restore(learner.abstract_state)
            state = replicated(state, config.batch.microbatches)
        if not _has_ended(state, progress, config):
            workdir.keep_start(origin())
        workdir.drop_samples(int(state.step))
        left = config.train.steps - int(state.step)
        if profile and left < WARM_UP + TRACED:
            raise UsageError(
                f"--profile needs {WARM_UP + TRACED} more steps, and the run has {left}"
            )
        run = start_wandb(wandb, workdir.path, config.to_dict()) if wandb else None
        step = learner.train_step
        if profile:
            step = profiled(step, workdir.path / "profile")
        with Metrics(workdir.path, step=int(state.step), wandb=run) as metrics:
            state, progress = fit(
                state,
                batches,
                step,
                config=config.train,
                metrics=metrics,
                checkpoints=checkpoints,
                evaluate=lambda state: task.validate(state.to_use()),
                sample=lambda state: workdir.keep_sample(
                    int(state.step), task.sample(state.to_use())
                ),
                flops=learner.flops,
                progress=progress,
            )
        return Trained.of(checkpoints, state, progress, config)


def restore(workdir: Workdir, task: Trainable) -> Trained:
    """Restore the state of a run that is measured and used.

    It is that of the newest checkpoint, or of the one with the lowest validation loss where
    `train.patience` waits for a lower one; its parameters are their moving average, or the mean of
    those of the last `train.average` checkpoints up to there.

    Raises:
        UsageError: the run has no checkpoint yet, or its newest is damaged.
    """
    with _checkpoints(workdir, task.config) as checkpoints:
        found = checkpoints.restore(task.learner.abstract_state)
        return Trained.of(checkpoints, *found, task.config)


def _checkpoints(workdir: Workdir, config: Config) -> Checkpoints:
    # Behind the best there are as many as its patience waits for.
    return Checkpoints(workdir.checkpoints, keep=config.train.average + config.train.patience)


def _has_ended(newest: TrainState, progress: Mapping[str, Any], config: Config) -> bool:
    """Whether it is trained as long as it should be: patience may end sooner than the steps."""
    patience = config.train.patience
    return int(newest.step) >= config.train.steps or out_of_patience(progress["losses"], patience)
