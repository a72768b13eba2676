"""Train a model or continue its run, then measure it.

A run that was killed or stopped continues to the bit: the batch and the random key of a step are
functions of the step, everything else that changes is in its checkpoint, and the files that grow
are cut to their lengths at that checkpoint.
"""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import jax
from tqdm import tqdm

from experiments.analysis.figures import draw_learning_curve
from experiments.checkpoint import CheckpointWriter, Progress, read_newest, saved_steps
from experiments.config import Config
from experiments.data.pipeline import TrainingBatches
from experiments.errors import DivergedError, Stopped, UsageError
from experiments.evaluate import measure
from experiments.files import append, remove_abandoned
from experiments.interruption import interruption
from experiments.learner import TrainState
from experiments.metrics import Metrics, mean_of_steps, read_metrics, speed, start_wandb
from experiments.processes import any_process, check_same, flags_array
from experiments.registry import TASKS
from experiments.sharding import row_report
from experiments.trained import (
    Trained,
    best_step,
    chosen,
    is_finished,
    monitored_loss,
    parameters_to_start_from,
)
from experiments.workdir import Workdir

ADVICE = "in a new workdir, lower train.learning_rate or train.clip_norm, or set skip_nonfinite"
WARM_UP, TRACED = 10, 5  # steps before the profiler trace, when programs are compiled, and in it


def train(
    config: Config,
    workdir: Workdir,
    cache: Path,
    *,
    profile: bool = False,
    wandb: str | None = None,
) -> None:
    """Train a model, or continue from the newest checkpoint of its workdir, and measure it.

    Args:
        config: of the run.
        workdir: where all that the run makes goes.
        cache: where generated data is kept.
        profile: whether some steps are traced into the folder `profile` of the workdir.
        wandb: project of Weights & Biases that takes the metrics too.

    Raises:
        UsageError: before anything is written: data, a model or a workdir that does not fit.
    """
    print(f"reading the {config.data.name} data")
    task = TASKS[config.task].prepare(config, cache, workdir)
    task.check()
    batches = task.training_batches()
    batch, rows = task.learner.batch_reader(batches)(0)
    task.learner.check(batch)
    texts = {name: task.splits[name].fingerprint for name in task.known_splits}
    check_same(
        f"{texts} {task.config.train.steps}",
        f"reads other {config.data.name} data than process 0: give all the same files",
    )
    is_warm = config.train.start_from and not saved_steps(workdir.checkpoints)
    parameters = parameters_to_start_from(task, cache) if is_warm else {}
    workdir.save_config(task.config)
    workdir.save_fingerprints(texts)
    task.tokenizers.keep(workdir.path)
    sizes = " and ".join(f"{len(each):,}" for each in task.tokenizers if each is not None)
    print(
        f"{batches.epoch.examples:,} examples, {sizes} tokens, "
        f"{task.learner.num_parameters:,} parameters\n"
        f"{batches.padding:.1%} of the positions in training batches are padding\n"
        "compiling the training step at the first batch of each shape",
        flush=True,
    )
    if report := row_report(task.learner.mesh, config, rows, len(jax.tree.leaves(batch)[0])):
        print(report)
    trained = fit(task, workdir, batches, parameters, profile=profile, wandb=wandb)
    draw_learning_curve(workdir.path, workdir.learning_curve)
    measure(task, workdir, trained, {name: name for name in task.test_splits})


