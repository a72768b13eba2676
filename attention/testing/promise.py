"""One row of the contract, in a form that can be held against a function."""

from collections.abc import Callable
from dataclasses import dataclass

from attention.testing.case import Case
from attention.testing.subject import Subject


@dataclass(frozen=True)
class Promise:
    """What should hold for every case.

    Attributes:
        name: in the report.
        check: what is wrong with a case, in a sentence; None if nothing is.
        cases: where to look.
        needs: capabilities without which it means nothing.
        rests_on: rows whose fault would show here again.
        proves: a capability that is not asked for any more once this fails, so that the other rows
            judge the rest.
    """

    name: str
    check: Callable[[Subject, Case], str | None]
    cases: tuple[Case, ...]
    needs: tuple[str, ...] = ()
    rests_on: tuple[str, ...] = ()
    proves: str | None = None


# All axes differ where they may, and few shapes stand for many rows: a shape is a compilation.
PLAIN = Case(B=2, T=5, S=7, N=4, K=4, H=3, Hv=3)
FULL = Case(B=2, T=5, S=7, N=6, K=3, H=4, Hv=2)
SQUARE = Case(B=2, T=7, S=7, N=6, K=3, H=4, Hv=2)
LONG = tuple(
    Case(B=1, T=T, S=S, N=2, K=1, H=4, Hv=3)
    for T, S in [(1, 1), (1, 257), (7, 129), (127, 127), (129, 257), (257, 7)]
)
