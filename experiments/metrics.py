"""Measurements of a run: JSON lines and TensorBoard events."""

import json
import math
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar

from experiments.errors import UsageError
from experiments.files import append, named_errors
from experiments.json_files import read_json_lines

METRICS, TIMING = "metrics.jsonl", "timing.jsonl"


class Metrics:
    """Appends rows of numbers to JSON lines and to TensorBoard event files.

    `metrics.jsonl` contains what depends on the config alone: two runs of one config write the same
    bytes. `timing.jsonl` contains speed and memory.
    """

    def __init__(self, directory: Path, *, step: int) -> None:
        """Open the files of a run.

        Args:
            directory: the workdir.
            step: newest step of the run; TensorBoard drops later ones.
        """
        self._directory = directory
        # Events are written by this thread, not by that of a `SummaryWriter`: if it ends, as on a
        # full disk, its queue blocks the training.
        folder = directory / "tensorboard"
        folder.mkdir(exist_ok=True)
        self._events, self._events_path = EventsWriter(str(folder / "events")), folder
        start = SessionLog(status=SessionLog.START)
        self._events.write_event(Event(step=step + 1, session_log=start))  # drops later steps
        self._events.flush()

    def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Append a row of numbers about a split."""
        self._write(METRICS, {"step": step, "split": split}, split, values)

    def write_timing(self, step: int, values: Mapping[str, float]) -> None:
        """Append a row of speed and memory."""
        self._write(TIMING, {"step": step}, "timing", values)

    def _write(
        self, name: str, row: Mapping[str, object], group: str, values: Mapping[str, float]
    ) -> None:
        values = {name: float(value) for name, value in values.items()}
        append(self._directory / name, json.dumps({**row, **values}) + "\n")
        with named_errors(self._events_path):
            for label, value in values.items():
                if not math.isfinite(value):
                    continue  # tensorboardX would log a warning
                event = Event(wall_time=time.time(), step=row["step"])
                event.summary.CopyFrom(scalar(f"{group}/{label}", value))
                self._events.write_event(event)
            self._events.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the events."""
        with named_errors(self._events_path):
            self._events.close()


def read_metrics(directory: Path) -> list[dict]:
    """Return the rows of `metrics.jsonl`, oldest first, without a last line cut short by a kill.

    Raises:
        UsageError: another line that cannot be read.
    """
    path = directory / METRICS
    return read_json_lines(path, {"step": int, "split": str}) if path.exists() else []


def import_wandb() -> Any:  # noqa: ANN401 - a module
    """Import `wandb`.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return import_module("wandb")
    except ModuleNotFoundError as error:
        raise UsageError('--wandb needs an extra: pip install ".[wandb]"') from error


def start_wandb(project: str, folder: Path, config: dict[str, Any]) -> None:
    """Send the TensorBoard events of a run to a project of Weights & Biases until Python ends."""
    import_wandb().init(
        project=project,
        name=folder.name,
        dir=str(folder),
        config=config,
        sync_tensorboard=True,
    )