def fit(
    task: Any,  # noqa: ANN401 - config, learner, validate and sample of a task
    workdir: Workdir,
    batches: TrainingBatches,
    parameters: Mapping[tuple[Any, ...], Any],
    *,
    profile: bool = False,
    wandb: str | None = None,
) -> Trained:
    """Train from the newest checkpoint of a workdir, or from the start, to the last step.

    `parameters`, arrays by path, replace initial ones. The other arguments are as in `train`.

    Raises:
        UsageError: another process trains this run, its checkpoints are missing or damaged, or
            cannot be written, or `profile` or `wandb` cannot start.
        DivergedError: a loss or a gradient that is not finite.
        Stopped: by SIGTERM or Ctrl-C, after the state was saved.
    """
    config, learner = task.config.train, task.learner
    with workdir.lock(), interruption() as stop:
        remove_abandoned(workdir.path)
        if saved_steps(workdir.checkpoints):
            state, progress = read_newest(
                workdir.checkpoints, learner.abstract_state, set_aside=True
            )
        elif any(row["step"] > config.checkpoint_interval for row in read_metrics(workdir.path)):
            raise UsageError(
                f"the checkpoints of {workdir.path} are gone, and its metrics are left as they "
                "are: choose another --workdir"
            )
        else:
            state, progress = learner.initial_state(parameters), Progress()
        if not is_finished(int(state.step), progress.losses, config):
            workdir.add_start()
            if wandb and jax.process_index() == 0:
                start_wandb(wandb, workdir.path, task.config.to_dict())
        workdir.truncate(progress.lengths)
        left = config.steps - int(state.step)
        if profile and left < WARM_UP + TRACED:
            raise UsageError(
                f"--profile needs {WARM_UP + TRACED} more steps, and the run has {left}"
            )
        with (
            Metrics(workdir.path, step=int(state.step)) as metrics,
            # `patience` checkpoints are after the best one.
            CheckpointWriter(
                workdir.checkpoints, config.checkpoint_interval, config.average + config.patience
            ) as checkpoints,
        ):
            training = Training(task, workdir, metrics, checkpoints, stop, state, progress)
            training.run(batches, profile=profile)
        trained = chosen(workdir, training.state, progress, config)
    if any_process(stop.is_set()):
        raise Stopped(training.step, config.steps)
    return trained


