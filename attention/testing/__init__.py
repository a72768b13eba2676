"""Conformance tests for attention functions, and a search for information leaks in models.

`check_attention` checks any attention function against the contract of this library, row by row,
and returns the smallest failing example of each row. `find_leaks` finds which outputs of a model
depend on which inputs, and which of these dependences are not allowed.

    >>> from attention import attend
    >>> from attention.testing import check_attention
    >>> print(check_attention(attend, rows=("values", "mask", "causality")))
    3 pass
    pass           values
    pass           mask
    pass           causality
"""

from attention.testing.conformance import Report, Row, check_attention
from attention.testing.implementation import CAPABILITIES, EVERYTHING
from attention.testing.leaks import Leak, LeakReport, find_leaks
from attention.testing.rows import ROWS

__all__ = [
    "CAPABILITIES",
    "EVERYTHING",
    "ROWS",
    "Leak",
    "LeakReport",
    "Report",
    "Row",
    "check_attention",
    "find_leaks",
]
