"""The folder of a run: it contains all that evaluation, translation and explanation need."""

import fcntl
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from experiments.config import REPOSITORY, Config, is_imported
from experiments.config.build import as_tree, differences, flat, in_lines, is_within
from experiments.config.parts import MeshPart
from experiments.devices import num_cores
from experiments.errors import UsageError
from experiments.files import (
    PART,
    append,
    named_errors,
    read_json,
    read_json_lines,
    write_whole,
)
from experiments.registry import TASKS

IGNORED_WHEN_COMPARING_CONFIGS = "data.path", "literature", "plugin"
MESH = tuple(f"mesh.{axis.name}" for axis in fields(MeshPart))
# Fields that may change on an existing run: they do not change what it has learned so far.
CHANGEABLE = (
    "train.steps",
    "train.duration",
    "train.log_every",
    "train.evaluate_every",
    "train.sample_every",
    "train.checkpoint_every",
    "train.checkpoint_minutes",
    *MESH,
)
# Fields of files that are read again, and their types.
RESULTS = {"step": int, "training_seconds": float, "parameters": int, "splits": dict}
HYPOTHESIS = "source", "reference", "hypothesis"
# Files that training appends to. A checkpoint contains their lengths.
GROWING = "metrics.jsonl", "timing.jsonl", "samples.txt"


