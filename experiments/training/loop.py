"""The training loop."""

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax import Array
from tqdm import tqdm

from experiments.config.train import MONITORED, TrainPart
from experiments.errors import Stopped
from experiments.metrics import Metrics
from experiments.training.interruption import Interruption
from experiments.training.measurements import NonFiniteError, Requests, Speed, StepMeasurements
from experiments.training.plateau import best_step, monitored_loss, out_of_patience
from experiments.training.step import TrainState

# What a checkpoint contains beside the state: seconds of training; the monitored losses with their
# steps; the measurements of steps after the last row of metrics; steps in a row that were skipped;
# what is still to be measured of the state.
BEGINNING: Mapping[str, Any] = MappingProxyType(
    {"seconds": 0.0, "losses": (), "pending": (), "skipped": 0, "left": ()}
)
EVALUATION, SAMPLE = "evaluation", "sample"


def fit(
    state: TrainState,
    read_batch: Callable[[int], tuple[Any, int]],
    train_step: Callable[..., tuple[TrainState, dict[str, Array]]],
    *,
    config: TrainPart,
    metrics: Metrics,
    save: Callable[[TrainState, dict[str, Any]], None],
    evaluate: Callable[[TrainState], dict[str, float]],
    sample: Callable[[TrainState], Callable[[], str]],
    flops: Callable[[Any, int], float],
    progress: Mapping[str, Any] = BEGINNING,
    stop: Interruption | None = None,
) -> tuple[TrainState, dict[str, Any]]:
    """Train from the step of `state` to step `config.steps`, or until `config.patience` ends.

    Args:
        state: the training state; its memory is reused.
        read_batch: returns the batch of a step, counted from 0, and the number of its rows.
        train_step: of `make_steps`; with requests if there are several processes.
        config: steps, the intervals between measurements, samples and checkpoints, the monitored
            value and patience.
        metrics: takes the measurements.
        save: takes the states, each with its progress.
        evaluate: measures the validation split.
        sample: shows what the model can do: returns a function that stores and returns a text.
        flops: of the training step on a batch of so many rows.
        progress: of the newest checkpoint, if the run is resumed.
        stop: ends the training after a step, or in a measurement, which the resumed run repeats.

    Returns:
        The last state, and its progress, as in `BEGINNING`.

    Raises:
        NonFiniteError: a loss or a gradient that is not finite; earlier checkpoints stay.
        Stopped: by `stop`, after the state was saved.
        UsageError: before the first step, a monitored value that no evaluator measures.
    """
    stop = stop or Interruption()
    loop = _Loop(state, config, metrics, save, evaluate, sample, progress, stop)
    try:
        _run(loop, read_batch, train_step, config, flops, stop)
    except NonFiniteError as error:
        loop.write_nonfinite(error.step)
        raise
    return loop.state, loop.saved if loop.is_saved else loop.progress


def _run(
    loop: "_Loop",
    read_batch: Callable[[int], tuple[Any, int]],
    train_step: Callable[..., tuple[TrainState, dict[str, Array]]],
    config: TrainPart,
    flops: Callable[[Any, int], float],
    stop: Interruption,
) -> None:
    how = {"unit": "step", "mininterval": 0.5, "disable": jax.process_index() > 0}
    with tqdm(total=config.steps, initial=loop.step, **how) as bar:
        try:
            # An unknown name ends the run at step 0.
            if not loop.losses and config.monitor not in MONITORED:
                monitored_loss(loop.evaluate(), config)
            loop.finish_step(bar)
            while loop.step < config.steps:
                if out_of_patience(loop.losses, config.patience):
                    best = best_step(loop.losses)
                    bar.write(f"the best validation {config.monitor} is of step {best:,}")
                    break
                batch, num_rows = read_batch(loop.step)
                loop.take_step(train_step, batch, flops(batch, num_rows))
                bar.update()
                loop.write_row(bar)
                loop.finish_step(bar)
            with stop.raising():  # a stop that was asked for too late for the last steps
                pass
        except Stopped:
            loop.save_stopped()
            raise Stopped.at(loop.step, config.steps) from None


