"""Sentences from a person or from a pipe."""

from collections.abc import Iterator
from typing import TextIO


def sentences(stream: TextIO) -> Iterator[str]:
    """Yields lines as they come; asks for them with a prompt if a person sits there."""
    if stream.isatty():
        print("one sentence a line; end with Ctrl-D")
    while True:
        if stream.isatty():
            print("> ", end="", flush=True)
        line = stream.readline()
        if not line:
            return
        yield line.rstrip("\n")
