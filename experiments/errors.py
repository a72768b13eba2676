"""Mistakes that a person can mend, told in one sentence.

Each check takes the name of a field, as its flag has it, and the number that it was given.
"""

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class UsageError(Exception):
    """One sentence: what was given, and what is allowed. The door prints it without a traceback."""


@contextmanager
def as_usage_errors(where: str = "") -> Iterator[None]:
    """Tells what the library refuses, a `ValueError`, as the mistake of whoever configured it.

    Args:
        where: what the sentence begins with, where it does not say of what it speaks.
    """
    try:
        yield
    except ValueError as error:
        raise UsageError(f"{where}{error}") from error


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
    """Raises a `ValueError` for a number below the least that is allowed."""
    if not given >= least:  # which NaN is not
        raise ValueError(f"{name} must be at least {least}, got {given}")


def check_positive(name: str, given: float) -> None:
    """Raises a `ValueError` for what is not above 0 and finite."""
    if not 0 < given < math.inf:
        raise ValueError(f"{name} must be a number above 0, got {given}")


def check_share(name: str, given: float) -> None:
    """Raises a `ValueError` for what is no part of a whole: not in [0, 1)."""
    if not 0 <= given < 1:
        raise ValueError(f"{name} must lie in [0, 1), got {given}")


def check_seed(name: str, given: int) -> None:
    """Raises a `ValueError` for what `jax.random.key` does not tell from other seeds."""
    if not 0 <= given < 2**32:
        raise ValueError(f"{name} must lie in [0, 2**32), got {given}")
