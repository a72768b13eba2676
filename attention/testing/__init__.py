"""Is *this* function a correct attention, and does *that* model look where it may not?

`check_attention` holds any function against the contract of this library, row by row, with the
smallest example of every failure. `find_leaks` says which outputs of a model depend on which
inputs, and which of them should not. Neither needs more than the library itself.

    >>> from attention import attend
    >>> from attention.testing import check_attention
    >>> print(check_attention(attend, rows=("values", "mask", "causality")))
    3 pass
    pass           values
    pass           mask
    pass           causality
"""

from attention.testing.capabilities import CAPABILITIES, EVERYTHING
from attention.testing.conformance import ROWS, check_attention
from attention.testing.leaks import BlindSpot, Leak, LeakReport, find_leaks
from attention.testing.report import Report, Row

__all__ = [
    "CAPABILITIES",
    "EVERYTHING",
    "ROWS",
    "BlindSpot",
    "Leak",
    "LeakReport",
    "Report",
    "Row",
    "check_attention",
    "find_leaks",
]
