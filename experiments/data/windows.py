"""Batches of a shuffled order of the data, each a pure function of (seed, step).

An epoch is a random order of all examples, cut into windows of at most `WINDOW` examples. A window
is arranged by itself into padded or packed rows, so neither time nor memory of a step grows with
the data, and a run resumes at any step without state.
"""

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Generic, Protocol

import numpy as np

from experiments.data.batches import AnyBatch, Batches, FiniteBatches, Rows
from experiments.data.epoch import Epoch
from experiments.data.packing import pack
from experiments.data.permutation import permuted
from experiments.data.rows import PackedBatch, PackedPairs, pack_batch, pad_batch
from experiments.errors import UsageError

WINDOW = 65_536  # examples of a window: some 0.1 s to pack
DEVIATIONS = 7  # spare room of a window, in standard deviations of the room that windows need

Units = list[np.ndarray]  # examples of each row, or of each batch if batches have several lengths


class Examples(Protocol):
    """Examples by number, and `lengths` `[examples, sides]`, ends included."""

    @property
    def lengths(self) -> np.ndarray:
        """Positions that each side takes."""

    def __getitem__(self, number: int, /) -> Any: ...  # noqa: ANN401 - whatever is batched


class Layout(Protocol[AnyBatch]):
    """A way to arrange examples into units, a fixed number of which make a batch.

    The type of a capacity is the layout's own: a number of rows, or one for each length.
    """

    per_batch: int

    def check(self, lengths: np.ndarray) -> None:
        """Raise a UsageError if an example has no room."""

    def capacity(self, lengths: np.ndarray, deviations: float) -> Any:  # noqa: ANN401 - its own type
        """Number of units that these examples need, and so many deviations more."""

    def arrange(self, lengths: np.ndarray, capacity: Any) -> Units:  # noqa: ANN401 - its own type
        """Numbers of the examples of each unit, in a fixed order; as many units as `capacity`."""

    def positions(self, capacity: Any) -> int:  # noqa: ANN401 - its own type
        """Positions of one side of so many units."""

    def rows(self, units: Sequence[tuple[Examples, np.ndarray]]) -> Rows[AnyBatch]:
        """The rows of a batch of `per_batch` units, each some of its examples, by number."""


