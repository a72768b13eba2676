"""Selection of names by patterns: `causal_* full_4096_*`, or `all`."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from experiments.errors import nearest


def selected(field: str, words: str, known: Sequence[str]) -> list[str]:
    """Return the known names that match, in their own order.

    Args:
        field: name of the choice, for error messages.
        words: names or patterns with `*`, separated by blanks or commas.
        known: all names.

    Raises:
        ValueError: a word matches no name.
    """
    patterns = ["*" if word == "all" else word for word in words.replace(",", " ").split()]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            hint = nearest(pattern, known, quote=True)
            raise ValueError(f"{field} has no {pattern!r}, which is neither a name nor all{hint}")
    return [name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns)]
