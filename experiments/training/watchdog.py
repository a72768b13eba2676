"""A timeout of steps, which ends a process that is stuck, as in a call that waits for another."""

import faulthandler
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_seconds = 0.0  # of the running `step_timeout`


@contextmanager
def step_timeout(seconds: float) -> Iterator[None]:
    """End the process with the stacks of its threads if a step in this block takes too long.

    Args:
        seconds: from one `step_begins` to the next, or to the end of the block; 0 for no timeout.
    """
    global _seconds
    _seconds = seconds
    step_begins()
    try:
        yield
    finally:
        _seconds = 0.0
        faulthandler.cancel_dump_traceback_later()


def step_begins() -> None:
    """Start the timeout anew: for a training step, a part of a measurement, a sample or a save."""
    if _seconds:
        faulthandler.dump_traceback_later(_seconds, exit=True, file=sys.__stderr__)
