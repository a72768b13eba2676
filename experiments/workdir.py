"""The folder of a run: everything that the run makes, and all that predictions need."""

import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from attention import __version__
from experiments.config import REPOSITORY, Config, is_imported
from experiments.config.build import as_tree, differences, flat, in_lines, is_within
from experiments.errors import UsageError
from experiments.files import PART, append, make_folder, read_json, read_json_lines, write_whole
from experiments.processes import check_same, num_cores

IGNORED_WHEN_COMPARING_CONFIGS = "data.path", "literature", "plugin"
MESH = "mesh.data", "mesh.fsdp", "mesh.tensor", "mesh.sequence"
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

        The fields in `CHANGEABLE` may differ, which changes.jsonl then records.

        Raises:
            UsageError: the folder contains another run, one of more steps, or other files.
        """
        if not self.config.exists():
            # After a kill, the folder may contain a part of its first file.
            if self.path.exists() and not (
                self.path.is_dir() and all(path.name.endswith(PART) for path in self.path.iterdir())
            ):
                raise UsageError(f"{self.path} exists and is not a run: choose another --workdir")
            make_folder(self.path)
            write_whole(self.config, config.to_json(indent=2) + "\n")
            return
        trained = self.check_same(config, but=(*IGNORED_WHEN_COMPARING_CONFIGS, *CHANGEABLE))
        there, here = flat(trained.to_dict()), flat(config.to_dict())
        changed = [name for name in CHANGEABLE if there.get(name) != here.get(name)]
        if not changed:
            return
        step = max(saved_steps(self.checkpoints), default=0)
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
        with ExitStack() as stack:
            folder = os.open(self.path, os.O_RDONLY)
            stack.callback(os.close, folder)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until it is closed
            except BlockingIOError as error:
                raise UsageError(
                    f"{self.path} is being trained by another process: let it end, or choose "
                    "another --workdir"
                ) from error
            yield

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
            options = f"--config=NAME --workdir={self.path}"
            raise UsageError(f"{self.path} holds no run: train one with {options}")
        tree = read_json(self.config, {"task": str, "plugin": str | None})
        if (plugin := tree.get("plugin")) and not is_imported(plugin):
            raise UsageError(f"{self.path} was trained with a plugin: give --plugin={plugin}")
        try:
            return ConfigDict(Config.read(tree).to_dict())
        except (ValueError, UsageError) as error:
            reasons = "it needs --plugin=FILE, is damaged or of another version"
            raise UsageError(f"{self.config} cannot be read, {reasons}: {error}") from error

    def as_trained(
        self, config: Config, given: Collection[str] = (), *, other_data: bool = False
    ) -> Config:
        """Return `config` with the training of the run, for use of the trained model.

        Decoding, mesh and `data.path` may differ from those of the run, and so may the fields of
        `CHANGEABLE` that are not `given`, as "config.train.steps". With `other_data`, the data may
        be any of the same kind.

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
        paths = {name: self.path / name for name in GROWING}
        return {name: path.stat().st_size for name, path in paths.items() if path.exists()}

    def truncate(self, lengths: Mapping[str, int]) -> None:
        """Drop what was appended to the files that grow in training since these lengths."""
        for name, size in self.lengths().items():
            if size > (length := lengths.get(name, 0)):
                os.truncate(self.path / name, length)

    def load_results(self) -> dict[str, Any]:
        """Read the results.

        Raises:
            UsageError: there is none, or it is damaged.
        """
        if not self.results.is_file():
            self.load_config()  # raises an error if there is no run at all
            raise UsageError(
                f"{self.path} has no results yet: --mode=evaluate --workdir={self.path} makes them"
            )
        return read_json(self.results, RESULTS)

    def save_hypotheses(self, split: str, rows: Iterable[tuple[str, str, str]]) -> None:
        """Write source, reference and hypothesis of each example of a split, as JSON lines."""
        objects = (dict(zip(HYPOTHESIS, row, strict=True)) for row in rows)
        text = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in objects)
        write_whole(self.path / f"hypotheses.{split}.jsonl", text)

    def load_hypotheses(self, split: str) -> list[str]:
        """Read the hypotheses that `save_hypotheses` wrote."""
        path = self.path / f"hypotheses.{split}.jsonl"
        rows = read_json_lines(path, dict.fromkeys(HYPOTHESIS, str))
        return [row["hypothesis"] for row in rows]

    def add_start(self) -> None:
        """Append the origin of a start of the training, unless it equals the one before."""
        starts = self.starts.read_text("utf-8").splitlines() if self.starts.exists() else []
        if starts[-1:] != [start := json.dumps(origin())]:
            write_whole(self.starts, "\n".join([*starts, start, ""]))