class _Loop:
    """A training between two steps; the arguments are those of `fit`."""

    def __init__(
        self,
        state: TrainState,
        config: TrainPart,
        metrics: Metrics,
        save: Callable[[TrainState, dict[str, Any]], None],
        evaluate: Callable[[TrainState], dict[str, float]],
        sample: Callable[[TrainState], Callable[[], str]],
        progress: Mapping[str, Any],
        stop: Interruption,
    ) -> None:
        self.state, self.step = state, int(state.step)
        self.losses = [(step, loss) for step, loss in progress["losses"]]
        self._config, self._metrics, self._save = config, metrics, save
        self._evaluate, self._sample, self._stop = evaluate, sample, stop
        self._started = time.perf_counter() - progress["seconds"]
        self._left = [*progress["left"]]
        self.saved, self._saved_step, self._saved_at = progress, self.step, time.monotonic()
        self._measured = StepMeasurements(
            progress["pending"], progress["skipped"], config.skip_nonfinite
        )
        self._speed = Speed()

    @property
    def progress(self) -> dict[str, Any]:
        return {
            "seconds": time.perf_counter() - self._started,
            "losses": [*self.losses],  # copies: a checkpoint is written in the background
            "pending": [*self._measured.pending],
            "skipped": self._measured.skipped,
            "left": [*self._left],
        }

    @property
    def is_saved(self) -> bool:
        return self.step == self._saved_step

    def take_step(
        self,
        train_step: Callable[..., tuple[TrainState, dict[str, Array]]],
        batch: Any,  # noqa: ANN401 - what `train_step` takes
        work: float,
    ) -> None:
        requests = () if jax.process_count() == 1 else (self._own_requests,)
        self.state, measured = train_step(self.state, batch, *requests)
        self.step += 1
        self._measured.add(self.step, measured)
        self._speed.add(work)
        due = (EVALUATION, self._config.evaluate_every), (SAMPLE, self._config.sample_every)
        self._left = [name for name, interval in due if self._is_due(interval)]

    def write_row(self, bar: tqdm) -> None:
        """Write means over the steps since the last row, where one is due."""
        config = self._config
        if not self._is_due(config.log_every) and not self._is_due(config.checkpoint_interval):
            return
        self._measured.collect()
        self._speed.pause()
        row = self._measured.row()
        speed = self._speed.row(self._measured.pending, [*self.state.step.devices()])
        self._metrics.write(self.step, "train", row)
        self._metrics.write_timing(self.step, speed)
        bar.set_postfix_str(f"loss {row['loss']:.3f}, {speed['tokens_per_second']:,.0f} tokens/s")
        self._measured.pending.clear()
        self._speed = Speed()

    def evaluate(self) -> dict[str, float]:
        """Measure the validation split, unless a stop is asked for."""
        with self._stop.raising():
            return self._evaluate(self.state)

    def finish_step(self, bar: tqdm) -> None:
        """Measure what is left to measure of the state, and save it where this is due."""
        config, is_measured = self._config, bool(self._left)
        is_changed = is_measured or not self.is_saved
        is_due = is_changed and (self._requests.save or self._is_due(config.checkpoint_interval))
        if is_measured or is_due:
            self._measured.collect()  # speeds are those of the steps alone
            self._speed.pause()
            while self._left:
                self._measure(bar)
            if is_due:
                self._save_state()
            self._speed.resume()
        if self._requests.stop:
            raise Stopped

    def write_nonfinite(self, step: int) -> None:
        """Write a last row, whose last step is one with a loss or gradient that is not finite."""
        self._metrics.write(step, "train", self._measured.row())

    def save_stopped(self) -> None:
        """Save the state, unless the newest checkpoint has the same."""
        if not self.is_saved:
            self._save_state()

    @property
    def _own_requests(self) -> Requests:
        minutes = (time.monotonic() - self._saved_at) / 60
        is_due = 0 < self._config.checkpoint_minutes <= minutes
        return Requests(save=is_due, stop=self._stop.requested)

    @property
    def _requests(self) -> Requests:
        """Requests that are followed now: of several processes, those that a step has collected."""
        return self._own_requests if jax.process_count() == 1 else self._measured.requests

    def _measure(self, bar: tqdm) -> None:
        """Measure the first of what is left; a stop within it leaves no trace of it."""
        config, step = self._config, self.step
        if self._left[0] == SAMPLE:
            with self._stop.raising():
                keep = self._sample(self.state)
            bar.write(keep())
        else:
            evaluated = self.evaluate()
            self.losses.append((step, monitored_loss(evaluated, config)))
            _check_finite("loss", evaluated["loss"], step)
            _check_finite(config.monitor, self.losses[-1][1], step)
            self._metrics.write(step, "validation", evaluated)
        del self._left[0]

    def _save_state(self) -> None:
        self._measured.collect()  # no checkpoint follows a non-finite loss
        self.saved = self.progress
        self._save(self.state, self.saved)
        self._saved_step, self._saved_at = self.step, time.monotonic()
        self._measured.requests = self._measured.requests._replace(save=False)

    def _is_due(self, interval: int) -> bool:
        return self.step % interval == 0 or self.step == self._config.steps


def _check_finite(name: str, value: float, step: int) -> None:
    if not np.isfinite(value):
        raise FloatingPointError(
            f"the validation {name} became {value} at step {step:,}: lower train.learning_rate or "
            "train.clip_norm in a new workdir"
        )
