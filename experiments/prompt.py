"""Sentences from a person or from a pipe."""

import io
from collections.abc import Iterator
from typing import TextIO


def sentences(stream: TextIO) -> Iterator[str]:
    """Yields lines as they come; asks for them with a prompt if a person sits there."""
    if isinstance(stream, io.TextIOWrapper):  # bytes that are no text make an unknown word
        stream.reconfigure(errors="replace")
    if stream.isatty():
        print("one sentence a line; end with Ctrl-D")
    while True:
        if stream.isatty():
            print("> ", end="", flush=True)
        line = stream.readline()
        if not line:
            return
        yield line.rstrip("\n")
