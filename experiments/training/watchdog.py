"""A timeout of steps, which ends a stuck process, such as a collective call whose peer is gone."""

import faulthandler
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_seconds = 0.0  # of the innermost `step_timeout`


@contextmanager
def step_timeout(seconds: float) -> Iterator[None]:
    """End the process with the stacks of its threads if a step in this block takes too long.

    A block within another one replaces its timeout, which begins anew afterwards.

    Args:
        seconds: from one `step_begins` to the next, or to the end of the block; 0 for no timeout.
    """
    outer = _seconds
    _start(seconds)
    try:
        yield
    finally:
        _start(outer)


def step_begins() -> None:
    """Start the timeout anew: for a training step, a part of a measurement, or a checkpoint."""
    if _seconds:
        faulthandler.dump_traceback_later(_seconds, exit=True, file=sys.__stderr__)


def _start(seconds: float) -> None:
    global _seconds
    _seconds = seconds
    faulthandler.cancel_dump_traceback_later()
    step_begins()
