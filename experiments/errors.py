"""Mistakes that a person can mend, told in one sentence."""


class UsageError(Exception):
    """What was given, what is allowed. The door prints the sentence, without a traceback."""


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
