"""Check names given by the user."""

from collections.abc import Sequence
from difflib import get_close_matches


def one_of(name: str, given: str, known: Sequence[str]) -> None:
    """Check that a name is one of the known names.

    Raises:
        ValueError: an unknown name; the message lists the known ones and suggests the nearest.
    """
    if given not in known:
        near = get_close_matches(str(given).lower(), known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {given!r}{hint}")
