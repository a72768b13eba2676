"""Packing: several short sequences in one row, so that little of a batch is padding.

The sequences of a row are segments: with `masks.causal() & masks.segments(batch.segments)` none
sees another, and `batch.positions` start again in each, for models that add positions to the
embeddings. Relative schemes need nothing: distances inside a segment are what they were. Where
sequences come in pairs, both sides of a pair stand in the same row of their side, and have the same
number there.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from experiments.data.batching import EncodedPair
from experiments.data.epoch import Epoch
from experiments.data.vocabulary import BOS, EOS, PAD
from experiments.errors import UsageError


class PackedBatch(NamedTuple):
    """Rows of sequences, all `[B, T]`.

    Attributes:
        inputs: ids, each sequence begun by `BOS`: what a decoder has seen.
        labels: ids, each sequence ended by `EOS`: what comes next, or what an encoder reads.
        segments: which sequence of its row a position belongs to, from 1; 0 is padding.
        positions: places in the own sequence, from 0.
    """

    inputs: np.ndarray
    labels: np.ndarray
    segments: np.ndarray
    positions: np.ndarray

    @property
    def counted(self) -> np.ndarray:
        """Bool `[B, T]`: the labels that a loss counts, each token of the data once."""
        return self.labels != PAD


class PackedPairs(NamedTuple):
    """Rows of both sides of pairs, which have the same segments."""

    source: PackedBatch
    target: PackedBatch


OPEN_ROWS = 256  # older ones hardly ever have room: all of 7,000 take a thousandth less


def first_fit(
    needed: Sequence[Sequence[int]], length: int, open_rows: int = OPEN_ROWS
) -> list[list[int]]:
    """Puts each item, in the given order, into the first row that has room for all its sides.

    Args:
        needed: positions that each side of an item takes, at most `length`.
        length: positions of a row, on each side.
        open_rows: how many rows are looked at, the newest, so that time is linear in the items.

    Returns:
        The places of the items of each row.

    >>> first_fit([[3], [4], [2], [1], [3]], 5)
    [[0, 2], [1, 3], [4]]
    >>> first_fit([[3, 1], [1, 4], [2, 2]], 5)
    [[0, 1], [2]]
    >>> first_fit([[3], [4], [2], [1], [3]], 5, open_rows=1)
    [[0], [1], [2, 3], [4]]
    """
    room = np.full((len(needed), len(needed[0])), length)
    rows: list[list[int]] = []
    for place, sizes in enumerate(needed):
        oldest = max(0, len(rows) - open_rows)
        # Of the rows that are open, and the next.
        row = oldest + int(np.argmax((room[oldest : len(rows) + 1] >= sizes).all(axis=1)))
        if row == len(rows):
            rows.append([])
        room[row] -= sizes
        rows[row].append(place)
    return rows


class _Rows:
    """Items packed once, whose rows are batched and shuffled."""

    FIELD: ClassVar[str]  # of a configuration, that says how long a row is

    def __init__(self, needed: Sequence[Sequence[int]], *, length: int, tokens: int) -> None:
        longest = max(max(sizes) for sizes in needed)
        if longest > length:
            raise UsageError(
                f"a sequence needs {longest} positions, and a packed row has {length}: raise "
                f"{self.FIELD}"
            )
        if length > tokens:
            raise UsageError(
                f"a batch of {tokens} tokens has no room for a row of {length}: raise batch.tokens"
            )
        self._length = length
        self._size = tokens // length
        self._needed = needed
        self.rows = first_fit(needed, length)
        self.padding = 1 - float(np.sum(needed)) / (len(self.rows) * length * len(needed[0]))
        """The share of all positions that no sequence takes."""

    @property
    def epoch(self) -> Epoch:
        """How much it is; of pairs, the tokens are those of the target, ends included."""
        tokens = sum(sizes[-1] for sizes in self._needed)
        return Epoch(len(self.plan()), examples=len(self._needed), tokens=tokens)

    def plan(self, random: np.random.Generator | None = None) -> list[tuple[int, np.ndarray]]:
        """Every row once, as batches of (length, places of the rows); shuffled if `random`."""
        order = np.arange(len(self.rows)) if random is None else random.permutation(len(self.rows))
        starts = range(0, len(order), self._size)
        return [(self._length, order[start : start + self._size]) for start in starts]

    def _lay(
        self, sequences: Sequence[Sequence[int]], length: int, members: Sequence[int]
    ) -> PackedBatch:
        """The rows of some places; with too few of them the batch is filled up with padding."""
        inputs, labels, segments, positions = (
            np.full((self._size, length), fill, np.int32) for fill in (PAD, PAD, 0, 0)
        )
        for row, member in enumerate(members):
            start = 0
            for segment, place in enumerate(self.rows[member], start=1):
                sequence = sequences[place]
                here = slice(start, start + len(sequence) + 1)
                inputs[row, here] = [BOS, *sequence]
                labels[row, here] = [*sequence, EOS]
                segments[row, here] = segment
                positions[row, here] = np.arange(len(sequence) + 1)
                start = here.stop
        return PackedBatch(inputs, labels, segments, positions)


class PackedRows(_Rows):
    """Sequences in rows: `Batches` for `Epochs`."""

    FIELD = "batch.row_length"

    def __init__(self, sequences: Sequence[Sequence[int]], *, length: int, tokens: int) -> None:
        """Packs the sequences.

        Args:
            sequences: ids, without begin and end.
            length: positions of a row.
            tokens: positions of a batch.

        Raises:
            UsageError: no sequence, one longer than a row, or a row longer than a batch.
        """
        if not sequences:
            raise UsageError("there is no sequence to pack")
        super().__init__([[len(ids) + 1] for ids in sequences], length=length, tokens=tokens)
        self._sequences = sequences

    def batch(self, length: int, members: Sequence[int]) -> PackedBatch:
        """The batch of an entry of the plan."""
        return self._lay(self._sequences, length, members)


class PairedRows(_Rows):
    """Pairs in rows, both sides beside each other: `Batches` for `Epochs`."""

    FIELD = "batch.row_length"

    def __init__(self, pairs: Sequence[EncodedPair], *, length: int, tokens: int) -> None:
        """Packs the pairs.

        Args:
            pairs: ids of both sides, without begin and end.
            length: positions of a row, on either side.
            tokens: positions of a batch, on either side.

        Raises:
            UsageError: no pair, one longer than a row, or a row longer than a batch.
        """
        if not pairs:
            raise UsageError("there is no pair to pack")
        needed = [(len(pair.source) + 1, len(pair.target) + 1) for pair in pairs]
        super().__init__(needed, length=length, tokens=tokens)
        self._sides = [pair.source for pair in pairs], [pair.target for pair in pairs]

    def batch(self, length: int, members: Sequence[int]) -> PackedPairs:
        """The batch of an entry of the plan."""
        return PackedPairs(*(self._lay(side, length, members) for side in self._sides))
