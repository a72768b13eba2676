"""One figure: a ratio of two medians, or of two totals, of the same run."""

from typing import NamedTuple


class Figure(NamedTuple):
    """What was measured.

    Attributes:
        name: this ÷ that.
        ratio: what came of it.
        limit: the most that it should be.
        parts: the two in words, with their units.
    """

    name: str
    ratio: float
    limit: float
    parts: str
