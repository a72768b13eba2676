"""What was measured, for programs (JSON lines) and for eyes (TensorBoard)."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar

from experiments.files import append, named_errors, write_whole
from experiments.json_files import read_json_lines


class Metrics:
    """Appends rows of numbers to `metrics.jsonl` and to TensorBoard event files."""

    def __init__(self, directory: Path, *, step: int) -> None:
        """Opens the files of a run that stands at `step`; rows of later steps never happened."""
        self.path = directory / "metrics.jsonl"
        rows = [row for row in read_metrics(directory) if row["step"] <= step]
        write_whole(self.path, "".join(json.dumps(row) + "\n" for row in rows))
        # Events are written by this thread, not by that of a `SummaryWriter`: if it ends, as on a
        # full disk, its queue blocks the training.
        folder = directory / "tensorboard"
        folder.mkdir(exist_ok=True)
        self._events, self._events_path = EventsWriter(str(folder / "events")), folder
        start = SessionLog(status=SessionLog.START)
        self._events.write_event(Event(step=step + 1, session_log=start))  # drops later steps
        self._events.flush()

    def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Adds a row of numbers about a split, as of a step."""
        values = {name: float(value) for name, value in values.items()}
        append(self.path, json.dumps({"step": step, "split": split, **values}) + "\n")
        with named_errors(self._events_path):
            for name, value in values.items():
                summary = scalar(f"{split}/{name}", value)
                self._events.write_event(Event(wall_time=time.time(), step=step, summary=summary))
            self._events.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes the events."""
        with named_errors(self._events_path):
            self._events.close()


def read_metrics(directory: Path) -> list[dict]:
    """The rows of `metrics.jsonl`, oldest first; a last line cut short by a kill is left out.

    Raises:
        UsageError: another line that cannot be read.
    """
    path = directory / "metrics.jsonl"
    return read_json_lines(path, {"step": int, "split": str}) if path.exists() else []
