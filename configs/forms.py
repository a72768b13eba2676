"""The forms of a configuration: what follows the colon in `configs/NAME.py:tiny`."""

FULL, TINY = "", "tiny"


def is_tiny(form: str) -> bool:
    """Whether the tiny form is asked for.

    Raises:
        ValueError: an unknown form.
    """
    if form not in (FULL, TINY):
        raise ValueError(f"a configuration has the form 'tiny' or none, got {form!r}")
    return form == TINY
