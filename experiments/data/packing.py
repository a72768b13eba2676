"""Arrays of a batch: one example a row with padding, or packed rows of several examples.

The examples of a packed row are segments: with `masks.causal() & masks.segments(batch.segments)`
no segment attends to another, and `batch.positions` restart in each. Both sides of a pair are in
the same row of their side and have the same segment number.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.data.tokenizers import BOS, EOS, PAD, EncodedPair, Ids

PADDING = 0.06  # share that `row_lengths` accepts without trying longer rows


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
        positions: index in the sequence, from 0.
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
    source, inputs, labels = np.full((3, size, length), PAD, np.int32)
    for row, pair in enumerate(pairs):
        source[row, : len(pair.source) + 1] = [*pair.source, EOS]
        inputs[row, : len(pair.target) + 1] = [BOS, *pair.target]
        labels[row, : len(pair.target) + 1] = [*pair.target, EOS]
    return Batch(source, np.sum(source != PAD, axis=1, dtype=np.int32), inputs, labels)


def pack_batch(sequences: Sequence[Ids], counts: Sequence[int], length: int) -> PackedBatch:
    """Make a batch of packed rows of `length` positions.

    Args:
        sequences: those of all rows, row after row, without begin and end.
        counts: number of sequences of each row.
        length: positions of a row, at least the sum of the lengths of its sequences, ends included.
    """
    first = np.repeat(np.cumsum(counts, dtype=int) - counts, counts)  # sequence of the same row
    row, segment = np.repeat(np.arange(len(counts)), counts), np.arange(len(sequences)) - first + 1
    sizes = np.array([*map(len, sequences)], int) + 1
    begins = np.cumsum(sizes) - sizes  # of each sequence, in all tokens of the batch
    position = np.arange(sizes.sum()) - np.repeat(begins, sizes)
    index = np.repeat(row * length + begins - begins[first], sizes) + position
    inputs, labels = np.full(len(index), BOS), np.full(len(index), EOS)
    if len(sequences):
        is_end = position + 1 == np.repeat(sizes, sizes)
        inputs[position > 0] = labels[~is_end] = np.concatenate(sequences)
    batch = np.zeros((4, len(counts) * length), np.int32)
    batch[:, index] = inputs, labels, np.repeat(segment, sizes), position
    return PackedBatch(*batch.reshape(4, len(counts), length))


def pack(
    lengths: np.ndarray, row_lengths: Sequence[int], most_rows: int | None = None
) -> np.ndarray:
    """Assign examples to rows: longest first, each to the row that it fills best.

    Equal examples are assigned together, as in the histogram packing of Krell et al. 2021
    ("Efficient sequence packing without cross-contamination"), so time depends on the number of
    different lengths rather than on the number of examples.

    Args:
        lengths: positions `[examples, sides]`, at least 1 and at most those of a row.
        row_lengths: positions of a row of each side.
        most_rows: number of rows; unlimited if None.

    Returns:
        The row of each example `[examples]`, from 0; -1 for those that have no room.

    >>> pack(np.array([[3], [4], [2], [1], [3]]), (5,)).tolist()
    [1, 0, 1, 0, 2]
    """
    whole = np.array(row_lengths)
    rows, number = np.full(len(lengths), -1), 0
    most_rows = len(lengths) if most_rows is None else most_rows
    kinds, kind = np.unique(np.ravel_multi_index(lengths.T, whole + 1), return_inverse=True)
    needs = np.stack(np.unravel_index(kinds, whole + 1), axis=1)
    groups = np.split(np.argsort(kind, kind="stable"), np.cumsum(np.bincount(kind))[:-1])
    free: dict[tuple[int, ...], np.ndarray] = {}  # rows by their free positions of each side
    is_free = np.zeros(whole + 1, bool)  # the keys of `free`
    for kind in np.lexsort((-kinds, -(needs / whole).max(axis=1))):
        need, left = needs[kind], groups[kind]
        corner = np.argwhere(is_free[(*map(slice, need, whole + 1),)])
        corner = corner[np.argsort(corner.sum(axis=1), kind="stable")]
        for room in (*(need + corner), whole):  # of the emptiest, which are new rows, last
            if not len(left):
                break
            key, fitting = (*room.tolist(),), int((room // need).min())
            wanted = -(-len(left) // fitting)
            if key in free:
                filled = free.pop(key)
                is_free[key] = False
            else:
                filled = np.arange(number, min(number + wanted, most_rows))
                number += len(filled)
            used = min(len(filled), wanted)
            placed, left = np.split(left, [used * fitting])
            rows[placed] = np.repeat(filled[:used], fitting)[: len(placed)]
            rest = len(placed) - (used - 1) * fitting  # examples of the last row
            full, last, unused = np.split(filled, [max(used - 1, 0), used])
            for examples, those in ((fitting, full), (rest, last), (0, unused)):
                if len(those):
                    key = (*(room - examples * need).tolist(),)
                    free[key] = np.concatenate([free.get(key, those[:0]), those])
                    is_free[key] = True
    return rows


def row_lengths(lengths: np.ndarray, most: int) -> tuple[int, ...]:
    """Choose the positions of a packed row of each side, so that little is padding.

    Rows of the longer side hold the longest example and four examples of mean length; the rows of
    another side are shorter by the ratio of the mean lengths. Longer rows, and shorter ones, are
    tried on a sample where that leaves more than `PADDING` of the positions empty.

    Args:
        lengths: positions `[examples, sides]`.
        most: positions that the model takes, at least the longest example.
    """
    mean, longest = lengths.mean(axis=0), lengths.max(axis=0)
    sample = lengths[:: -(-len(lengths) // 2_048)]
    least = min(most, 8 * math.ceil(longest.max() / 8))
    usual = min(most, max(least, 8 * math.ceil(4 * mean.max() / 8)))
    by = 4 * math.ceil(usual / 8 / 4)
    tried = []
    for length in [*range(usual, min(most, 2 * usual) + 1, by), *range(usual - by, least - 1, -by)]:
        sides = 4 * np.ceil(length * mean / mean.max() / 4).astype(int)
        sides = np.where(mean > 0.95 * mean.max(), length, np.minimum(sides, length))
        whole = (*np.maximum(longest, sides).tolist(),)
        padding = 1 - sample.sum() / ((pack(sample, whole).max() + 1) * sum(whole))
        if padding < PADDING:
            return whole
        tried.append((padding, whole))
    return min(tried)[1]
