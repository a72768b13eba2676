"""Batches of a step: shuffled, bucketed or packed, each a pure function of (seed, step).

An epoch is a random order of all examples, 8 bytes for each, cut into blocks of at most `BLOCK`
examples. A block is arranged by itself into padded or packed rows, so a step takes little time but
for the first of an epoch, and a run resumes at any step without state. Each process reads the rows
that its devices take; number and order of the rows are the same in every process.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from fractions import Fraction
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from experiments.data.packing import PackedBatch, PackedPairs, pack, pack_batch, pad_batch
from experiments.errors import UsageError

BLOCK = 65_536  # examples of a block: some 0.1 s to pack
DEVIATIONS = 7  # spare room of a block, in standard deviations of the room that blocks need

AnyBatch = TypeVar("AnyBatch", covariant=True)
Groups = list[np.ndarray]  # examples of each packed row, or of each padded batch


class Epoch(NamedTuple):
    """All of the training data once.

    Attributes:
        steps: batches that it makes; an epoch need not end with a batch.
        examples: sentences, pairs, windows or the like.
        tokens: labels that the loss counts.
    """

    steps: int | Fraction
    examples: int
    tokens: int


class TrainingBatches(Protocol):
    """The batch of each training step, a pure function of the step, so a run resumes at any."""

    epoch: Epoch
    padding: float  # share of the positions

    def __getitem__(self, step: int, /) -> Any: ...  # noqa: ANN401 - a batch of any task


class Rows(NamedTuple, Generic[AnyBatch]):
    """The B rows of one batch, before they are read."""

    number: int
    read: Callable[[slice], AnyBatch]  # some rows of the arrays of the batch, at least one


class Batches(ABC, Generic[AnyBatch]):
    """Batches by number, of which each process reads its rows alone."""

    @abstractmethod
    def rows(self, number: int) -> Rows[AnyBatch]:
        """Return the rows of a batch; no example is read.

        Of batches with a length, it raises an IndexError for a number from that on.
        """

    def __getitem__(self, number: int) -> AnyBatch:
        """The whole batch."""
        rows = self.rows(number)
        return rows.read(slice(0, rows.number))


class Examples(Protocol):
    """Examples by number, and positions of their sides `[examples, sides]`, ends included."""

    lengths: np.ndarray

    def __getitem__(self, number: int, /) -> Any: ...  # noqa: ANN401 - whatever is batched


class Buckets(Generic[AnyBatch]):
    """One example a row; examples of similar length are batched, in a few shapes."""

    per_batch = 1  # groups

    def __init__(
        self,
        lengths: Sequence[int],
        tokens: int,
        build: Callable[[Sequence[Any], int, int], AnyBatch] = pad_batch,
    ) -> None:
        """Choose the shapes.

        Args:
            lengths: positions of a row, one number for each shape; no example has more.
            tokens: positions of a batch, on either side.
            build: `(examples, rows, positions of a row) -> batch`: a row for each example, which
                depends on it alone, then rows of padding. There may be no example.
        """
        self._lengths = np.unique(lengths)
        self._sizes = tokens // self._lengths  # rows
        self._build = build

    def capacity(self, lengths: np.ndarray, deviations: float) -> tuple[np.ndarray, int]:
        """Return batches of each bucket, with spare ones, and positions of one side of all."""
        bucket = np.searchsorted(self._lengths, lengths.max(axis=1))
        counts = np.bincount(bucket, minlength=len(self._lengths))
        spare = np.ceil(deviations * np.sqrt(counts + 1)).astype(int)  # one example has a batch too
        batches = -(-(counts + spare) // self._sizes)
        return batches, int(np.sum(batches * self._sizes * self._lengths))

    def arrange(self, numbers: np.ndarray, lengths: np.ndarray, capacity: np.ndarray) -> Groups:
        """Return the numbers of the examples of each batch, bucket after bucket."""
        bucket = np.searchsorted(self._lengths, lengths.max(axis=1))
        groups = []
        for place, (size, batches) in enumerate(zip(self._sizes, capacity, strict=True)):
            members = numbers[bucket == place]
            groups += [members[i * size : (i + 1) * size] for i in range(batches)]
        return groups

    def rows(self, groups: Sequence[tuple[Examples, np.ndarray]]) -> Rows[AnyBatch]:
        """One example a row of the shortest bucket that has room, then rows of padding."""
        ((examples, members),) = groups
        bucket = np.searchsorted(self._lengths, examples.lengths[members].max(initial=0))
        size, length = int(self._sizes[bucket]), int(self._lengths[bucket])

        def read(part: slice) -> AnyBatch:
            chosen = [examples[member] for member in members[part].tolist()]
            return self._build(chosen, len(range(size)[part]), length)

        return Rows(size, read)


class PackedRows:
    """Several examples in a row, all rows of one shape; methods as of `Buckets`."""

    def __init__(self, lengths: Sequence[int], tokens: int) -> None:
        """Take the positions of a row of each side, and of a batch of the longer side."""
        self._lengths, self.per_batch = (*lengths,), tokens // max(lengths)

    def capacity(self, lengths: np.ndarray, deviations: float) -> tuple[int, int]:
        """Return rows, and the mean positions of a side; a UsageError for a longer example."""
        if (lengths.max(axis=0) > self._lengths).any():
            raise UsageError(
                f"an example needs {lengths.max()} positions, and a row has {min(self._lengths)}: "
                "raise batch.row_length"
            )
        need = (lengths / self._lengths).max(axis=1)
        spare = deviations * need.std() / need.mean() / math.sqrt(len(need))
        rows = math.ceil((int(pack(lengths, self._lengths).max()) + 1) * (1 + spare))
        return rows, rows * sum(self._lengths) // len(self._lengths)

    def arrange(self, numbers: np.ndarray, lengths: np.ndarray, capacity: int) -> Groups:
        """Return the numbers of the examples of each row."""
        row = pack(lengths, self._lengths, capacity)
        order = np.argsort(row, kind="stable")
        return np.split(numbers[order], np.searchsorted(row[order], np.arange(capacity + 1)))[1:-1]

    def rows(self, groups: Sequence[tuple[Examples, np.ndarray]]) -> Rows[Any]:
        """A row for each group."""

        def read(part: slice) -> PackedBatch | PackedPairs:
            counts = [len(members) for _, members in groups[part]]
            chosen = [examples[n] for examples, members in groups[part] for n in members.tolist()]
            sides = [
                pack_batch([example[side] for example in chosen], counts, length)
                for side, length in enumerate(self._lengths)
            ]
            return sides[0] if len(sides) == 1 else PackedPairs(*sides)

        return Rows(len(groups), read)


class ShuffledBatches(Batches[AnyBatch]):
    """The batch of each training step, without end, by `batches[step]`.

    Every example occurs once in an epoch. The number of rows is an estimate if there are several
    blocks, or if examples are redrawn: each block then has `DEVIATIONS` of spare room, and an
    example without room would be left out of that epoch.
    """

    def __init__(
        self,
        examples: Examples,
        layout: Buckets[AnyBatch] | PackedRows,
        *,
        seed: int,
        block: int = BLOCK,
        redraw: Callable[[np.ndarray, np.random.Generator], Examples] | None = None,
    ) -> None:
        """Arrange the first block.

        Args:
            examples: the training data.
            layout: of the rows.
            seed: of the order.
            block: most examples of a block.
            redraw: makes the examples of these numbers anew in each epoch (subword dropout).

        Raises:
            UsageError: an example that the layout has no room for.
        """
        self._examples, self._layout, self._redraw, self._seed = examples, layout, redraw, seed
        lengths = examples.lengths
        self._num_blocks = -(-len(lengths) // block)
        self._order = functools.lru_cache(maxsize=1)(self._shuffle)
        is_exact = self._num_blocks == 1 and redraw is None
        drawn, numbers, _ = self._draw(0)
        trial = drawn.lengths[numbers]
        self._capacity, positions = layout.capacity(trial, 0 if is_exact else DEVIATIONS)
        self._block = functools.lru_cache(maxsize=2)(self._arrange)
        self._num_groups = len(self._block(0)[1])
        self.padding = 1 - trial.sum() / (positions * trial.shape[1])
        steps = Fraction(self._num_blocks * self._num_groups, layout.per_batch)
        self.epoch = Epoch(steps, examples=len(lengths), tokens=int(lengths[:, -1].sum()))

    def rows(self, step: int) -> Rows[AnyBatch]:
        """As in `Batches`."""
        groups, first = [], step * self._layout.per_batch
        for index in range(first, first + self._layout.per_batch):
            block, place = divmod(index, self._num_groups)
            examples, arranged = self._block(block)
            groups.append((examples, arranged[place]))
        return self._layout.rows(groups)

    def _arrange(self, block: int) -> tuple[Examples, Groups]:
        """Return examples, and the numbers of those in each group of a block."""
        examples, numbers, random = self._draw(block)
        groups = self._layout.arrange(numbers, examples.lengths[numbers], self._capacity)
        return examples, [groups[index] for index in random.permutation(len(groups))]

    def _shuffle(self, epoch: int) -> tuple[np.ndarray, np.random.Generator]:
        random = np.random.default_rng((self._seed, epoch))
        return random.permutation(len(self._examples.lengths)), random

    def _draw(self, block: int) -> tuple[Examples, np.ndarray, np.random.Generator]:
        """Return examples, and the numbers of those of a block, counted over all epochs."""
        epoch, index = divmod(block, self._num_blocks)
        order, shuffled = self._order(epoch)
        members, random = np.array_split(order, self._num_blocks)[index], deepcopy(shuffled)
        if index:  # no two blocks draw the same
            random = np.random.default_rng((self._seed, epoch, index))
        if self._redraw is None:
            return self._examples, members, random
        return self._redraw(members, random), np.arange(len(members)), random


class SortedBatches(Batches[AnyBatch]):
    """Batches that contain every example once, in a fixed order.

    Shorter examples come first, as it is the longest of a batch that decides its time.
    """

    def __init__(self, examples: Examples, layout: Buckets[AnyBatch] | PackedRows) -> None:
        """Arrange the examples; errors as of `ShuffledBatches`."""
        self._examples, self._layout, lengths = examples, layout, examples.lengths
        order = np.argsort(lengths.max(axis=1), kind="stable")
        capacity, _ = layout.capacity(lengths[order], 0)
        groups = layout.arrange(order, lengths[order], capacity)
        groups += [order[:0]] * (-len(groups) % layout.per_batch)
        starts = range(0, len(groups), layout.per_batch)
        self._groups = [groups[start : start + layout.per_batch] for start in starts]

    def __len__(self) -> int:
        return len(self._groups)

    def rows(self, number: int) -> Rows[AnyBatch]:
        """As in `Batches`."""
        return self._layout.rows([(self._examples, group) for group in self._groups[number]])

    def members(self, number: int) -> np.ndarray:
        """Numbers of the examples in a batch, row after row."""
        return np.concatenate(self._groups[number])


class TextBatch(NamedTuple):
    """Windows of a text, all `[B, T]`.

    Attributes:
        inputs: ids.
        labels: ids of the next tokens.
        counted: bool, the labels that a loss counts.
    """

    inputs: np.ndarray
    labels: np.ndarray
    counted: np.ndarray


class Windows(Batches[TextBatch]):
    """Windows of a text: with a seed random ones, each batch a pure function of (seed, step).

    Without a seed, they follow one another and count every label once: all ids but the first. The
    last one ends with the text and counts only labels that are not in the window before; it is
    repeated to fill the last batch, and counts nothing there.
    """

    padding = 0.0

    def __init__(
        self, ids: np.ndarray, *, context: int, size: int, seed: int | None = None
    ) -> None:
        """Take more than T ids of a text, `context` T, and `size` B."""
        self._ids, self._context, self._size, self._seed = ids, context, size, seed
        windows = -(-(len(ids) - 1) // context)
        self.epoch = Epoch(-(-windows // size), examples=windows, tokens=len(ids) - 1)

    def __len__(self) -> int:
        return self.epoch.steps

    def rows(self, number: int) -> Rows[TextBatch]:
        """As in `Batches`."""
        ids, context = self._ids, self._context
        if self._seed is not None:
            random = np.random.default_rng((self._seed, number))
            begins = random.integers(len(ids) - context, size=self._size)
        elif number < len(self):
            begins = context * np.arange(number * self._size, (number + 1) * self._size)
        else:
            raise IndexError(number)

        def read(part: slice) -> TextBatch:
            chosen = begins[part, None]
            index = np.minimum(chosen, len(ids) - 1 - context) + np.arange(context)
            return TextBatch(ids[index], ids[index + 1], index >= chosen)

        return Rows(self._size, read)
