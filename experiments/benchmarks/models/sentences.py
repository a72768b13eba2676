"""Sentence pairs as ids, and padded batches of them for the peers."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.data.examples import EncodedPair
from experiments.data.tokenizers import BOS, EOS, PAD


class PaddedPairs(NamedTuple):
    """A batch of pairs, ids `[B, S]`, `[B, T]` and `[B, T]`."""

    source: np.ndarray
    target_inputs: np.ndarray
    target_labels: np.ndarray


def padded(pairs: Sequence[EncodedPair]) -> PaddedPairs:
    """Return a batch; each side is as long as its longest sentence."""
    return PaddedPairs(
        _rows([[*pair.source, EOS] for pair in pairs]),
        _rows([[BOS, *pair.target] for pair in pairs]),
        _rows([[*pair.target, EOS] for pair in pairs]),
    )


def _rows(sequences: Sequence[Sequence[int]]) -> np.ndarray:
    longest = max(map(len, sequences))
    return np.array([[*ids, *[PAD] * (longest - len(ids))] for ids in sequences], np.int32)


def by_length(pairs: Sequence[EncodedPair], tokens: int) -> list[list[EncodedPair]]:
    """Return batches of at most `tokens` positions per side, sorted by length."""
    batches: list[list[EncodedPair]] = [[]]
    for pair in sorted(pairs, key=lambda pair: pair.length):
        if pair.length * (len(batches[-1]) + 1) > tokens:
            batches.append([])
        batches[-1].append(pair)
    return batches
