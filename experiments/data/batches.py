"""Batches by number, whose rows are read where they are needed.

Each process reads the rows that its devices take. Number and order of the rows are the same in
every process.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeGuard, TypeVar

from experiments.data.epoch import Epoch

AnyBatch = TypeVar("AnyBatch", covariant=True)


class TrainingBatches(Protocol):
    """The batch of each training step, a pure function of the step, so a run resumes at any.

    Where they are `Batches`, each process reads its rows alone.

    Attributes:
        epoch: steps, examples and tokens of all training data once.
        padding: share of the positions that is padding.
    """

    epoch: Epoch
    padding: float

    def __getitem__(self, step: int, /) -> Any: ...  # noqa: ANN401 - a batch of any task


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
    """Batches by number.

    A subclass that overrides `__getitem__` is read by whole batches.
    """

    @abstractmethod
    def rows(self, number: int) -> Rows[AnyBatch]:
        """Return the rows of a batch; no example is read."""

    def __getitem__(self, number: int) -> AnyBatch:
        """The whole batch."""
        rows = self.rows(number)
        return rows.read(slice(0, rows.number))


class FiniteBatches(Batches[AnyBatch]):
    """Batches that end: `rows` raises an IndexError for a number from their length on."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of batches."""


class CachedBatches(FiniteBatches[AnyBatch]):
    """Cache the rows that were read, for a split that is measured repeatedly."""

    def __init__(self, batches: FiniteBatches[AnyBatch]) -> None:
        """Read nothing yet."""
        self._batches = batches
        self._found: dict[tuple[int, int, int], AnyBatch] = {}

    def __len__(self) -> int:
        """Number of batches."""
        return len(self._batches)

    def rows(self, number: int) -> Rows[AnyBatch]:
        """The rows of a batch."""
        rows = self._batches.rows(number)

        def read(part: slice) -> AnyBatch:
            key = number, part.start, part.stop
            if key not in self._found:
                self._found[key] = rows.read(part)
            return self._found[key]

        return Rows(rows.number, read)


def reads_rows(batches: object) -> TypeGuard[Batches]:
    """Return whether rows of batches are read alone: `__getitem__` must be that of `Batches`."""
    return isinstance(batches, Batches) and type(batches).__getitem__ is Batches.__getitem__
