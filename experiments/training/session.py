"""Training in a workdir: from where it stands to its last step, everything left there."""

from collections.abc import Callable, Sequence

import grain.python as grain
from ml_collections import ConfigDict

from experiments.analysis.pictures import draw_learning_curve
from experiments.errors import UsageError
from experiments.training.checkpoint import Checkpoints
from experiments.training.learner import Learner
from experiments.training.loop import fit
from experiments.training.metrics import Metrics
from experiments.training.optimizer import optimizer
from experiments.training.step import Batch, TrainState
from experiments.workdir import Workdir


def check_training(config: ConfigDict) -> None:
    """Refuses a configuration by which nothing can be trained.

    Raises:
        UsageError: in one sentence.
    """
    train = config.train
    for name in ("steps", "log_every", "evaluate_every", "sample_every", "checkpoint_every"):
        if train[name] < 1:
            raise UsageError(f"train.{name} must be at least 1, got {train[name]}")
    if "label_smoothing" in train and not 0 <= train.label_smoothing < 1:
        raise UsageError(f"train.label_smoothing must lie in [0, 1), got {train.label_smoothing}")
    if not 0 <= config.seed < 2**32:
        raise UsageError(f"seed must lie in [0, 2**32), got {config.seed}")
    try:
        optimizer(train)
    except ValueError as error:
        raise UsageError(str(error)) from error


def train_in(
    workdir: Workdir,
    learner: Learner,
    batches: grain.DatasetIterator[Batch],
    validation: Sequence[Batch],
    sample: Callable[[TrainState], str],
    config: ConfigDict,
) -> tuple[TrainState, float]:
    """Trains a model, or goes on from where its workdir stands, to the last step.

    Args:
        workdir: where checkpoints, metrics, samples and the learning curve go.
        learner: the model.
        batches: one for each step; its state is saved with each checkpoint.
        validation: the batches that are measured on the way.
        sample: shows what the model can do.
        config: `train` of it is what `fit` reads.

    Returns:
        The last state, and the seconds of training in all.

    Raises:
        UsageError: a workdir whose checkpoints are gone or damaged.
    """
    with Checkpoints(workdir.checkpoints) as checkpoints:
        seconds = 0.0
        if checkpoints.latest_step() is None:
            workdir.check_fresh(config.train.checkpoint_every)
            state = learner.initial_state()
        else:
            state, progress = checkpoints.restore(learner.abstract_state)
            batches.set_state(progress["batches"])
            seconds = progress["seconds"]
        with Metrics(workdir.path, step=int(state.step)) as metrics:
            state, seconds = fit(
                state,
                batches,
                learner.train_step,
                config=config.train,
                metrics=metrics,
                checkpoints=checkpoints,
                evaluate=lambda state: learner.losses(state.parameters, validation),
                sample=lambda state: workdir.keep_sample(int(state.step), sample(state)),
                seconds=seconds,
            )
    draw_learning_curve(workdir.path, workdir.learning_curve)
    return state, seconds


def restore(workdir: Workdir, learner: Learner) -> tuple[TrainState, float]:
    """The newest training state of a run, and its seconds of training.

    Raises:
        UsageError: the run has no checkpoint yet, or its newest is damaged.
    """
    with Checkpoints(workdir.checkpoints) as checkpoints:
        state, progress = checkpoints.restore(learner.abstract_state)
    return state, progress["seconds"]
