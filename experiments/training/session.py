"""Training in a workdir from its newest checkpoint, and the state that is used afterwards."""

import io
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

import jax
import numpy as np
from jax import Array

from experiments.checkpoint import Checkpoints
from experiments.config import Config
from experiments.config.train import TrainPart
from experiments.data.batches import TrainingBatches
from experiments.environment import bits_depend_on
from experiments.errors import DivergedError, Stopped, UsageError
from experiments.files import remove_abandoned, write_whole
from experiments.metrics import Metrics, read_metrics, start_wandb
from experiments.origin import origin
from experiments.processes import any_process, flags_array
from experiments.training.interruption import Interruption
from experiments.training.learner import Learner
from experiments.training.loop import BEGINNING, fit
from experiments.training.measurements import NonFiniteError
from experiments.training.plateau import best_step, out_of_patience
from experiments.training.profile import profiled
from experiments.training.step import TrainState
from experiments.workdir import Workdir

NAMED = 8  # examples of a batch in a sentence; its file has all


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
        losses = progress["losses"]
        last = best_step(losses) if config.train.patience and losses else int(newest.step)
        saved = math.ceil(last / config.train.checkpoint_interval)
        state = checkpoints.averaged(newest, min(config.train.average, saved), last)
        return cls(state, progress["seconds"], _has_ended(newest, progress, config))


def fit_in(
    workdir: Workdir,
    task: Trainable,
    batches: TrainingBatches,
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
            cannot be written, or `profile` or `wandb` cannot start.
        DivergedError: a loss or a gradient that is not finite.
        Stopped: by SIGTERM or Ctrl-C, after the state was saved.
    """
    config, learner = task.config, task.learner
    with workdir.alone(), _checkpoints(workdir, config) as checkpoints, Interruption() as stop:
        remove_abandoned(workdir.path)
        progress, lengths = BEGINNING, {}
        if checkpoints.latest_step() is None:
            _check_new(workdir, config.train)
            state = learner.initial_state(parameters)
        else:
            state, progress = checkpoints.restore(learner.abstract_state)
            state, lengths = learner.continued(state), progress["lengths"]
            warn_of_other_bits(workdir, progress["bits_depend_on"], bits_depend_on(learner.mesh))
        first, train_step = int(state.step), _with_flags(learner)
        if not _has_ended(state, progress, config):
            workdir.keep_start(origin())
            if profile:
                train_step = profiled(train_step, workdir.path, config.train.steps - first)
            if wandb and jax.process_index() == 0:
                start_wandb(wandb, workdir.path, config.to_dict())
        workdir.cut(lengths)

        def save(state: TrainState, progress: dict[str, Any]) -> None:
            found = {"lengths": workdir.lengths(), "bits_depend_on": bits_depend_on(learner.mesh)}
            checkpoints.save(learner.to_save(state), progress | found)

        with Metrics(workdir.path, step=first) as metrics:
            try:
                state, progress = fit(
                    state,
                    learner.batch_reader(batches),
                    train_step,
                    config=config.train,
                    metrics=metrics,
                    save=save,
                    evaluate=lambda state: task.validate(learner.to_use(state)),
                    sample=lambda state: _sample(workdir, task, learner.to_use(state)),
                    flops=learner.flops,
                    progress=progress,
                    stop=stop,
                )
            except NonFiniteError as error:
                why = _with_batch(error, workdir, batches, config)
                raise DivergedError(why) from error
            finally:
                checkpoints.wait()
        trained = Trained.of(checkpoints, learner.to_save(state), progress, config)
    if any_process(stop.requested):  # during the last save, or while a mean was read
        raise Stopped.at(int(state.step), config.train.steps)
    return trained


def _with_flags(learner: Learner) -> Callable[..., tuple[TrainState, dict[str, Array]]]:
    """Return the training step for requests that are not on the devices yet."""

    def train_step(state: TrainState, batch: Any, *requests: Sequence[bool]) -> Any:  # noqa: ANN401 - of any task
        flags = [flags_array(each, learner.mesh) for each in requests]
        return learner.train_step(state, batch, *flags)

    return train_step


def _sample(workdir: Workdir, task: Trainable, state: TrainState) -> Callable[[], str]:
    """Return a function that stores the sample of a state."""
    step, text = int(state.step), task.sample(state)

    def keep() -> str:
        return workdir.keep_sample(step, text)

    return keep


def _with_batch(
    error: NonFiniteError, workdir: Workdir, batches: TrainingBatches, config: Config
) -> str:
    """Store the whole batch of a step with a non-finite loss; return a sentence about both."""
    batch, members = batches[error.step - 1], np.array([], int)
    if hasattr(batches, "members"):
        members = batches.members(error.step - 1)
    flat = jax.tree.flatten_with_path(batch)[0]
    arrays = {jax.tree_util.keystr(path).strip("."): np.asarray(each) for path, each in flat}
    content = io.BytesIO()
    np.savez(content, step=error.step, examples=members, **arrays)
    write_whole(workdir.nonfinite_batch, content.getvalue())
    numbers = ", ".join(map(str, members[:NAMED].tolist())) + ", …" * (len(members) > NAMED)
    return (
        f"{error}: {workdir.nonfinite_batch} contains its batch"
        + (f", of the training examples {numbers}" if len(members) else "")
        + "; lower train.learning_rate or train.clip_norm in a new workdir"
        + ("" if config.train.skip_nonfinite else ", or set train.skip_nonfinite")
    )


def warn_of_other_bits(workdir: Workdir, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Report on standard error that the run continues where it computes other bits."""
    differing = [
        f"{name} {before.get(name)} before, {value} now"
        for name, value in now.items()
        if before.get(name) != value
    ]
    if differing:
        print(
            f"{workdir.path} continues with other rounding ({'; '.join(differing)}): its bits are "
            "not those of an unbroken run",
            file=sys.stderr,
        )


def restore(workdir: Workdir, task: Trainable) -> Trained:
    """Restore the state of a run that is measured and used.

    It is that of the newest checkpoint; with `train.patience`, that of the checkpoint with the
    lowest validation loss, if one was measured. Its parameters are their moving average, or the
    mean of those of the last `train.average` checkpoints up to there. If the run still trains and
    deletes one of them meanwhile, the newest are read again.

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


def _check_new(workdir: Workdir, train: TrainPart) -> None:
    """Refuse to start a run again whose checkpoints were deleted.

    Raises:
        UsageError: there are metrics of steps after the first checkpoint, by the longest interval
            that the run has had.
    """
    field = "train.evaluate_every" if train.patience else "train.checkpoint_every"
    changes = [row["changed"] for row in workdir.load_changes()]
    before = [changed[field][0] for changed in changes if field in changed]
    first = max([train.checkpoint_interval, *before])
    if any(row["step"] > first for row in read_metrics(workdir.path)):
        raise UsageError(
            f"the checkpoints of {workdir.path} are gone, and its metrics are left as they are: "
            "choose another --workdir"
        )


def _checkpoints(workdir: Workdir, config: Config, *, read_only: bool = False) -> Checkpoints:
    train = config.train
    return Checkpoints(
        workdir.checkpoints,
        every=train.checkpoint_interval,
        keep=train.average + train.patience,  # after the best, there are `patience` others
        keep_best=train.patience > 0,
        read_only=read_only,
    )


def _has_ended(newest: TrainState, progress: Mapping[str, Any], config: Config) -> bool:
    """Return whether the last step is done, or patience has ended the training."""
    if progress["left"]:
        return False
    patience = config.train.patience
    return int(newest.step) >= config.train.steps or out_of_patience(progress["losses"], patience)