@dataclass
class Training:
    """A training between two steps, with what it writes to; `progress` is updated."""

    task: Any
    workdir: Workdir
    metrics: Metrics
    checkpoints: CheckpointWriter
    stop: Event
    state: TrainState
    progress: Progress

    def __post_init__(self) -> None:
        """Start the clocks."""
        self.step, self._running = int(self.state.step), None
        self.config, self.learner = self.task.config.train, self.task.learner
        self._requests = {"save": False, "stop": False}
        self._started = time.perf_counter() - self.progress.seconds
        self._saved_at = time.monotonic()
        self._row_began, self._row_steps = time.perf_counter(), 0  # of the next row of metrics

    def run(self, batches: TrainingBatches, *, profile: bool = False) -> None:
        """Train to the last step, or until `train.patience` ends.

        Raises:
            DivergedError: a loss or a gradient that is not finite; earlier checkpoints stay.
            Stopped: by a signal, after the state was saved.
        """
        config, losses = self.config, self.progress.losses
        read_batch, first = self.learner.batch_reader(batches), self.step
        options = {"unit": "step", "mininterval": 0.5, "disable": jax.process_index() > 0}
        with tqdm(total=config.steps, initial=self.step, **options) as bar:
            while not is_finished(self.step, losses, config):
                batch, _ = read_batch(self.step)
                self._take_step(batch)
                bar.update()
                if profile:
                    self._trace(self.step - first)
                is_regular = self._is_due(config.checkpoint_interval)
                if self._is_due(config.log_every) or is_regular:
                    bar.set_postfix_str(self._write_row())
                if self._is_due(config.evaluate_every):
                    self._evaluate()
                if self._is_due(config.sample_every):
                    bar.write(self._sample())
                if jax.process_count() == 1:
                    self._requests = self._own_requests()
                if is_regular or any(self._requests.values()):
                    self._save()
                if self._requests["stop"]:
                    raise Stopped(self.step, config.steps)
            if self.step < config.steps:
                best = best_step(losses)
                bar.write(f"the best validation {config.monitor} is of step {best:,}")

    def _take_step(self, batch: Any) -> None:  # noqa: ANN401 - of any task
        """Start a step, and wait for the one before: the loop is one step ahead of the device."""
        requests = None
        if jax.process_count() > 1:
            requests = flags_array([*self._own_requests().values()], self.learner.mesh)
        self.state, measured = self.learner.train_step(self.state, batch, requests)
        self._wait_for_step()
        self._running = measured
        self.step += 1
        self._row_steps += 1

    def _wait_for_step(self) -> None:
        """Wait for the running step, and check its loss and gradient."""
        if self._running is None:
            return
        values = dict(jax.device_get(self._running))
        self._running = None
        if "requests" in values:
            self._requests = dict(zip(self._requests, values.pop("requests"), strict=True))
        step = {name: float(value) for name, value in values.items()}
        self.progress.pending.append(step)
        bad = [name for name in ("loss", "gradient_norm") if not math.isfinite(step[name])]
        is_skipped = 0 < step.get("skipped", 0) < self.config.skip_nonfinite
        if bad and not is_skipped:
            raise DivergedError(
                f"the {bad[0].replace('_', ' ')} became {step[bad[0]]} in step {self.step:,} (norm "
                f"of the gradient {step['gradient_norm']:.3g}): {ADVICE}"
            )

    def _own_requests(self) -> dict[str, bool]:
        """Return whether this process asks for a checkpoint, and whether for a stop."""
        minutes = (time.monotonic() - self._saved_at) / 60
        is_due = 0 < self.config.checkpoint_minutes <= minutes
        return {"save": is_due, "stop": self.stop.is_set()}

    def _is_due(self, interval: int) -> bool:
        return self.step % interval == 0 or self.step == self.config.steps

    @contextmanager
    def _pause(self) -> Iterator[None]:
        """Wait for the running step, and leave the time of this block out of the speed of steps."""
        self._wait_for_step()
        began = time.perf_counter()
        yield
        self._row_began += time.perf_counter() - began

    def _write_row(self) -> str:
        """Write means over the steps since the last row, and return them in a few words."""
        self._wait_for_step()
        pending, seconds = self.progress.pending, time.perf_counter() - self._row_began
        row = mean_of_steps(pending)
        timed = pending[-self._row_steps :]  # without those before the run was resumed
        timing = speed(timed, seconds, self.learner.num_parameters)
        self.metrics.write(self.step, "train", row)
        self.metrics.write(self.step, "timing", timing)
        pending.clear()
        self._row_began, self._row_steps = time.perf_counter(), 0
        return f"loss {row['loss']:.3f}, {timing['tokens_per_second']:,.0f} tokens/s"

    def _evaluate(self) -> None:
        """Measure the validation split."""
        with self._pause():
            measured = self.task.validate(self.state.with_ema())
        loss = monitored_loss(measured, self.config)
        if not math.isfinite(loss):
            name = self.config.monitor
            raise DivergedError(
                f"the validation {name} became {loss} at step {self.step:,}: {ADVICE}"
            )
        self.progress.losses.append((self.step, loss))
        self.metrics.write(self.step, "validation", measured)

    def _sample(self) -> str:
        """Show what the model can do, and append it to the file of samples."""
        with self._pause():
            text = self.task.sample(self.state.with_ema())
        text = f"step {self.step}\n{text}"
        append(self.workdir.samples, text + "\n")
        return text

    def _save(self) -> None:
        with self._pause():  # a step that is not finite has no checkpoint
            progress = self.progress
            progress.seconds = time.perf_counter() - self._started
            progress.lengths = self.workdir.lengths()
            best = best_step(progress.losses) if self.config.patience and progress.losses else None
            self.checkpoints.save(self.state, progress, best)
        self._saved_at = time.monotonic()
        self._requests["save"] = False

    def _trace(self, steps: int) -> None:
        """Trace `TRACED` steps after the first `WARM_UP`, for TensorBoard and Perfetto."""
        if steps in (WARM_UP, WARM_UP + TRACED):
            jax.block_until_ready(self.state)
            if steps == WARM_UP:
                jax.profiler.start_trace(str(self.workdir.path / "profile"))
            else:
                jax.profiler.stop_trace()
