"""Atomic writes of files, and errors that name the file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Add this path to an `OSError` without a file name, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file atomically: after a kill it is complete or absent."""
    part = part_of(path)
    with named_errors(path):
        part.write_bytes(content.encode() if isinstance(content, str) else content)
        part.replace(path)


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text, which line feeds alone separate, as other programs count them."""
    text = path.read_text(encoding="utf-8-sig")
    return text.removesuffix("\n").split("\n") if text else []


def append(path: Path, text: str) -> None:
    """Append text to a file; create it if it does not exist."""
    with named_errors(path), path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(text)


def part_of(path: Path) -> Path:
    """Return the path of a file while it is written."""
    return path.with_name(path.name + ".part")
