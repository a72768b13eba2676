"""Atomic writes of files, and errors that name the file."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from experiments.errors import UsageError

PART = ".part"  # ends the name of a file or folder while it is written
WEEK = 7 * 24 * 60 * 60


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Raise an `OSError`, such as that of a full disk, as a `UsageError` that names the file."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file atomically: after a kill or a power failure it is complete or absent.

    Several processes may write the same file at once; it then has the content of one of them.
    """
    part = path.with_name(f"{path.name}.{uuid4().hex[:8]}{PART}")
    with named_errors(path):
        try:
            with part.open("xb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
            publish(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text, which line feeds alone separate, as other programs count them.

    A carriage return before a line feed belongs to it, and any other one to the text.
    """
    text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    return text.removesuffix("\n").split("\n") if text else []


def publish(part: Path, path: Path) -> None:
    """Rename a file, or a folder of files, whose content is then on the disk."""
    for each in part.iterdir() if part.is_dir() else [part]:
        with each.open("rb+") as file:
            os.fsync(file.fileno())
    part.replace(path)


def append(path: Path, text: str) -> None:
    """Append text to a file; create it if it does not exist."""
    with named_errors(path), path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(text)


def cut(path: Path, length: int) -> None:
    """Drop what was appended to a file after it had so many bytes."""
    if path.exists() and path.stat().st_size > length:
        with named_errors(path):
            os.truncate(path, length)


def remove_abandoned(folder: Path) -> None:
    """Remove what was not written to its end a week ago or earlier."""
    for part in folder.glob(f"*{PART}"):
        with suppress(FileNotFoundError):  # another process has ended writing it
            if time.time() - part.stat().st_mtime > WEEK:
                shutil.rmtree(part) if part.is_dir() else part.unlink()
