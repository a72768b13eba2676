"""Errors of usage, reported in one sentence.

Each check takes the name of a field, as its flag is named, and the value that was given.
"""

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from traceback import extract_tb
from typing import Self


class UsageError(Exception):
    """One sentence: what was given, and what is allowed. `run.py` prints it without a traceback."""


class Stopped(BaseException):
    """A training was stopped by a signal; no `except Exception` of a metric may catch it."""

    @classmethod
    def at(cls, step: int, steps: int) -> Self:
        """Return the error after so many of the steps."""
        return cls(f"stopped at step {step:,} of {steps:,}: the same command continues")


@contextmanager
def as_usage_errors(where: str = "") -> Iterator[None]:
    """Raise each `ValueError` of the library as a `UsageError`.

    Args:
        where: a prefix, for sentences that do not name what they are about.
    """
    try:
        yield
    except ValueError as error:
        raise UsageError(f"{where}{error}") from error


@contextmanager
def errors_of(what: str) -> Iterator[None]:
    """Raise each error of a function of a plugin as a `UsageError` that names it and its line.

    Args:
        what: name of the function, as "the metric 'bleu'".
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # whatever the code of a person raises
        frame = extract_tb(error.__traceback__)[2:3]  # after this function and its caller
        place = "".join(f" in {Path(each.filename).name}, line {each.lineno}" for each in frame)
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"{what} failed{place}: {text}") from error


def one_of(name: str, given: object, known: Collection[str]) -> None:
    """Raise a `ValueError` for an unknown name; it lists the known names and suggests the nearest.

    `attention.primitives.choice` has it too, but cannot be imported without jax.
    """
    if given not in known:
        hint = nearest(str(given).lower(), known, quote=True)
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {given!r}{hint}")


def nearest(given: str, known: Collection[str], *, quote: bool = False) -> str:
    """Return "; did you mean NAME?" with the most similar name, "" if none is similar."""
    near = get_close_matches(given, list(known), n=1)
    return f"; did you mean {repr(near[0]) if quote else near[0]}?" if near else ""


def check_at_least(name: str, given: float, least: float) -> None:
    """Raise a `ValueError` for a number below `least`."""
    if not given >= least:  # which NaN is not
        raise ValueError(f"{name} must be at least {least}, got {given}")


def check_positive(name: str, given: float) -> None:
    """Raise a `ValueError` for a number that is not above 0 and finite."""
    if not 0 < given < math.inf:
        raise ValueError(f"{name} must be a number above 0, got {given}")


def check_finite(name: str, given: float) -> None:
    """Raise a `ValueError` for NaN and infinities."""
    if not math.isfinite(given):
        raise ValueError(f"{name} must be finite, got {given}")


def check_share(name: str, given: float) -> None:
    """Raise a `ValueError` for a number outside [0, 1)."""
    if not 0 <= given < 1:
        raise ValueError(f"{name} must lie in [0, 1), got {given}")


def check_seed(name: str, given: int) -> None:
    """Raise a `ValueError` for a seed outside [0, 2**32), the range of `jax.random.key`."""
    if not 0 <= given < 2**32:
        raise ValueError(f"{name} must lie in [0, 2**32), got {given}")
