"""One figure: a ratio of two medians, or of two totals, of the same run."""

from typing import NamedTuple


class Figure(NamedTuple):
    """A measured ratio and its goal.

    Attributes:
        name: numerator ÷ denominator, in words.
        ratio: as measured.
        limit: goal: the ratio is at most this.
        parts: both numbers in words, with units.
    """

    name: str
    ratio: float
    limit: float
    parts: str