class Workdir:
    """Paths of the files of a run, and their content; a folder contains one run."""

    def __init__(self, path: Path | str) -> None:
        """Set the paths; nothing is read or written yet."""
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.checkpoints = self.path / "checkpoints"
        self.samples = self.path / "samples.txt"
        self.results = self.path / "results.json"
        self.fingerprints = self.path / "texts.json"
        self.starts = self.path / "starts.jsonl"
        self.changes = self.path / "changes.jsonl"
        self.learning_curve = self.path / "learning_curve.png"
        self.attention = self.path / "attention.png"
        self.explanation = self.path / "explain"

    def save_config(self, config: Config | ConfigDict) -> None:
        """Write the configuration of a new run, or compare it with that of the run in the folder.

        The fields in `CHANGEABLE` may differ: config.json then contains the new values, and
        changes.jsonl the time, the step and both values of each.

        Raises:
            UsageError: the folder contains a run of another configuration, or other files, or the
                run has more steps than it should have.
        """
        if self.config.exists():
            but = (*IGNORED_WHEN_COMPARING_CONFIGS, *CHANGEABLE)
            self._change_config(self.check_same(config, but=but), config)
            return
        # After a kill, the folder may contain a part of its first file.
        if self.path.exists() and not (
            self.path.is_dir() and all(path.name.endswith(PART) for path in self.path.iterdir())
        ):
            raise UsageError(f"{self.path} exists and is not a run: choose another --workdir")
        with named_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        write_whole(self.config, config.to_json(indent=2) + "\n")

    def _change_config(self, trained: ConfigDict, config: Config | ConfigDict) -> None:
        """Store and record the fields of `CHANGEABLE` in which `config` differs from the run."""
        there, here = flat(trained.to_dict()), flat(config.to_dict())
        changed = [name for name in CHANGEABLE if there.get(name) != here.get(name)]
        if not changed:
            return
        step = self.newest_step()
        if config.train.steps < step:
            raise UsageError(
                f"train.steps={config.train.steps} is less than the {step} steps of {self.path}"
            )
        trained.update_from_flattened_dict({name: here[name] for name in changed})
        with self.lock():
            when = datetime.now(UTC).isoformat(timespec="seconds")
            values = {name: [there[name], here[name]] for name in changed}
            row = {"time": when, "step": step, "changed": values}
            append(self.changes, json.dumps(row) + "\n")
            write_whole(self.config, trained.to_json(indent=2) + "\n")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the run, so that no other process trains it.

        Raises:
            UsageError: another process trains it.
        """
        folder = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until it is closed
            except BlockingIOError as error:
                raise UsageError(
                    f"{self.path} is being trained by another process: let it end, or choose "
                    "another --workdir"
                ) from error
            yield
        finally:
            os.close(folder)

    def check_same(self, config: Config | ConfigDict, *, but: Collection[str] = ()) -> ConfigDict:
        """Return the configuration of the run, after a check that `config` equals it.

        Raises:
            UsageError: they differ in other parts than `but`; it lists the fields.
        """
        trained = self.load_config()
        there, here = flat(trained.to_dict()), flat(config.to_dict())
        differing = [name for name in differences(there, here) if not is_within(name, but)]
        if differing:
            raise UsageError(
                f"{self.path} contains a run of another configuration: choose another --workdir"
                + in_lines(differing, {"there": there, "here": here})
            )
        return trained

    def load_config(self) -> ConfigDict:
        """Return the configuration of the run.

        Raises:
            UsageError: there is no run here, or its configuration is damaged.
        """
        if not self.config.is_file():
            raise UsageError(f"{self.path} holds no run: train one with --workdir={self.path}")
        tree = read_json(self.config, {"task": str, "plugin": str | None})
        if (plugin := tree.get("plugin")) and not is_imported(plugin):
            raise UsageError(f"{self.path} was trained with a plugin: give --plugin={plugin}")
        try:
            return ConfigDict(Config.read(tree).to_dict() if tree["task"] in TASKS else tree)
        except (ValueError, UsageError) as error:
            raise UsageError(
                f"{self.config} cannot be read, it is damaged or of another version: {error}"
            ) from error

    def newest_step(self) -> int:
        """Return the step of the newest checkpoint, 0 without one."""
        saved = [path.name for path in self.checkpoints.glob("*")]
        return max((int(name) for name in saved if name.isdigit()), default=0)

    def as_trained(
        self, config: Config, given: Collection[str] = (), *, other_data: bool = False
    ) -> Config:
        """Return `config` with the training of the run, for use of the trained model.

        Decoding, mesh and `data.path` may differ from those of the run, and so may the fields of
        `CHANGEABLE` that are not given.

        Args:
            config: that may differ from that of the run.
            given: fields with values of flags, as "config.train.steps".
            other_data: whether its data may be any of the same kind.

        Raises:
            UsageError: the run has another configuration, or no checkpoint yet.
        """
        free = [name for name in CHANGEABLE if name in MESH or f"config.{name}" not in given]
        but = ["decoding", *IGNORED_WHEN_COMPARING_CONFIGS, *free]
        if other_data:
            but += [f"data.{name}" for name in as_tree(config.data) if name != "name"]
        trained = self.check_same(config, but=but)
        if not self.checkpoints.exists():
            raise UsageError(f"{self.path} has no checkpoint yet: train it first")
        return replace(config, train=Config.read(trained.to_dict()).train)

    def save_fingerprints(self, texts: Mapping[str, str]) -> None:
        """Store the fingerprint of each split, which must equal that stored before.

        Raises:
            UsageError: another text, or a damaged file.
        """
        known = self.load_fingerprints()
        for split, text in texts.items():
            if known.get(split, text) != text:
                raise UsageError(
                    f"the {split} split is another text than {self.path} has read: name the place "
                    "of that one by data.path"
                )
        write_whole(self.fingerprints, json.dumps(known | dict(texts), indent=2) + "\n")

    def load_fingerprints(self) -> dict[str, str]:
        """Return the fingerprint of each split that the run has read."""
        return read_json(self.fingerprints, {}) if self.fingerprints.exists() else {}

    def lengths(self) -> dict[str, int]:
        """Return the bytes of each file that grows in training, by name."""
        paths = [self.path / name for name in GROWING]
        return {path.name: path.stat().st_size for path in paths if path.exists()}

    def truncate(self, lengths: Mapping[str, int]) -> None:
        """Drop what was appended to the files that grow in training since these lengths."""
        for name, size in self.lengths().items():
            if size > lengths.get(name, 0):
                os.truncate(self.path / name, lengths.get(name, 0))

    def load_results(self) -> dict[str, Any]:
        """Read the results.

        Raises:
            UsageError: there is none, or it is damaged.
        """
        if not self.results.is_file():
            raise UsageError(
                f"{self.path} has no results yet: --mode=evaluate --workdir={self.path} makes them"
            )
        return read_json(self.results, RESULTS)

    def save_hypotheses(self, split: str, rows: Iterable[tuple[str, str, str]]) -> None:
        """Write source, reference and hypothesis of each example of a split, as JSON lines."""
        lines = (
            json.dumps(dict(zip(HYPOTHESIS, row, strict=True)), ensure_ascii=False) for row in rows
        )
        path = self.path / f"hypotheses.{split}.jsonl"
        write_whole(path, "".join(f"{line}\n" for line in lines))

    def load_hypotheses(self, split: str) -> list[str]:
        """Read the hypotheses that `save_hypotheses` wrote."""
        path = self.path / f"hypotheses.{split}.jsonl"
        rows = read_json_lines(path, dict.fromkeys(HYPOTHESIS, str))
        return [row["hypothesis"] for row in rows]

    def add_start(self) -> None:
        """Append the origin of a start of the training, unless it equals the one before."""
        starts = self.starts.read_text().splitlines() if self.starts.exists() else []
        if starts[-1:] != [start := json.dumps(origin())]:
            write_whole(self.starts, "".join(f"{line}\n" for line in (*starts, start)))


def origin() -> dict[str, str]:
    """Return the command of this process, the commit of this code, this machine and the date."""
    device = jax.devices()[0].device_kind
    return {
        "command": shlex.join(["python", *map(_without_folders, sys.argv)]),
        "commit": _commit(),
        "machine": f"{device}, {num_cores()} cores, jax {jax.__version__}",
        "date": datetime.now(UTC).date().isoformat(),
    }


def _without_folders(argument: str) -> str:
    """Return an argument of a command without the folders of this machine that a path is in."""
    flag, equals, value = argument.rpartition("=")
    path = Path(value)
    if path.is_absolute():
        is_own = path.is_relative_to(REPOSITORY)
        value = str(path.relative_to(REPOSITORY)) if is_own else path.name
    return f"{flag}{equals}{value}"


def _commit() -> str:
    """Return the checked-out commit, with a + if files were changed; "unknown" without git."""
    # A command that ends early, as on a full disk, must not leave a lock in the repository.
    git = ["git", "--no-optional-locks", "-C", str(REPOSITORY), "describe", "--always", "--dirty=+"]
    try:
        describe = [*git, "--exclude=*"]
        return subprocess.run(describe, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
