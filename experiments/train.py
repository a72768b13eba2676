"""Train a model or continue its run, then measure it.

A run that was killed or stopped continues to the bit: the batch and the random key of a step are
functions of the step, everything else that changes is in its checkpoint, and the files that grow
are cut to their lengths at that checkpoint.
"""

import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, current_thread, main_thread
from typing import Any

import jax
from tqdm import tqdm

from experiments.analysis.figures import draw_learning_curve
from experiments.checkpoint import CheckpointWriter, Progress, read_newest, saved_steps
from experiments.config import Config
from experiments.errors import DivergedError, Stopped, UsageError, as_usage_errors
from experiments.evaluate import measure
from experiments.files import append, remove_abandoned
from experiments.learner import TrainState
from experiments.metrics import Metrics, mean_of_steps, read_metrics, start_wandb
from experiments.processes import any_process, check_same, flags_array, free_memory, peak_memory
from experiments.registry import TASKS
from experiments.sharding import read_batch, row_report
from experiments.trained import Trained, chosen, is_finished, lowest, parameters_to_start_from
from experiments.workdir import Workdir

ADVICE = "in a new workdir, lower train.learning_rate or train.clip_norm, or set skip_nonfinite"
WARM_UP, TRACED = 10, 5  # steps before the profiler trace, when programs are compiled, and in it
SIGNALS = signal.SIGTERM, signal.SIGINT


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
    learner, batches = task.learner, task.training_batches()
    read = partial(read_batch, batches, learner.mesh, config.batch.microbatches)
    batch, rows = read(0)
    with as_usage_errors("model: "):  # a loss of another shape, or attention that is refused
        jax.eval_shape(learner.train_step, learner.abstract_state, batch)
    memory, free = learner.state_bytes, free_memory()
    if memory > free:
        sizes = f"{memory / 2**30:,.1f} GiB, and {free / 2**30:,.1f} are free"
        raise UsageError(f"parameters and optimizer take {sizes}: choose a smaller model")
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
        f"{learner.num_parameters:,} parameters\n"
        f"{batches.padding:.1%} of the positions in training batches are padding\n"
        "compiling the training step at the first batch of each shape",
        flush=True,
    )
    if report := row_report(learner.mesh, config, rows, len(jax.tree.leaves(batch)[0])):
        print(report)
    trained = fit(task, workdir, read, parameters, profile=profile, wandb=wandb)
    draw_learning_curve(workdir.path, workdir.learning_curve)
    measure(task, workdir, trained, {name: name for name in task.test_splits})


