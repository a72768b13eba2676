"""Training in a workdir: from where it stands to its last step, everything left there."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from ml_collections import ConfigDict

from attention.primitives.choice import one_of
from experiments.analysis.pictures import draw_learning_curve
from experiments.errors import UsageError, as_usage_errors, check_at_least, check_seed, check_share
from experiments.origin import origin
from experiments.results import Scores, report
from experiments.training.checkpoint import Checkpoints
from experiments.training.duration import check_duration, check_steps, provisional
from experiments.training.learner import Learner
from experiments.training.loop import BEGINNING, Batches, fit
from experiments.training.metrics import Metrics
from experiments.training.optimizer import optimizer
from experiments.training.plateau import best_step, out_of_patience
from experiments.training.sharding import replicated
from experiments.training.step import Batch, TrainState
from experiments.workdir import Workdir

AT_LEAST_ONE = (
    "steps",
    "log_every",
    "evaluate_every",
    "sample_every",
    "checkpoint_every",
    "average",
    "microbatches",
    "plateau_patience",
)
DTYPES = ("float32", "bfloat16")

Measure = Callable[[TrainState], Mapping[str, Scores]]


def check_training(config: ConfigDict) -> None:
    """Refuses a configuration by which nothing can be trained.

    Raises:
        UsageError: in one sentence.
    """
    train = config.train
    with as_usage_errors():
        check_seed("seed", config.seed)
        one_of("train.dtype", train.dtype, DTYPES)
        check_duration(train.duration)
        for name in AT_LEAST_ONE:
            check_at_least(f"train.{name}", train[name], 1)
        check_at_least("train.patience", train.patience, 0)
        check_share("train.ema", train.ema)
        check_share("train.label_smoothing", train.get("label_smoothing", 0.0))
        check_steps(train.steps)
        optimizer(provisional(config).train)
    if not 0 <= train.get("z_loss", 0.0) < math.inf:
        raise UsageError(f"train.z_loss must be a number from 0, got {train.z_loss}")
    if not 0 < train.plateau_factor < 1:
        raise UsageError(f"train.plateau_factor must lie in (0, 1), got {train.plateau_factor}")
    if train.ema and train.average > 1:
        raise UsageError(
            f"train.ema={train.ema} and train.average={train.average} are two averages of the same "
            "parameters: choose one, with train.average=1 or train.ema=0.0"
        )
    if train.patience and train.evaluate_every != train.checkpoint_every:
        raise UsageError(
            f"with train.patience={train.patience} what was evaluated is kept: "
            f"train.checkpoint_every={train.checkpoint_every} must be "
            f"train.evaluate_every={train.evaluate_every}"
        )
    if train.schedule == "plateau" and 0 < train.patience <= train.plateau_patience:
        raise UsageError(
            f"train.patience={train.patience} ends the training before train.plateau_patience="
            f"{train.plateau_patience} lowers the learning rate: raise the one or lower the other"
        )


def train_in(
    workdir: Workdir,
    learner: Learner,
    batches: Batches,
    validation: Sequence[Batch],
    sample: Callable[[TrainState], str],
    measure: Measure,
    config: ConfigDict,
) -> TrainState:
    """Trains a model, or goes on from where its workdir stands, to the last step, and measures it.

    Args:
        workdir: where checkpoints, metrics, samples, the learning curve and results go.
        learner: the model.
        batches: the batch of each step.
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
            state = replicated(state, config.train.microbatches)
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


def evaluate_in(
    workdir: Workdir, learner: Learner, measure: Measure, config: ConfigDict
) -> TrainState:
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


def restore(workdir: Workdir, learner: Learner, config: ConfigDict) -> TrainState:
    """The training state of a run that is measured and used.

    It is that of the newest checkpoint, or of the one with the lowest validation loss where
    `train.patience` waits for a lower one; its parameters are their moving average, or the mean of
    those of the last `train.average` checkpoints up to there.

    Raises:
        UsageError: the run has no checkpoint yet, or its newest is damaged.
    """
    return _newest(workdir, learner, config).state


def _newest(workdir: Workdir, learner: Learner, config: ConfigDict) -> "_Chosen":
    with _checkpoints(workdir, config) as checkpoints:
        return _Chosen.of(checkpoints, *checkpoints.restore(learner.abstract_state), config)


def _checkpoints(workdir: Workdir, config: ConfigDict) -> Checkpoints:
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
        config: ConfigDict,
    ) -> Self:
        last = best_step(progress["losses"]) if config.train.patience else int(newest.step)
        saved = math.ceil(last / config.train.checkpoint_every)
        state = checkpoints.averaged(newest, min(config.train.average, saved), last)
        return cls(state, progress["seconds"], _has_ended(newest, progress, config))


def _has_ended(newest: TrainState, progress: Mapping[str, Any], config: ConfigDict) -> bool:
    """Whether it is trained as long as it should be: patience may end sooner than the steps."""
    patience = config.train.patience
    return int(newest.step) >= config.train.steps or out_of_patience(progress["losses"], patience)
