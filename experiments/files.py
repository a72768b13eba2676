"""Atomic writes of files, errors that name the file, and JSON with checked fields."""

import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten
from types import UnionType
from typing import Any
from uuid import uuid4

from experiments.errors import UsageError

PART = ".part"  # ends the name of a file or folder while it is written
WEEK = 7 * 24 * 60 * 60
Fields = Mapping[str, type | UnionType]  # None is allowed for a field that may be absent


@contextmanager
def named_errors(path: Path, *kinds: type[Exception]) -> Iterator[None]:
    """Raise an `OSError`, as of a full disk, or other kinds, as a `UsageError` with the path."""
    try:
        yield
    except (OSError, *kinds) as error:
        raise UsageError(f"{path} cannot be written: {cause(error)}") from error


def cause(error: Exception) -> str:
    """Return the reason of the system, else the beginning of the message of the library.

    A model has other shapes than its checkpoint if someone edited a file of the run.
    """
    if shapes := re.search(r"Requested shape: (\(.*?\)) .* stored shape: (\(.*?\))", str(error)):
        other = f"an array has shape {shapes[2]}, but {shapes[1]} in the model"
        return f"{other}: config.json or a vocabulary has changed"
    if number := re.search(r"os_error_code='(\d+)'", str(error)):  # of tensorstore
        return os.strerror(int(number[1]))
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return shorten(reason, 80, placeholder=" …")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file atomically: after a kill or a power failure it is complete or absent.

    Several processes may write the same file at once; it then has the content of one of them.
    """
    part = path.with_name(f"{path.name}.{uuid4().hex[:8]}{PART}")
    with named_errors(path):
        try:
            part.write_bytes(content.encode() if isinstance(content, str) else content)
            publish(part, path)
        finally:
            part.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Create a folder, and those that it is in, if they do not exist."""
    with named_errors(path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """Create a folder in another one, for what is then published; remove abandoned ones there."""
    make_folder(folder)
    with named_errors(folder):
        remove_abandoned(folder)
        temporary = TemporaryDirectory(dir=folder, suffix=PART)
    with temporary as path:
        yield Path(path)


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text, which line feeds alone separate, as other programs count them.

    A carriage return before a line feed belongs to it, and any other one to the text.
    """
    text = path.read_bytes().decode("utf-8-sig")
    return split_lines(text) if text else []


def split_lines(text: str) -> list[str]:
    """Return the lines of a text, as `read_lines`; the last one may lack its end."""
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def publish(part: Path, path: Path) -> None:
    """Rename a file, or a folder of files, whose content is then on the disk."""
    for written in part.iterdir() if part.is_dir() else [part]:
        with written.open("rb+") as file:
            os.fsync(file.fileno())
    part.replace(path)


def append(path: Path, text: str) -> None:
    """Append text to a file; create it if it does not exist."""
    with named_errors(path), path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(text)


def remove_abandoned(folder: Path) -> None:
    """Remove what was not written to its end a week ago or earlier."""
    for part in folder.glob(f"*{PART}"):
        with suppress(FileNotFoundError):  # another process has ended writing it
            if time.time() - part.stat().st_mtime > WEEK:
                shutil.rmtree(part) if part.is_dir() else part.unlink()


def read_json(path: Path, fields: Fields) -> dict[str, Any]:
    """Read the object in a file, and check the types of its fields.

    Raises:
        UsageError: it is damaged.
    """
    return read_json_lines(path, fields, is_whole=True)[0]


def read_json_lines(path: Path, fields: Fields, *, is_whole: bool = False) -> list[dict[str, Any]]:
    """Read the objects in a file, one a line, without a last line that a kill cut short.

    If `is_whole`, the file is one object.

    Raises:
        UsageError: another line is damaged.
    """
    try:
        text = path.read_text(encoding="utf-8")
        objects = [json.loads(part) for part in ([text] if is_whole else text.split("\n")[:-1])]
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    for number, content in enumerate(objects, start=1):
        for key, kind in fields.items():
            if not isinstance(content, dict) or not isinstance(content.get(key), kind):
                raise UsageError(f"{path} cannot be read: {key!r} of object {number} is missing")
    return objects
