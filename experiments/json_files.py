"""JSON files with checked fields."""

import json
from collections.abc import Mapping
from pathlib import Path
from reprlib import repr as brief
from types import UnionType
from typing import Any

from experiments.errors import UsageError

Fields = Mapping[str, type | UnionType]


def read_json(path: Path, fields: Fields) -> dict[str, Any]:
    """Read the object in a file.

    Args:
        path: of the file.
        fields: types of the fields that are read; None is allowed for a field that may be absent.

    Raises:
        UsageError: it is damaged.
    """
    return _object(_text(path), fields, path)


def read_json_lines(path: Path, fields: Fields) -> list[dict[str, Any]]:
    """Read the objects in a file, one a line, without a last line that a kill cut short.

    Args:
        path: of the file.
        fields: as in `read_json`, of each.

    Raises:
        UsageError: another line is damaged.
    """
    lines = enumerate(_text(path).split("\n")[:-1], start=1)
    return [_object(line, fields, f"{path}, line {number}") for number, line in lines]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def _object(text: str, fields: Fields, place: object) -> dict[str, Any]:
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place} cannot be read: {error}") from error
    if not isinstance(read, dict):
        raise UsageError(f"{place} cannot be read: it is {brief(read)}")
    for name, kind in fields.items():
        if not isinstance(read.get(name), kind):
            raise UsageError(f"{place} cannot be read: its {name} is {brief(read.get(name))}")
    return read
