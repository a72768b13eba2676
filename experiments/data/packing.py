"""Packing: which examples share a row, and how long rows are."""

from collections.abc import Sequence

import numpy as np

PADDING = 0.06  # share that `row_lengths` accepts without trying longer rows


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
    rows = np.full(len(lengths), -1)
    kinds, kind = np.unique(np.ravel_multi_index(lengths.T, whole + 1), return_inverse=True)
    needs = np.stack(np.unravel_index(kinds, whole + 1), axis=1)
    groups = np.split(np.argsort(kind, kind="stable"), np.cumsum(np.bincount(kind))[:-1])
    free: dict[tuple[int, ...], np.ndarray] = {}  # rows by their free positions of each side
    is_free = np.zeros(whole + 1, bool)  # the keys of `free`
    number = 0

    def release(room: np.ndarray, released: np.ndarray) -> None:
        if len(released):
            key = (*room.tolist(),)
            free[key] = np.concatenate([free[key], released]) if is_free[key] else released
            is_free[key] = True

    def fill(room: np.ndarray, filled: np.ndarray, left: np.ndarray) -> np.ndarray:
        """Put equal examples into rows with this room; return those that are left."""
        fitting = int((room // need).min())
        used = min(len(filled), -(-len(left) // fitting))
        placed, left = np.split(left, [used * fitting])
        rows[placed] = np.repeat(filled[:used], fitting)[: len(placed)]
        rest = len(placed) - (used - 1) * fitting  # examples of the last row
        release(room - fitting * need, filled[: used - 1])
        release(room - rest * need, filled[used - 1 : used])
        release(room, filled[used:])
        return left

    order = np.lexsort((-kinds, -(needs / whole).max(axis=1)))
    for need, left in zip(needs[order], [groups[place] for place in order], strict=True):
        corner = np.argwhere(is_free[tuple(slice(size, None) for size in need)])
        for rest in corner[np.argsort(corner.sum(axis=1), kind="stable")]:
            if not len(left):
                break
            key = (*(need + rest).tolist(),)
            is_free[key] = False
            left = fill(need + rest, free.pop(key), left)
        if len(left):
            wanted = -(-len(left) // int((whole // need).min()))
            new = wanted if most_rows is None else min(wanted, most_rows - number)
            if new:
                fill(whole, np.arange(number, number + new), left)
                number += new
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
    least = min(most, _rounded(longest.max(), 8))
    usual = min(most, max(least, _rounded(4 * mean.max(), 8)))
    found = []
    by = int(_rounded(usual / 8, 4))
    for length in [*range(usual, min(most, 2 * usual) + 1, by), *range(usual - by, least - 1, -by)]:
        sides = _rounded(length * mean / mean.max(), 4)
        sides = np.where(mean > 0.95 * mean.max(), length, np.minimum(sides, length))
        whole = (*np.maximum(longest, sides).tolist(),)
        padding = 1 - sample.sum() / ((pack(sample, whole).max() + 1) * sum(whole))
        if padding < PADDING:
            return whole
        found.append((padding, whole))
    return min(found)[1]


def _rounded(number: np.ndarray | float, multiple: int) -> np.ndarray | int:
    return np.ceil(np.asarray(number) / multiple).astype(int) * multiple
