"""Answer each line of standard input with a trained model."""

import codecs
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from experiments.config import Config
from experiments.tasks.prediction import show
from experiments.trained import Run
from experiments.workdir import Workdir

FEW_STEPS = 100  # of the tiny form of a config


def predict(
    config: Config, workdir: Workdir, cache: Path, groups: Iterable[Sequence[str]], form: str
) -> int:
    """Answer lines as they come; those of a group are answered together.

    Args:
        config: of the run.
        workdir: of the run.
        cache: where generated data is kept.
        groups: lines.
        form: of the output, "text" or "json".

    Returns:
        Number of lines without an answer; each has a message on standard error.
    """
    run = Run.load(workdir, cache, config)
    step = int(run.state.step)
    what = ", a smoke test: its answers mean nothing" if step < FEW_STEPS else ""
    print(f"{workdir.path}: {step:,} steps of training{what}", file=sys.stderr, flush=True)
    return show((run.predict(lines) for lines in groups), form)


def lines_as_they_come(stream: TextIO) -> Iterator[list[str]]:
    """Yield all lines that have arrived since the last time, so that they are answered together.

    A terminal shows a prompt. Bytes that are no UTF-8 become U+FFFD, and a byte order mark at the
    beginning is left out.
    """
    if stream.isatty():
        print("one input per line; end with Ctrl-D")
    rest, mark, ended = b"", codecs.BOM_UTF8, False
    while not ended:
        if stream.isatty():
            print("> ", end="", flush=True)
        received = stream.buffer.read1(2**16)  # as many bytes as a pipe holds
        ended = not received
        *lines, rest = (rest + received).split(b"\n")
        if ended and rest:
            lines = [rest]  # the last line may lack its end
        if lines:
            lines[0], mark = lines[0].removeprefix(mark), b""
            yield [line.removesuffix(b"\r").decode(errors="replace") for line in lines]
