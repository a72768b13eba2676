"""What was measured, for programs (JSON lines) and for eyes (TensorBoard)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import tensorboardX

from experiments.files import write_whole
from experiments.json_files import read_json_lines


class Metrics:
    """Appends rows of numbers to `metrics.jsonl` and to TensorBoard event files."""

    def __init__(self, directory: Path, *, step: int) -> None:
        """Opens the files of a run that stands at `step`; rows of later steps never happened."""
        self.path = directory / "metrics.jsonl"
        rows = [row for row in read_metrics(directory) if row["step"] <= step]
        write_whole(self.path, "".join(json.dumps(row) + "\n" for row in rows))
        self._file = self.path.open("a", encoding="utf-8", buffering=1)
        # Events are flushed every second: an exit without warning loses no more.
        self._events = tensorboardX.SummaryWriter(
            str(directory / "tensorboard"), flush_secs=1, purge_step=step + 1
        )

    def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Adds a row of numbers about a split, as of a step."""
        values = {name: float(value) for name, value in values.items()}
        self._file.write(json.dumps({"step": step, "split": split, **values}) + "\n")
        for name, value in values.items():
            self._events.add_scalar(f"{split}/{name}", value, step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes the files."""
        self._file.close()
        self._events.close()


def read_metrics(directory: Path) -> list[dict]:
    """The rows of `metrics.jsonl`, oldest first; a last line cut short by a kill is left out.

    Raises:
        UsageError: another line that cannot be read.
    """
    path = directory / "metrics.jsonl"
    return read_json_lines(path, {"step": int, "split": str}) if path.exists() else []
