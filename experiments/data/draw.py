"""Random sequences that depend on a seed and the name of a split."""

import zlib
from collections.abc import Iterator

import numpy as np


def generator(seed: int, split: str) -> np.random.Generator:
    """Return the random generator of a split; no two splits share their numbers."""
    return np.random.default_rng((seed, zlib.crc32(split.encode())))


def sequences(
    random: np.random.Generator, number: int, *, shortest: int, longest: int, symbols: int
) -> Iterator[list[str]]:
    """Draw sequences of the integers below `symbols`, lengths and integers uniformly."""
    lengths = random.integers(shortest, longest, number, endpoint=True)
    drawn = np.split(random.integers(symbols, size=lengths.sum()), np.cumsum(lengths)[:-1])
    return (list(map(str, integers.tolist())) for integers in drawn)
