"""Measurements of a run: JSON lines, TensorBoard events, and means of steps."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar

from experiments.errors import UsageError
from experiments.files import append, named_errors, read_json_lines
from experiments.processes import peak_memory

METRICS, TIMING = "metrics.jsonl", "timing.jsonl"


class Metrics:
    """Appends rows of numbers to JSON lines and to TensorBoard event files.

    Two runs of one config write the same bytes to `metrics.jsonl`.
    """

    def __init__(self, directory: Path, *, step: int) -> None:
        """Open the files of a workdir; TensorBoard drops events after `step`."""
        self._directory = directory
        # Events are written by this thread, not by that of a `SummaryWriter`: if it ends, as on a
        # full disk, its queue blocks the training.
        self._tensorboard = directory / "tensorboard"
        start = SessionLog(status=SessionLog.START)
        with named_errors(self._tensorboard):
            self._tensorboard.mkdir(exist_ok=True)
            self._events = EventsWriter(str(self._tensorboard / "events"))
            self._events.write_event(Event(step=step + 1, session_log=start))
            self._events.flush()

    def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Append a row of numbers about a split, or about speed and memory if it is "timing"."""
        values = {name: float(value) for name, value in values.items()}
        if split == "timing":
            path, row = self._directory / TIMING, {"step": step, **values}
        else:
            path, row = self._directory / METRICS, {"step": step, "split": split, **values}
        append(path, json.dumps(row) + "\n")
        with named_errors(self._tensorboard):
            for label, value in values.items():
                if math.isfinite(value):  # tensorboardX would log a warning
                    event = Event(wall_time=time.time(), step=step)
                    event.summary.CopyFrom(scalar(f"{split}/{label}", value))
                    self._events.write_event(event)
            self._events.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the events."""
        with named_errors(self._tensorboard):
            self._events.close()


def read_metrics(directory: Path) -> list[dict]:
    """Return the rows of `metrics.jsonl`, oldest first, without a last line cut short by a kill.

    Raises:
        UsageError: another line that cannot be read.
    """
    path = directory / METRICS
    return read_json_lines(path, {"step": int, "split": str}) if path.exists() else []


def mean_of_steps(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return means over tokens, the gradient norm over steps, and the last learning rate.

    Skipped steps are counted and belong to no mean, unless all were skipped.
    """
    used = [step for step in steps if not step.get("skipped")] or steps
    tokens = np.maximum([step["tokens"] for step in used], 1e-9)  # a batch may have none
    row = {}
    for name in used[0]:
        if name not in ("tokens", "skipped"):
            weights = None if name == "gradient_norm" else tokens
            row[name] = float(np.average([step[name] for step in used], weights=weights))
    if "skipped" in steps[0]:
        row["skipped"] = sum(step["skipped"] > 0 for step in steps)
    return row | {"learning_rate": steps[-1]["learning_rate"]}


def speed(
    steps: Sequence[Mapping[str, float]], seconds: float, num_parameters: int
) -> dict[str, float]:
    """Return the speed of some steps, and the peak memory of the process so far.

    FLOPs are 6 for each parameter and token of the loss: without attention products, and of an
    encoder as if its texts were as long as those of the decoder.
    """
    tokens_per_second = sum(step["tokens"] for step in steps) / seconds
    return {
        "tokens_per_second": tokens_per_second,
        "steps_per_second": len(steps) / seconds,
        "flops_per_second": 6 * num_parameters * tokens_per_second,
        "peak_memory_bytes": peak_memory(),
    }


def start_wandb(project: str, folder: Path, config: dict[str, Any]) -> None:
    """Send the TensorBoard events of a run to a project of Weights & Biases until Python ends.

    Raises:
        UsageError: `wandb` is not installed.
    """
    try:
        import wandb
    except ModuleNotFoundError as error:
        raise UsageError('--wandb needs an extra: pip install ".[wandb]"') from error
    options = {"name": folder.name, "dir": str(folder), "config": config}
    wandb.init(project=project, sync_tensorboard=True, **options)
