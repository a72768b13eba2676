"""Errors of usage, reported in one sentence."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

from attention.primitives.choice import one_of

__all__ = ["DivergedError", "Stopped", "UsageError", "as_usage_errors", "nearest", "one_of"]


class UsageError(Exception):
    """One sentence: what was given, and what is allowed. `run.py` prints it without a traceback."""


class DivergedError(UsageError, FloatingPointError):
    """A training has a loss or a gradient that is not finite."""


class Stopped(BaseException):
    """A training was stopped by a signal; no `except Exception` of a metric may catch it."""

    def __init__(self, step: int, steps: int) -> None:
        """Describe a stop after so many of the steps."""
        super().__init__(f"stopped at step {step:,} of {steps:,}: the same command continues")


@contextmanager
def as_usage_errors(where: str = "") -> Iterator[None]:
    """Raise each `ValueError` of the library as a `UsageError`, with a prefix."""
    try:
        yield
    except ValueError as error:
        raise UsageError(f"{where}{error}") from error


def nearest(given: str, known: Collection[str], *, quote: bool = False) -> str:
    """Return "; did you mean NAME?" with the most similar name, "" if none is similar."""
    near = get_close_matches(given, list(known), n=1)
    return f"; did you mean {repr(near[0]) if quote else near[0]}?" if near else ""
