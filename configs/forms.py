"""Forms of a configuration: the part after the colon in `configs/NAME.py:tiny`."""

from experiments.errors import UsageError

FULL, TINY = "", "tiny"


def is_tiny(form: str) -> bool:
    """Return whether the form is the tiny one.

    Raises:
        UsageError: an unknown form.
    """
    if form not in (FULL, TINY):
        raise UsageError(f"a configuration has the form 'tiny' or none, got {form!r}")
    return form == TINY
