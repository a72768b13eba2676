"""Configurations by name or path of their file, and their fields by dotted name."""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from experiments.config.build import KINDS
from experiments.config.data import TextPart
from experiments.config.flags import as_config_dict
from experiments.errors import UsageError, nearest
from experiments.plugin import import_file
from experiments.registry import DATASETS

REPOSITORY = Path(__file__).resolve().parent.parent
DEFAULT = "toy_translation"  # configuration of a command without --config


def load_config(name: str) -> ConfigDict:
    """Load a configuration by its name, such as "toy_translation:tiny", or by the path of its file.

    Raises:
        UsageError: there is no such file, or it has an error.
    """
    path, form = _config_path(name)
    try:
        return import_file(path).get_config(*form)
    except ValueError as error:  # of an unknown form
        raise UsageError(str(error)) from error
    except Exception as error:  # whatever the code of a person raises
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"the configuration {path} cannot be read: {reason}") from error


def choose_data(config: ConfigDict, name: str | None) -> None:
    """Replace the data of a config, if it is of another name, by the defaults of that dataset."""
    if name not in DATASETS or name == config.data.name:
        return
    kind = DATASETS[name].config
    config.data = as_config_dict(kind())
    for part in ("text", "literature"):  # which belonged to the other data
        if part in config:
            del config[part]
    if kind.is_shared is None:
        config.text = as_config_dict(TextPart())


def _config_path(name: str) -> tuple[Path, list[str]]:
    """Return the file of a configuration, and the form after the colon if there is one."""
    stem, *form = name.split(":", 1)
    if "/" not in stem and not Path(stem).suffix:
        known = {path.stem: path for path in config_files()}
        if stem in known:
            return known[stem], form
        hint = nearest(stem, known)
    else:
        for path in (Path(stem), REPOSITORY / stem):
            if path.is_file():
                return path, form
        hint = nearest(stem, [str(path) for path in Path(stem).parent.glob("*.py")])
    raise UsageError(f"there is no configuration {stem!r}{hint or '; --help lists all'}")


def config_files(folder: Path = REPOSITORY / "configs") -> list[Path]:
    """List the files of a folder that define a configuration."""
    files = sorted(folder.glob("*.py"))
    return [path for path in files if "\ndef get_config(" in path.read_text(encoding="utf-8")]


def wrong_value(error: str, base: ConfigDict) -> str:
    """Return a sentence about the value of a flag, from the message of absl."""
    text = error.strip().replace("\n", " ")
    found = re.match(r"flag --config\.([\w.]+)=(.*?): ", text)
    kind = KINDS.get(type(dict(fields_of(base)).get(found[1]))) if found else None
    return f"--config.{found[1]} must be {kind}, got {found[2]!r}" if kind else text


def check_field(flag: str, config: ConfigDict) -> None:
    """Raise a `UsageError` for a field that the configuration lacks, with the nearest one."""
    parent, wanted = config, flag.removeprefix("config.")
    *_, name = parts = wanted.split(".")
    for depth, part in enumerate(parts):
        if not isinstance(parent, ConfigDict) or part not in parent:
            fields = [name for name, _ in fields_of(config)]
            last = {name.split(".")[-1]: name for name in fields}
            near = get_close_matches(wanted, fields, n=1) or [
                last[each] for each in get_close_matches(name, list(last), n=1, cutoff=0.7)
            ]
            is_table = depth > 0 and isinstance(parent, ConfigDict)
            known = f": {'.'.join(parts[:depth])} has {', '.join(parent)}" if is_table else ""
            hint = f"; did you mean --config.{near[0]}?" if near else known
            raise UsageError(f"the configuration has no field {wanted!r}{hint}")
        parent = parent[part]


def fields_of(config: ConfigDict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of each field."""
    for name, value in config.items():
        if isinstance(value, ConfigDict):
            yield from fields_of(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
