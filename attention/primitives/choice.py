"""Check names given by the user."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


def one_of(name: str, given: str, known: Sequence[str]) -> None:
    """Check that a name is one of the known names.

    Raises:
        ValueError: an unknown name; the message lists the known ones and suggests the nearest.
    """
    if given not in known:
        hint = did_you_mean(given, known)
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {given!r}{hint}")


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """Return the end of a message that suggests the nearest known name, "" if none is near."""
    near = get_close_matches(str(given).lower(), known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
