"""Packing: several short sequences in one row, so that little of a batch is padding.

The sequences of a row are segments: with `masks.causal() & masks.segments(batch.segments)` none
sees another, and `batch.positions` start again in each, for models that add positions to the
embeddings. Relative schemes need nothing: distances inside a segment are what they were.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.data.vocabulary import BOS, EOS, PAD
from experiments.errors import UsageError


class PackedBatch(NamedTuple):
    """Rows of sequences for a language model, all `[B, T]`.

    Attributes:
        inputs: ids, each sequence begun by `BOS`.
        labels: ids, each sequence ended by `EOS`: what comes next.
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


def first_fit(needed: Sequence[int], length: int) -> list[list[int]]:
    """Puts each sequence, in the given order, into the first row that has room for it.

    Args:
        needed: positions that each sequence takes, at most `length`.
        length: positions of a row.

    Returns:
        The places of the sequences of each row.

    >>> first_fit([3, 4, 2, 1, 3], 5)
    [[0, 2], [1, 3], [4]]
    """
    room = np.full(len(needed), length)
    rows: list[list[int]] = [[] for _ in needed]
    for place, size in enumerate(needed):
        row = int(np.argmax(room >= size))
        room[row] -= size
        rows[row].append(place)
    return [row for row in rows if row]


class PackedRows:
    """Sequences packed once, whose rows are batched and shuffled: `Batches` for `Epochs`."""

    def __init__(self, sequences: Sequence[Sequence[int]], *, length: int, tokens: int) -> None:
        """Packs the sequences.

        Args:
            sequences: ids, without begin and end.
            length: positions of a row.
            tokens: positions of a batch.

        Raises:
            UsageError: no sequence, one longer than a row, or a row longer than a batch.
        """
        needed = [len(sequence) + 1 for sequence in sequences]
        if not needed:
            raise UsageError("there is no sequence to pack")
        if max(needed) > length:
            raise UsageError(
                f"a sequence needs {max(needed)} positions, and a packed row has {length}"
            )
        if length > tokens:
            raise UsageError(f"a batch of {tokens} tokens has no room for a row of {length}")
        self._sequences = sequences
        self._length = length
        self._size = tokens // length
        self.rows = first_fit(needed, length)
        self.padding = 1 - sum(needed) / (len(self.rows) * length)
        """The share of all positions that no sequence takes."""

    def plan(self, random: np.random.Generator | None = None) -> list[tuple[int, np.ndarray]]:
        """Every row once, as batches of (length, places of the rows); shuffled if `random`."""
        order = np.arange(len(self.rows)) if random is None else random.permutation(len(self.rows))
        starts = range(0, len(order), self._size)
        return [(self._length, order[start : start + self._size]) for start in starts]

    def batch(self, length: int, members: Sequence[int]) -> PackedBatch:
        """The batch of an entry of the plan; with too few rows it is filled up with padding."""
        inputs, labels, segments, positions = (
            np.full((self._size, length), fill, np.int32) for fill in (PAD, PAD, 0, 0)
        )
        for row, member in enumerate(members):
            start = 0
            for segment, place in enumerate(self.rows[member], start=1):
                sequence = self._sequences[place]
                here = slice(start, start + len(sequence) + 1)
                inputs[row, here] = [BOS, *sequence]
                labels[row, here] = [*sequence, EOS]
                segments[row, here] = segment
                positions[row, here] = np.arange(len(sequence) + 1)
                start = here.stop
        return PackedBatch(inputs, labels, segments, positions)
