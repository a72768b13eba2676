"""A choice by name, and the sentence for a name that nobody knows."""

from collections.abc import Sequence
from difflib import get_close_matches


def one_of(name: str, given: str, known: Sequence[str]) -> None:
    """Checks a word against the known ones.

    Raises:
        ValueError: an unknown word, with the nearest known one.
    """
    if given not in known:
        near = get_close_matches(str(given).lower(), known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {given!r}{hint}")
