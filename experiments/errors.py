"""Errors of usage, reported in one sentence."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Self


class UsageError(Exception):
    """One sentence: what was given, and what is allowed. `run.py` prints it without a traceback."""


class DivergedError(UsageError, FloatingPointError):
    """A training has a loss or a gradient that is not finite."""


class Stopped(BaseException):
    """A training was stopped by a signal; no `except Exception` of a metric may catch it."""

    @classmethod
    def at(cls, step: int, steps: int) -> Self:
        """Return the error after so many of the steps."""
        return cls(f"stopped at step {step:,} of {steps:,}: the same command continues")


@contextmanager
def as_usage_errors(where: str = "") -> Iterator[None]:
    """Raise each `ValueError` of the library as a `UsageError`, with a prefix."""
    try:
        yield
    except ValueError as error:
        raise UsageError(f"{where}{error}") from error


def one_of(name: str, given: object, known: Collection[str]) -> None:
    """Raise a `ValueError` for an unknown name; it lists the known names and suggests the nearest.

    Unlike that of `attention.primitives.choice`, it lists all of many names.
    """
    if given not in known:
        hint = nearest(str(given).lower(), known, quote=True)
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {given!r}{hint}")


def nearest(given: str, known: Collection[str], *, quote: bool = False) -> str:
    """Return "; did you mean NAME?" with the most similar name, "" if none is similar."""
    near = get_close_matches(given, list(known), n=1)
    return f"; did you mean {repr(near[0]) if quote else near[0]}?" if near else ""
