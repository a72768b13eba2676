"""The folder in which everything a run made stands, enough to evaluate, translate and explain."""

import json
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from experiments.errors import UsageError


class Workdir:
    """Names of the files of a run, and the promise that runs are never mixed up."""

    def __init__(self, path: Path | str) -> None:
        """Points at a folder; nothing is read or written yet."""
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.checkpoints = self.path / "checkpoints"
        self.samples = self.path / "samples.txt"
        self.results = self.path / "results.json"
        self.learning_curve = self.path / "learning_curve.png"
        self.attention = self.path / "attention.png"

    def claim(self, config: ConfigDict) -> None:
        """Makes the folder that of a run of this configuration, or finds that it is already.

        Raises:
            UsageError: it holds a run of another configuration, or what is no run at all.
        """
        if self.config.exists():
            self.check_same(config)
            return
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise UsageError(f"{self.path} exists and is not a run: choose another --workdir")
        self.path.mkdir(parents=True, exist_ok=True)
        write_whole(self.config, config.to_json(indent=2) + "\n")

    def check_same(self, config: ConfigDict) -> None:
        """Compares a configuration with that of the run.

        Raises:
            UsageError: they differ, with every field that does.
        """
        there, here = _flat(self.load_config().to_dict()), _flat(config.to_dict())
        differences = [
            f"{name} is {there.get(name)!r} there and {here.get(name)!r} here"
            for name in sorted({*there, *here})
            if there.get(name) != here.get(name)
        ]
        if differences:
            raise UsageError(
                f"{self.path} holds a run of another configuration ({'; '.join(differences)}): "
                "choose another --workdir"
            )

    def load_config(self) -> ConfigDict:
        """The configuration of the run.

        Raises:
            UsageError: there is no run here.
        """
        if not self.config.is_file():
            raise UsageError(f"{self.path} holds no run: train one with --workdir={self.path}")
        return ConfigDict(json.loads(self.config.read_text(encoding="utf-8")))


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that it is there whole or not at all, whenever the process is killed."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`, as flags name it; tuples are lists, as JSON has it."""
    flat = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = list(value) if isinstance(value, tuple) else value
    return flat
