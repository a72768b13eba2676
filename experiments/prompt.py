"""Lines from a person, a pipe or a file."""

import codecs
from collections.abc import Iterator
from typing import TextIO

AT_ONCE = 2**16  # bytes, as many as a pipe holds


def lines_as_they_come(stream: TextIO) -> Iterator[list[str]]:
    """Yield all lines that have arrived since the last time, so that they are answered together.

    A terminal shows a prompt. Bytes that are no UTF-8 become surrogates, and a byte order mark at
    the beginning is left out.
    """
    if stream.isatty():
        print("one input per line; end with Ctrl-D")
    rest, mark, ended = b"", codecs.BOM_UTF8, False
    while not ended:
        if stream.isatty():
            print("> ", end="", flush=True)
        come = stream.buffer.read1(AT_ONCE)
        ended = not come
        *whole, rest = (rest + come).split(b"\n")
        if ended and rest:
            whole = [rest]  # the last line may lack its end
        if whole:
            whole[0], mark = whole[0].removeprefix(mark), b""
            yield [line.removesuffix(b"\r").decode(errors="surrogateescape") for line in whole]
