"""One property of the contract, as a check that applies to any attention function."""

from collections.abc import Callable
from dataclasses import dataclass

from attention.testing.case import Case
from attention.testing.implementation import Implementation


@dataclass(frozen=True)
class Check:
    """A property that holds for every case.

    Attributes:
        name: of the row in the report.
        find_fault: returns a sentence about the error in one case, or None if it passes. It may
            raise NotImplementedError with a reason why the property cannot be checked.
        cases: the cases to check.
        needs: capabilities without which the property has no meaning.
        depends_on: rows whose failure would make this one fail for the same reason.
        capability: is removed from the claimed capabilities if this check fails, so that the other
            rows do not fail for the same reason.
    """

    name: str
    find_fault: Callable[[Implementation, Case], str | None]
    cases: tuple[Case, ...]
    needs: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    capability: str | None = None


# All axes differ where they may. Rows share these few shapes, since each shape is compiled.
PLAIN = Case(B=2, T=5, S=7, N=4, K=4, H=3, Hv=3)
FULL = Case(B=2, T=5, S=7, N=6, K=3, H=4, Hv=2)
SQUARE = Case(B=2, T=7, S=7, N=6, K=3, H=4, Hv=2)
UNALIGNED = tuple(
    Case(B=1, T=T, S=S, N=2, K=1, H=4, Hv=3)
    for T, S in [(1, 1), (1, 257), (7, 129), (127, 127), (129, 257), (257, 7)]
)
