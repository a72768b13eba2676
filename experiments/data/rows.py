"""Arrays of a batch: one example a row with padding, or packed rows of several examples.

The examples of a packed row are segments: with `masks.causal() & masks.segments(batch.segments)`
no segment attends to another, and `batch.positions` restart in each. Both sides of a pair are in
the same row of their side and have the same segment number.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np

from experiments.data.vocabulary import BOS, EOS, PAD

Ids = Sequence[int] | np.ndarray
Example = TypeVar("Example", bound=tuple[Ids, ...])


class EncodedPair(NamedTuple):
    """Ids of a source and a target sentence, without begin and end."""

    source: Ids
    target: Ids = ()

    @property
    def length(self) -> int:
        """Positions of the longer side, its end included."""
        return max(len(self.source), len(self.target)) + 1


class Encoded(list[Example]):
    """Examples in memory; each is a tuple of the ids of its sides."""

    @cached_property
    def lengths(self) -> np.ndarray:
        """Positions of each side, its end included: `[examples, sides]`."""
        return np.array([[len(side) + 1 for side in example] for example in self])


class Batch(NamedTuple):
    """Padded pairs, one a row; missing rows are padding.

    Attributes:
        source: `[B, S]` ids, ended by `EOS`.
        source_lengths: `[B]`, number of valid tokens.
        target_inputs: `[B, T]` ids, begun by `BOS`: what the decoder reads.
        target_labels: `[B, T]` ids, ended by `EOS`: what it predicts.
    """

    source: np.ndarray
    source_lengths: np.ndarray
    target_inputs: np.ndarray
    target_labels: np.ndarray


class PackedBatch(NamedTuple):
    """Packed rows, all arrays `[B, T]`.

    Attributes:
        inputs: ids, each sequence begun by `BOS`: what a decoder reads.
        labels: ids, each sequence ended by `EOS`: what a decoder predicts and an encoder reads.
        segments: number of the sequence in its row, from 1; 0 is padding.
        positions: positions in the sequence, from 0.
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
    """Packed rows of both sides of pairs, with the same segments."""

    source: PackedBatch
    target: PackedBatch


def pad_batch(pairs: Sequence[EncodedPair], size: int, length: int) -> Batch:
    """Make a batch of `size` rows of `length` positions, one pair a row."""
    source, inputs, labels = (np.full((size, length), PAD, np.int32) for _ in range(3))
    for row, pair in enumerate(pairs):
        source[row, : len(pair.source) + 1] = [*pair.source, EOS]
        inputs[row, : len(pair.target) + 1] = [BOS, *pair.target]
        labels[row, : len(pair.target) + 1] = [*pair.target, EOS]
    return Batch(source, np.sum(source != PAD, axis=1, dtype=np.int32), inputs, labels)


def pack_batch(rows: Sequence[Sequence[Ids]], length: int) -> PackedBatch:
    """Make a batch of packed rows of `length` positions.

    Args:
        rows: the sequences of each row, without begin and end; a row may have none.
        length: positions of a row, at least the sum of the lengths of its sequences, ends included.
    """
    sequences = [np.asarray(sequence) for row in rows for sequence in row]
    row = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    sizes = np.array([len(sequence) + 1 for sequence in sequences], int)
    begins = np.cumsum(sizes) - sizes  # of each sequence, in all tokens of the batch
    first = np.searchsorted(row, row)  # the first sequence of the same row
    position = np.arange(sizes.sum()) - np.repeat(begins, sizes)
    place = np.repeat(row * length + begins - begins[first], sizes) + position

    def laid(values: np.ndarray | int) -> np.ndarray:
        flat = np.zeros(len(rows) * length, np.int32)
        flat[place] = values
        return flat.reshape(len(rows), length)

    is_end = position + 1 == np.repeat(sizes, sizes)
    inputs, labels = np.full(len(place), BOS), np.full(len(place), EOS)
    if sequences:
        inputs[position > 0] = labels[~is_end] = np.concatenate(sequences)
    segment = np.arange(len(sequences)) - first + 1
    return PackedBatch(laid(inputs), laid(labels), laid(np.repeat(segment, sizes)), laid(position))
