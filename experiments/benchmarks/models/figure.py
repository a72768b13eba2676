"""One figure: a ratio of two times that were measured in turn in one process."""

import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self, TypeVar

from experiments.benchmarks.contender import first_line

T = TypeVar("T")


class Timed(NamedTuple):
    """A measured time.

    Attributes:
        seconds: a median or a total; None if a peer raised an exception.
        note: what else was measured, or the first line of the exception.
    """

    seconds: float | None
    note: str = ""

    def __str__(self) -> str:
        """Return the time in words, with its unit."""
        if self.seconds is None:
            return self.note
        small = self.seconds < 1
        value = 1e3 * self.seconds if small else self.seconds
        text = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
        return f"{text} {'ms' if small else 's'}" + (f" ({self.note})" if self.note else "")


class Figure(NamedTuple):
    """A measured ratio and its goal.

    Attributes:
        name: numerator ÷ denominator, in words.
        limit: goal: the ratio is at most this.
        ours: numerator.
        theirs: denominator.
    """

    name: str
    limit: float
    ours: Timed
    theirs: Timed

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        """Return a figure from the fields that `as_dict` returned."""
        times = {name: Timed(**fields[name]) for name in ("ours", "theirs")}
        return cls(**{**fields, **times})

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON."""
        return {**self._asdict(), "ours": self.ours._asdict(), "theirs": self.theirs._asdict()}

    @property
    def ratio(self) -> float | None:
        """Return ours ÷ theirs; None if a peer raised an exception."""
        return None if self.theirs.seconds is None else self.ours.seconds / self.theirs.seconds


class Peer:
    """An object of another library, which is not used again after its first exception.

    Attributes:
        failure: first line of the exception; empty without one.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        """Make the object; an exception is printed and kept, as in `run`."""
        self.failure = ""
        self._object: Any = None
        self._object = self.run(lambda _: make())

    def run(self, do: Callable[[Any], T]) -> T | None:
        """Return the result of a function of the object; None after an exception."""
        if self.failure:
            return None
        try:
            return do(self._object)
        except Exception as error:  # ours and the other peers are measured
            traceback.print_exception(error)
            self.failure = first_line(error)
            return None