class Windows(Batches[AnyBatch]):
    """The batch of each training step, without end, by `windows[step]`.

    Every example occurs once in an epoch. The number of rows is an estimate if there are several
    windows, or if examples are redrawn: each window then has `DEVIATIONS` of spare room, and an
    example without room would be left out of that epoch.
    """

    def __init__(
        self,
        examples: Examples,
        layout: Layout[AnyBatch],
        *,
        seed: int,
        size: int = WINDOW,
        redraw: Callable[[np.ndarray, np.random.Generator], Examples] | None = None,
    ) -> None:
        """Arrange the first window.

        Args:
            examples: the training data.
            layout: `PackedRows`, `PackedPairRows` or `Buckets`.
            seed: of the order.
            size: most examples of a window.
            redraw: makes the examples of these numbers anew in each epoch (subword dropout).

        Raises:
            UsageError: no example, or one that the layout has no room for.
        """
        lengths = _checked_lengths(examples, layout, "train on")
        self._examples, self._layout, self._redraw, self._seed = examples, layout, redraw, seed
        self._num_windows = -(-len(lengths) // size)
        self._bounds = np.arange(self._num_windows + 1) * len(lengths) // self._num_windows
        is_exact = self._num_windows == 1 and redraw is None
        trial = self._draw(0, np.random.default_rng((seed, 0))).lengths
        self._capacity = layout.capacity(trial, 0 if is_exact else DEVIATIONS)
        self._units = len(layout.arrange(trial[:0], self._capacity))
        self._window = functools.lru_cache(maxsize=2)(self._arrange)
        self.padding = 1 - trial.sum() / (layout.positions(self._capacity) * trial.shape[1])
        """Share of the positions of training batches, of all sides, that are padding."""
        steps = Fraction(self._num_windows * self._units, layout.per_batch)
        tokens = int(lengths[:, -1].sum())
        self.epoch = Epoch(steps, examples=len(lengths), tokens=tokens)

    def rows(self, step: int) -> Rows[AnyBatch]:
        """The rows of the batch of a training step, counted from 0."""
        units = []
        for window, unit in self._places(step):
            examples, arranged = self._window(window)
            units.append((examples, arranged[unit]))
        return self._layout.rows(units)

    def members(self, step: int) -> np.ndarray:
        """Numbers of the training examples in the batch of a step."""
        found = []
        for window, unit in self._places(step):
            members = self._members(window, np.random.default_rng((self._seed, window)))
            found.append(members[self._window(window)[1][unit]])
        return np.concatenate(found)

    def _places(self, step: int) -> list[tuple[int, int]]:
        """Return the window of each unit of a batch, and its number there."""
        first = step * self._layout.per_batch
        numbers = range(first, first + self._layout.per_batch)
        return [divmod(number, self._units) for number in numbers]

    def _arrange(self, window: int) -> tuple[Examples, Units]:
        random = np.random.default_rng((self._seed, window))
        examples = self._draw(window, random)
        units = self._layout.arrange(examples.lengths, self._capacity)
        return examples, [units[place] for place in random.permutation(len(units))]

    def _draw(self, window: int, random: np.random.Generator) -> Examples:
        members = self._members(window, random)
        if self._redraw is None:
            return _Chosen(self._examples, members)
        return self._redraw(members, random)

    def _members(self, window: int, random: np.random.Generator) -> np.ndarray:
        """Numbers of the examples of a window, counted over all epochs."""
        number = int(self._bounds[-1])
        if self._num_windows == 1:
            return random.permutation(number)
        epoch, place = divmod(window, self._num_windows)
        places = np.arange(*self._bounds[place : place + 2])
        return permuted(places, number, np.random.SeedSequence((self._seed, epoch)))


class _Chosen:
    """Some of the examples, in the order of `members`."""

    def __init__(self, examples: Examples, members: np.ndarray) -> None:
        self._examples, self._members = examples, members
        self.lengths = examples.lengths[members]

    def __getitem__(self, number: int) -> Any:  # noqa: ANN401 - whatever is batched
        return self._examples[self._members[number]]


class Once(FiniteBatches[AnyBatch]):
    """Batches that contain every example once, in a fixed order.

    Shorter examples come first, as it is the longest of a batch that decides its time.
    """

    def __init__(self, examples: Examples, layout: Layout[AnyBatch]) -> None:
        """Arrange the examples.

        Raises:
            UsageError: no example, or one that the layout has no room for.
        """
        lengths = _checked_lengths(examples, layout, "measure")
        self._examples, self._layout = examples, layout
        order = np.argsort(lengths.max(axis=1), kind="stable")
        lengths = lengths[order]
        units = [order[unit] for unit in layout.arrange(lengths, layout.capacity(lengths, 0))]
        units += [order[:0]] * (-len(units) % layout.per_batch)
        starts = range(0, len(units), layout.per_batch)
        self._units = [units[start : start + layout.per_batch] for start in starts]

    def __len__(self) -> int:
        """Number of batches."""
        return len(self._units)

    def rows(self, number: int) -> Rows[AnyBatch]:
        """The rows of a batch."""
        return self._layout.rows([(self._examples, unit) for unit in self._units[number]])

    def members(self, number: int) -> np.ndarray:
        """Numbers of the examples in a batch, row after row."""
        return np.concatenate(self._units[number])


class Buckets(Generic[AnyBatch]):
    """One example a row; examples of similar length are batched, in a few shapes."""

    per_batch = 1  # a unit is a batch

    def __init__(
        self,
        lengths: Sequence[int],
        tokens: int,
        build: Callable[[Sequence[Any], int, int], AnyBatch] = pad_batch,
    ) -> None:
        """Choose the shapes.

        Args:
            lengths: positions of a row, one number for each shape.
            tokens: positions of a batch, on either side.
            build: `(examples, rows, positions of a row) -> batch` of the arrays of some rows of a
                batch: one for each example, then rows of padding. There may be no example. Each
                row of the arrays depends on its own example alone.
        """
        self._lengths = np.unique(lengths)
        self._tokens = tokens
        self._build = build

    def check(self, lengths: np.ndarray) -> None:
        """Raise a UsageError if an example is longer than all buckets, or a bucket than a batch."""
        if (longest := lengths.max()) > self._lengths[-1]:
            raise UsageError(
                f"an example needs {longest} positions, and the longest bucket has "
                f"{self._lengths[-1]}: raise model.max_length, the longest of them"
            )
        _check_tokens(self._tokens, self._lengths[-1])

    def capacity(self, lengths: np.ndarray, deviations: float) -> np.ndarray:
        """Batches of each bucket."""
        bucket = np.searchsorted(self._lengths, lengths.max(axis=1))
        counts = np.bincount(bucket, minlength=len(self._lengths))
        spare = np.ceil(deviations * np.sqrt(counts + 1)).astype(int)  # one example has a batch too
        return -(-(counts + spare) // (self._tokens // self._lengths))

    def arrange(self, lengths: np.ndarray, capacity: np.ndarray) -> Units:
        """Examples of each batch, bucket after bucket."""
        bucket = np.searchsorted(self._lengths, lengths.max(axis=1))
        units = []
        for number, batches in enumerate(capacity):
            size = self._tokens // self._lengths[number]
            members = np.flatnonzero(bucket == number)
            units += [members[i * size : (i + 1) * size] for i in range(batches)]
        return units

    def positions(self, capacity: np.ndarray) -> int:
        """Positions of one side of all batches."""
        return int(np.sum(capacity * (self._tokens // self._lengths) * self._lengths))

    def rows(self, units: Sequence[tuple[Examples, np.ndarray]]) -> Rows[AnyBatch]:
        """One example a row of the shortest bucket that has room, then rows of padding."""
        ((examples, members),) = units
        length = self._length(examples.lengths[members].max(initial=0))
        size = self._tokens // length

        def read(part: slice) -> AnyBatch:
            found = [examples[member] for member in members[part].tolist()]
            return self._build(found, len(range(size)[part]), length)

        return Rows(size, read)

    def _length(self, longest: int) -> int:
        return int(self._lengths[np.searchsorted(self._lengths, longest)])


class PackedRows:
    """Several examples in a row, all rows of one shape; an example is a tuple of one side."""

    FIELD = "batch.row_length"  # of a configuration, that decides the positions of a row

    def __init__(self, lengths: Sequence[int], tokens: int) -> None:
        """Choose the shape.

        Args:
            lengths: positions of a row of each side.
            tokens: positions of a batch of the side with longer rows.
        """
        self.lengths = (*lengths,)
        self._tokens = tokens
        self.per_batch = tokens // max(lengths)

    def check(self, lengths: np.ndarray) -> None:
        """Raise a UsageError if an example is longer than a row, or a row longer than a batch."""
        for length, longest in zip(self.lengths, lengths.max(axis=0), strict=True):
            if longest > length:
                raise UsageError(
                    f"an example needs {longest} positions, and a packed row has {length}: raise "
                    f"{self.FIELD}"
                )
        _check_tokens(self._tokens, max(self.lengths))

    def capacity(self, lengths: np.ndarray, deviations: float) -> int:
        """Number of rows."""
        rows = int(pack(lengths, self.lengths).max()) + 1
        need = (lengths / self.lengths).max(axis=1)
        return math.ceil(rows * (1 + deviations * need.std() / need.mean() / math.sqrt(len(need))))

    def arrange(self, lengths: np.ndarray, capacity: int) -> Units:
        """Examples of each row."""
        row = pack(lengths, self.lengths, capacity)
        order = np.argsort(row, kind="stable")
        return np.split(order, np.searchsorted(row[order], np.arange(capacity + 1)))[1:-1]

    def positions(self, capacity: int) -> int:
        """Positions of so many rows: the mean of the sides."""
        return capacity * sum(self.lengths) // len(self.lengths)

    def rows(self, units: Sequence[tuple[Examples, np.ndarray]]) -> Rows[Any]:
        """A row for each unit."""

        def read(part: slice) -> PackedBatch | PackedPairs:
            rows = units[part]
            return self._build([[examples[n] for n in each.tolist()] for examples, each in rows])

        return Rows(len(units), read)

    def _build(self, rows: Sequence[Sequence[tuple]]) -> PackedBatch | PackedPairs:
        return self._side(rows, 0)

    def _side(self, rows: Sequence[Sequence[tuple]], side: int) -> PackedBatch:
        return pack_batch([[each[side] for each in row] for row in rows], self.lengths[side])


class PackedPairRows(PackedRows):
    """Several pairs in a row: both sides of a pair are in the same row of their side."""

    def _build(self, rows: Sequence[Sequence[tuple]]) -> PackedPairs:
        return PackedPairs(self._side(rows, 0), self._side(rows, 1))


def _checked_lengths(examples: Examples, layout: Layout[Any], use: str) -> np.ndarray:
    """Return the lengths of examples that a layout has room for.

    Args:
        examples: of a split.
        layout: of their batches.
        use: what the examples are for, in the error of a split without any.

    Raises:
        UsageError: no example, or one that the layout has no room for.
    """
    if not len(examples.lengths):
        raise UsageError(f"there is no example to {use}")
    layout.check(examples.lengths)
    return examples.lengths


def _check_tokens(tokens: int, length: int) -> None:
    if length > tokens:
        raise UsageError(
            f"a batch of {tokens} tokens has no room for a row of {length}: raise batch.tokens"
        )
