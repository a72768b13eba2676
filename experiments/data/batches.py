"""Batches by number, whose rows are read where they are needed.

Each process reads the rows that its devices take. Number and order of the rows are the same in
every process.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

AnyBatch = TypeVar("AnyBatch", covariant=True)


class Rows(NamedTuple, Generic[AnyBatch]):
    """The rows of one batch, before they are read.

    Attributes:
        number: B.
        read: `(rows) -> batch` of some rows alone, a slice of 0, …, B - 1 that is not empty: the
            same arrays, with the same shapes but for the axis B, as those rows of the whole batch.
    """

    number: int
    read: Callable[[slice], AnyBatch]


class Batches(ABC, Generic[AnyBatch]):
    """Batches by number; those that end raise an IndexError and have a length."""

    @abstractmethod
    def rows(self, number: int) -> Rows[AnyBatch]:
        """Return the rows of a batch; no example is read."""

    def __getitem__(self, number: int) -> AnyBatch:
        """The whole batch."""
        rows = self.rows(number)
        return rows.read(slice(0, rows.number))


class Kept(Batches[AnyBatch]):
    """Batches of which those rows that were read are kept, since they are read again and again."""

    def __init__(self, batches: Batches[AnyBatch]) -> None:
        """Take batches that end."""
        self._batches = batches
        self._found: dict[tuple[int, int, int], AnyBatch] = {}

    def __len__(self) -> int:
        """Number of batches."""
        return len(self._batches)

    def rows(self, number: int) -> Rows[AnyBatch]:
        """The rows of a batch."""
        rows = self._batches.rows(number)

        def read(part: slice) -> AnyBatch:
            place = number, part.start, part.stop
            if place not in self._found:
                self._found[place] = rows.read(part)
            return self._found[place]

        return Rows(rows.number, read)
