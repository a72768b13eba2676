"""Random sequences that follow from a seed and the name of a split."""

import zlib
from collections.abc import Iterator

import numpy as np


def generator(seed: int, split: str) -> np.random.Generator:
    """What a split is drawn with: no two splits share their numbers."""
    return np.random.default_rng((seed, zlib.crc32(split.encode())))


def sequences(
    random: np.random.Generator, number: int, *, shortest: int, longest: int, symbols: int
) -> Iterator[list[str]]:
    """Draws sequences of the integers below `symbols`, all lengths and integers alike likely."""
    lengths = random.integers(shortest, longest, number, endpoint=True)
    drawn = np.split(random.integers(symbols, size=lengths.sum()), np.cumsum(lengths)[:-1])
    return (list(map(str, integers.tolist())) for integers in drawn)