def fit(
    task: Any,  # noqa: ANN401 - config, learner, validate and sample of a task
    workdir: Workdir,
    read_batch: Callable[[int], tuple[Any, int]],
    parameters: Mapping[tuple[Any, ...], Any],
    *,
    profile: bool = False,
    wandb: str | None = None,
) -> Trained:
    """Train from the newest checkpoint of a workdir, or from the start, to the last step.

    `read_batch` maps a step to a batch and its number of rows, and `parameters`, arrays by path,
    replace initial ones. The other arguments are as in `train`.

    Raises:
        UsageError: another process trains this run, its checkpoints are missing or damaged, or
            cannot be written, or `profile` or `wandb` cannot start.
        DivergedError: a loss or a gradient that is not finite.
        Stopped: by SIGTERM or Ctrl-C, after the state was saved.
    """
    config, learner, folder = task.config.train, task.learner, workdir.checkpoints
    with workdir.lock(), interruption() as stop:
        remove_abandoned(workdir.path)
        if saved_steps(folder):
            state, progress = read_newest(folder, learner.abstract_state, set_aside=True)
        elif (rows := read_metrics(workdir.path)) and rows[-1]["step"] > config.checkpoint_interval:
            raise UsageError(
                f"the checkpoints of {workdir.path} are gone, and its metrics are left as they "
                "are: choose another --workdir"
            )
        else:
            state, progress = learner.initial_state(), Progress()
            if parameters:
                state = state.with_arrays(parameters)
        step, needed = int(state.step), WARM_UP + TRACED
        if profile and (left := config.steps - step) < needed:
            raise UsageError(f"--profile needs {needed} more steps, and the run has {left}")
        if not is_finished(step, progress.losses, config):
            workdir.add_start()
            if wandb and jax.process_index() == 0:
                start_wandb(wandb, workdir.path, task.config.to_dict())
        workdir.truncate(progress.lengths)
        keep = config.average + config.patience  # `patience` checkpoints are after the best one
        with (
            Metrics(workdir.path, step=step) as metrics,
            CheckpointWriter(folder, config.checkpoint_interval, keep) as checkpoints,
        ):
            training = Training(task, workdir, metrics, checkpoints, stop, state, progress)
            training.run(read_batch, profile=profile)
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
        self.step, self._running = int(self.state.step), None
        self.config, self.learner = self.task.config.train, self.task.learner
        self._requests = {"save": False, "stop": False}
        self._saved_at = time.perf_counter()
        self._started = self._saved_at - self.progress.seconds
        self._row_began, self._row_steps = self._saved_at, 0  # of the next row of metrics

    def run(self, read_batch: Callable[[int], tuple[Any, int]], *, profile: bool = False) -> None:
        """Train to the last step, or until `train.patience` ends; raise as `fit`."""
        config, losses, first = self.config, self.progress.losses, self.step
        options = {"unit": "step", "mininterval": 0.5, "disable": jax.process_index() > 0}
        with tqdm(total=config.steps, initial=self.step, **options) as bar:
            while not is_finished(self.step, losses, config):
                batch, requests = read_batch(self.step)[0], None
                if jax.process_count() > 1:
                    requests = flags_array([*self._own_requests().values()], self.learner.mesh)
                self.state, running = self.learner.train_step(self.state, batch, requests)
                self._wait_for_step()  # for the one before: the device has the next one already
                self._running = running
                self.step += 1
                self._row_steps += 1
                bar.update()
                if profile and self.step - first in (WARM_UP, WARM_UP + TRACED):
                    jax.block_until_ready(self.state)
                    if self.step - first == WARM_UP:  # for TensorBoard and Perfetto
                        jax.profiler.start_trace(str(self.workdir.path / "profile"))
                    else:
                        jax.profiler.stop_trace()
                is_regular = self._is_due(config.checkpoint_interval)
                if self._is_due(config.log_every) or is_regular:
                    bar.set_postfix_str(self._write_row())
                if self._is_due(config.evaluate_every):
                    self._evaluate()
                if self._is_due(config.sample_every):
                    with self._pause():
                        text = f"step {self.step}\n{self.task.sample(self.state.with_ema())}"
                    append(self.workdir.samples, text + "\n")
                    bar.write(text)
                if jax.process_count() == 1:
                    self._requests = self._own_requests()
                if is_regular or any(self._requests.values()):
                    self._save()
                if self._requests["stop"]:
                    raise Stopped(self.step, config.steps)
            if self.step < config.steps:
                bar.write(f"the best validation {config.monitor} is of step {lowest(losses)[0]:,}")

    def _wait_for_step(self) -> None:
        """Wait for the running step, and check its loss and gradient."""
        if self._running is None:
            return
        values, self._running = jax.device_get(self._running), None
        if "requests" in values:
            self._requests = dict(zip(self._requests, values.pop("requests"), strict=True))
        step = {name: float(value) for name, value in values.items()}
        self.progress.pending.append(step)
        is_skipped = 0 < step.get("skipped", 0) < self.config.skip_nonfinite
        bad = "gradient_norm" if math.isfinite(step["loss"]) else "loss"
        if not (is_skipped or math.isfinite(step[bad])):
            raise DivergedError(
                f"the {bad.replace('_', ' ')} became {step[bad]} in step {self.step:,} (norm of "
                f"the gradient {step['gradient_norm']:.3g}): {ADVICE}"
            )

    def _own_requests(self) -> dict[str, bool]:
        """Return whether this process asks for a checkpoint, and whether for a stop."""
        minutes = (time.perf_counter() - self._saved_at) / 60
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
        pending, now = self.progress.pending, time.perf_counter()
        seconds, row = now - self._row_began, mean_of_steps(pending)
        timed = pending[-self._row_steps :]  # without those before the run was resumed
        tokens_per_second = sum(step["tokens"] for step in timed) / seconds
        timing = {
            "tokens_per_second": tokens_per_second,
            "steps_per_second": len(timed) / seconds,
            # Without attention products, and as if sources were as long as targets.
            "flops_per_second": 6 * self.learner.num_parameters * tokens_per_second,
            "peak_memory_bytes": peak_memory(),
        }
        self.metrics.write(self.step, "train", row)
        self.metrics.write(self.step, "timing", timing)
        pending.clear()
        self._row_began, self._row_steps = time.perf_counter(), 0
        return f"loss {row['loss']:.3f}, {tokens_per_second:,.0f} tokens/s"

    def _evaluate(self) -> None:
        """Measure the validation split; the monitored loss is negated if higher is better."""
        with self._pause():
            measured = self.task.validate(self.state.with_ema())
        loss = measured[self.config.monitor] * (1 if self.config.is_lower_better else -1)
        if not math.isfinite(loss):
            raise DivergedError(
                f"the validation {self.config.monitor} is {loss} at step {self.step:,}: {ADVICE}"
            )
        self.progress.losses.append((self.step, loss))
        self.metrics.write(self.step, "validation", measured)

    def _save(self) -> None:
        with self._pause():  # a step that is not finite has no checkpoint
            self.progress.seconds = time.perf_counter() - self._started
            self.progress.lengths = self.workdir.lengths()
            losses = self.progress.losses if self.config.patience else ()
            best = lowest(losses)[0] if losses else None
            self.checkpoints.save(self.state, self.progress, best)
        self._saved_at = time.perf_counter()
        self._requests["save"] = False


@contextmanager
def interruption() -> Iterator[Event]:
    """Take SIGTERM and Ctrl-C: the first one sets the event, the second one ends the process.

    In a thread other than the main one, no signal can be taken.
    """
    requested = Event()

    def request(*_: object) -> None:
        requested.set()
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        sentence = "the state is saved after the running step or measurement; a second signal "
        os.write(2, f"\n{sentence}ends the process at once\n".encode())

    is_main = current_thread() is main_thread()
    handlers = {number: signal.signal(number, request) for number in SIGNALS if is_main}
    try:
        yield requested
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
