"""A choice of several names by words: `causal_* full_4096_*`, or `all`."""

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase


def selected(field: str, words: str, known: Sequence[str]) -> list[str]:
    """The known names that a word means, in their own order.

    Args:
        field: what is chosen, for the sentence.
        words: names, or patterns with `*`, with blanks or commas between them.
        known: all names.

    Raises:
        ValueError: a word that means none of them.
    """
    patterns = ["*" if word == "all" else word for word in words.replace(",", " ").split()]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            near = get_close_matches(pattern, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{field} has no {pattern!r}, which is neither a name nor all{hint}")
    return [name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns)]