def saved_steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in a folder, the oldest first; [] without a folder."""
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(map(int, filter(str.isdigit, names)))


@contextmanager
def own_workdir(workdir: Workdir, config: object) -> Iterator[Workdir]:
    """Return the workdir to process 0, and to the others a temporary copy of its files.

    So one process writes the files of a run, and code that writes files, also that of plugins, is
    the same in all. All write the checkpoints, which are not copied.

    Raises:
        UsageError: a process has another config or another folder.
    """
    rank, path = jax.process_index(), workdir.path.absolute()
    if jax.process_count() == 1:
        yield workdir
        return
    marker = next(each for each in (path, *path.parents) if each.is_dir()) / f"{path.name}{PART}"
    if rank == 0:
        marker.touch()
    multihost_utils.sync_global_devices("marker")
    try:
        check_same(
            f"{path.name} {config} {marker.exists()}",
            "has another --workdir, file system or config than process 0: start all with the same "
            "flags, on a file system that they share",
        )
    finally:
        if rank == 0:
            marker.unlink(missing_ok=True)
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        own = Workdir(Path(folder) / path.name) if rank else workdir
        own.checkpoints = workdir.checkpoints
        for file in path.glob("*") if rank else ():
            own.path.mkdir(exist_ok=True)
            if file.is_file() and not file.name.endswith(PART):
                shutil.copy2(file, own.path)
        multihost_utils.sync_global_devices("workdir")  # process 0 writes when all have copied
        try:
            yield own
        except UsageError as error:
            raise UsageError(str(error).replace(str(own.path), str(workdir.path))) from error


def origin() -> dict[str, str]:
    """Return the command of this process, the commit of this code, this machine and the date.

    The commit has a + if files were changed; without a repository it is the version.
    """
    commit = __version__
    # A command that ends early, as on a full disk, must not leave a lock in the repository.
    git = ["git", "--no-optional-locks", "-C", str(REPOSITORY), "describe", "--always", "--dirty=+"]
    if (REPOSITORY / ".git").exists():  # a folder above may be the repository of another project
        with suppress(OSError, subprocess.CalledProcessError):
            found = subprocess.run(
                [*git, "--exclude=*"], capture_output=True, text=True, check=True
            )
            commit = found.stdout.strip()
    program, *arguments = map(_without_folders, sys.argv)
    device = jax.devices()[0].device_kind
    return {
        "command": " ".join([program_name(program), *map(shlex.quote, arguments)]),
        "commit": commit,
        "machine": f"{device}, {num_cores()} cores, jax {jax.__version__}",
        "date": datetime.now(UTC).date().isoformat(),
    }


def program_name(path: str) -> str:
    """Return how a program is started: "python run.py", or "attention"."""
    return f"python {path}" if path.endswith(".py") else path


def _without_folders(argument: str) -> str:
    """Return an argument of a command without the folders of this machine that a path is in."""
    flag, equals, value = argument.rpartition("=")
    path = Path(value)
    if path.is_absolute():
        is_own = path.is_relative_to(REPOSITORY)
        value = str(path.relative_to(REPOSITORY)) if is_own else path.name
    return f"{flag}{equals}{value}"
