"""Training in a workdir: from where it stands to its last step, everything left there."""

from collections.abc import Callable, Mapping, Sequence

import grain.python as grain
from ml_collections import ConfigDict

from experiments.analysis.pictures import draw_learning_curve
from experiments.errors import UsageError, check_at_least
from experiments.results import Scores, report
from experiments.training.checkpoint import Checkpoints
from experiments.training.learner import Learner
from experiments.training.loop import fit
from experiments.training.metrics import Metrics
from experiments.training.optimizer import optimizer
from experiments.training.step import Batch, TrainState
from experiments.workdir import Workdir

AT_LEAST_ONE = (
    "steps",
    "log_every",
    "evaluate_every",
    "sample_every",
    "checkpoint_every",
    "average",
)

Measure = Callable[[TrainState], Mapping[str, Scores]]


def check_training(config: ConfigDict) -> None:
    """Refuses a configuration by which nothing can be trained.

    Raises:
        UsageError: in one sentence.
    """
    train = config.train
    if "label_smoothing" in train and not 0 <= train.label_smoothing < 1:
        raise UsageError(f"train.label_smoothing must lie in [0, 1), got {train.label_smoothing}")
    if not 0 <= config.seed < 2**32:
        raise UsageError(f"seed must lie in [0, 2**32), got {config.seed}")
    try:
        for name in AT_LEAST_ONE:
            check_at_least(f"train.{name}", train[name], 1)
        optimizer(train)
    except ValueError as error:
        raise UsageError(str(error)) from error


def train_in(
    workdir: Workdir,
    learner: Learner,
    batches: grain.DatasetIterator[Batch],
    validation: Sequence[Batch],
    sample: Callable[[TrainState], str],
    measure: Measure,
    config: ConfigDict,
) -> TrainState:
    """Trains a model, or goes on from where its workdir stands, to the last step, and measures it.

    Args:
        workdir: where checkpoints, metrics, samples, the learning curve and results go.
        learner: the model.
        batches: one for each step; its state is saved with each checkpoint.
        validation: the batches that are measured on the way.
        sample: shows what the model can do.
        measure: its scores at the end, by name.
        config: of the run; `train` of it is what `fit` reads.

    Returns:
        The last state, its parameters the mean of those of the last `train.average` checkpoints.

    Raises:
        UsageError: a workdir whose checkpoints are gone or damaged.
    """
    average = config.train.average
    with Checkpoints(workdir.checkpoints, keep=average) as checkpoints:
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
        state = checkpoints.averaged(state, average)
    draw_learning_curve(workdir.path, workdir.learning_curve)
    report(config, workdir, learner, state, seconds, measure(state))
    return state


def evaluate_in(
    workdir: Workdir, learner: Learner, measure: Measure, config: ConfigDict
) -> TrainState:
    """Measures the newest checkpoint of a run; its results file is written again.

    Args:
        workdir: of the run.
        learner: the model.
        measure: its scores, by name.
        config: of the run.

    Returns:
        The state that was measured.

    Raises:
        UsageError: as `restore`.
    """
    state, seconds = _newest(workdir, learner, config)
    report(config, workdir, learner, state, seconds, measure(state))
    return state


def restore(workdir: Workdir, learner: Learner, config: ConfigDict) -> TrainState:
    """The newest training state of a run, with the parameters that `train_in` returned.

    Raises:
        UsageError: the run has no checkpoint yet, or its newest is damaged.
    """
    state, _ = _newest(workdir, learner, config)
    return state


def _newest(workdir: Workdir, learner: Learner, config: ConfigDict) -> tuple[TrainState, float]:
    with Checkpoints(workdir.checkpoints, keep=config.train.average) as checkpoints:
        state, progress = checkpoints.restore(learner.abstract_state)
        return checkpoints.averaged(state, config.train.average), progress["seconds"]
