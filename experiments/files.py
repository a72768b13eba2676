"""Files that are whole or not there, and errors that name the file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Raise an `OSError` that names no file again with this path: so a full disk is reported."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file so that it is there whole or not at all, whenever the process is killed."""
    part = part_of(path)
    with named_errors(path):
        part.write_bytes(content.encode() if isinstance(content, str) else content)
        part.replace(path)


def append(path: Path, text: str) -> None:
    """Append text to a file, which is made if need be."""
    with named_errors(path), path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(text)


def part_of(path: Path) -> Path:
    """Where a file is written before it is whole."""
    return path.with_name(path.name + ".part")
