"""Errors of usage, reported in one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

from attention.primitives.choice import did_you_mean as nearest
from attention.primitives.choice import one_of

__all__ = ["DivergedError", "Stopped", "UsageError", "as_usage_errors", "nearest", "one_of"]


class UsageError(Exception):
    """One sentence: what was given, and what is allowed, printed without a traceback."""


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
