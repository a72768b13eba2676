"""Training in a workdir: from where it stands to its last step, everything left there."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import grain.python as grain

from experiments.analysis.pictures import draw_learning_curve
from experiments.config import Config
from experiments.errors import as_usage_errors, one_of
from experiments.origin import origin
from experiments.results import Scores, report
from experiments.training.checkpoint import Checkpoints
from experiments.training.learner import Learner
from experiments.training.loop import BEGINNING, fit
from experiments.training.metrics import Metrics
from experiments.training.plateau import best_step, out_of_patience
from experiments.training.sharding import replicated
from experiments.training.step import Batch, TrainState
from experiments.workdir import Workdir

Measure = Callable[[TrainState], Mapping[str, Scores]]


def train_in(
    workdir: Workdir,
    learner: Learner,
    batches: grain.DatasetIterator[Batch],
    validation: Sequence[Batch],
    sample: Callable[[TrainState], str],
    measure: Measure,
    config: Config,
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
        The state that `restore` returns.

    Raises:
        UsageError: a workdir that is being trained already, whose checkpoints are gone, or they or
            its results are damaged.
    """
    before = _results(workdir)
    with workdir.alone(), _checkpoints(workdir, config) as checkpoints:
        progress = BEGINNING
        if checkpoints.latest_step() is None:
            workdir.check_fresh(config.train.checkpoint_every)
            state = learner.initial_state()
        else:
            state, progress = checkpoints.restore(learner.abstract_state)
            state = replicated(state, config.batch.microbatches)
            batches.set_state(progress["batches"])
        if not _has_ended(state, progress, config):
            workdir.keep_start(origin())
        workdir.drop_samples(int(state.step))
        with Metrics(workdir.path, step=int(state.step)) as metrics:
            state, progress = fit(
                state,
                batches,
                learner.train_step,
                config=config.train,
                metrics=metrics,
                checkpoints=checkpoints,
                evaluate=lambda state: learner.losses(state.to_use().parameters, validation),
                sample=lambda state: workdir.keep_sample(int(state.step), sample(state.to_use())),
                progress=progress,
            )
        chosen = _Chosen.of(checkpoints, state, progress, config)
    draw_learning_curve(workdir.path, workdir.learning_curve)
    report(config, workdir, learner, *chosen, measure(chosen.state), before)
    return chosen.state


def measured(
    split: str | None, tests: Sequence[str], known: Sequence[str] | None = None
) -> Sequence[str]:
    """Which splits are measured: the one that a person asks for, else all that test.

    Args:
        split: what a person asks for, if anything.
        tests: the splits that test.
        known: the splits that can be asked for, `tests` by default.

    Raises:
        UsageError: another one.
    """
    if split is None:
        return tests
    with as_usage_errors():
        one_of("--split", split, tests if known is None else known)
    return (split,)


def evaluate_in(workdir: Workdir, learner: Learner, measure: Measure, config: Config) -> TrainState:
    """Measures a run that was trained, as `restore` reads it; its results file is written again.

    Args:
        workdir: of the run.
        learner: the model.
        measure: its scores, by name.
        config: of the run.

    Returns:
        The state that was measured.

    Raises:
        UsageError: as `restore`, or damaged results.
    """
    before = _results(workdir)
    chosen = _newest(workdir, learner, config)
    report(config, workdir, learner, *chosen, measure(chosen.state), before)
    return chosen.state


def _results(workdir: Workdir) -> dict[str, Any]:
    """What is known so far, read before anything is measured, for it may be damaged."""
    return workdir.load_results() if workdir.results.exists() else {}


def restore(workdir: Workdir, learner: Learner, config: Config) -> TrainState:
    """The training state of a run that is measured and used.

    It is that of the newest checkpoint, or of the one with the lowest validation loss where
    `train.patience` waits for a lower one; its parameters are their moving average, or the mean of
    those of the last `train.average` checkpoints up to there.

    Raises:
        UsageError: the run has no checkpoint yet, or its newest is damaged.
    """
    return _newest(workdir, learner, config).state


def _newest(workdir: Workdir, learner: Learner, config: Config) -> "_Chosen":
    with _checkpoints(workdir, config) as checkpoints:
        return _Chosen.of(checkpoints, *checkpoints.restore(learner.abstract_state), config)


def _checkpoints(workdir: Workdir, config: Config) -> Checkpoints:
    # Behind the best there are as many as its patience waits for.
    return Checkpoints(workdir.checkpoints, keep=config.train.average + config.train.patience)


class _Chosen(NamedTuple):
    """What is measured and used, the seconds of training, and whether that came to its end."""

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
        last = best_step(progress["losses"]) if config.train.patience else int(newest.step)
        saved = math.ceil(last / config.train.checkpoint_every)
        state = checkpoints.averaged(newest, min(config.train.average, saved), last)
        return cls(state, progress["seconds"], _has_ended(newest, progress, config))


def _has_ended(newest: TrainState, progress: Mapping[str, Any], config: Config) -> bool:
    """Whether it is trained as long as it should be: patience may end sooner than the steps."""
    patience = config.train.patience
    return int(newest.step) >= config.train.steps or out_of_patience(progress["losses"], patience)
