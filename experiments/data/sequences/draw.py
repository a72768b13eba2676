"""Random sequences that follow from a seed and the name of a split."""

import zlib
from collections.abc import Iterator

import numpy as np
from ml_collections import ConfigDict

from experiments.errors import check_at_least

# Fewer sequences, by the number of symbols, need not show every one of them.
TRAIN_PER_SYMBOL = 20


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


def check_sizes(config: ConfigDict, *, train: int) -> None:
    """Checks the seed and the sizes of all splits of `config.data`.

    Raises:
        ValueError: a seed that NumPy cannot start from, no pairs, or fewer than `train` to learn.
    """
    check_at_least("data.seed", config.seed, 0)
    for split, size in config.sizes.items():
        check_at_least(f"data.sizes.{split}", size, train if split == "train" else 1)
