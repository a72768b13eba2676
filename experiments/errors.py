"""Mistakes that a person can mend, told in one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager


class UsageError(Exception):
    """One sentence: what was given, and what is allowed. The door prints it without a traceback."""


@contextmanager
def as_usage_errors() -> Iterator[None]:
    """Tells what the library refuses, a `ValueError`, as the mistake of whoever configured it."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


def check_at_least(name: str, given: float, least: float) -> None:
    """Checks a number of a configuration.

    Args:
        name: of the field, as its flag names it.
        given: the number.
        least: what it may be at least.

    Raises:
        ValueError: it is too small.
    """
    if given < least:
        raise ValueError(f"{name} must be at least {least}, got {given}")
