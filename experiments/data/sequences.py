"""Random sequences: copy, the task of the Sockeye tutorial, and reverse, that of JoeyNMT's.

Copy: the target is the source, a sequence of digits. Reverse: the target is the source from its end
to its beginning, a sequence of integers below 50, up to 25 of them in training, up to 30 in
validation and test, and both halves of the test separately: `in_range`, as long as in training, and
`longer`.
"""

import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from attention.modules.numbers import check_number
from experiments.config.build import option
from experiments.config.parts import TRAIN_PER_SYMBOL, RandomData, Sizes
from experiments.data.source import Source
from experiments.data.tokenizers import SentencePair, Words
from experiments.registry import dataset

DIGITS = 10


def generator(seed: int, split: str) -> np.random.Generator:
    """Return the random generator of a split; no two splits share their numbers."""
    return np.random.default_rng((seed, zlib.crc32(split.encode())))


def _draw(
    config: "CopyData | ReverseData", split: str, shortest: int, longest: int, symbols: int
) -> list[list[str]]:
    """Draw sequences of the integers below `symbols`, lengths and integers uniformly."""
    random, number = generator(config.seed, split), getattr(config.sizes, split)
    lengths = random.integers(shortest, longest, number, endpoint=True)
    drawn = np.split(random.integers(symbols, size=lengths.sum()), np.cumsum(lengths)[:-1])
    return [[str(integer) for integer in integers] for integers in drawn]


def load_copy(config: "CopyData", split: str, _: Path) -> list[SentencePair]:
    """Draw a split."""
    drawn = _draw(config, split, config.shortest, config.longest, DIGITS)
    return [SentencePair(" ".join(line), " ".join(line)) for line in drawn]


def load_reverse(config: "ReverseData", split: str, _: Path) -> list[SentencePair]:
    """Draw a split; short sequences may be in several splits."""
    shortest = config.longest_train + 1 if split == "longer" else 1
    longest = config.longest_train if split in ("train", "in_range") else config.longest_test
    drawn = _draw(config, split, shortest, longest, config.numbers)
    return [SentencePair(" ".join(line), " ".join(reversed(line))) for line in drawn]


@dataset(source=Source(load_copy, text=Words(shared=True)), contains=("pairs",))
@dataclass(frozen=True, kw_only=True)
class CopyData(RandomData):
    """Random digits; the target equals the source."""

    name: str = "copy"
    shortest: int = option(10, "digits of the shortest sequence", least=1)
    longest: int = option(30, "digits of the longest sequence")
    sizes: Sizes = field(default_factory=Sizes)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_number("longest", self.longest, at_least=self.shortest)
        check_number("sizes.train", self.sizes.train, at_least=TRAIN_PER_SYMBOL * DIGITS)


@dataclass(frozen=True, kw_only=True)
class ReverseSizes(Sizes):
    """Sequences of each split."""

    train: int = option(50_000, least=1)
    in_range: int = option(1_000, least=1)
    longer: int = option(500, least=1)


REVERSE = Source(load_reverse, tests=("test", "in_range", "longer"), text=Words(shared=True))


@dataset(source=REVERSE, contains=("pairs",))
@dataclass(frozen=True, kw_only=True)
class ReverseData(RandomData):
    """Random integers; the target is the source from its end to its beginning."""

    name: str = "reverse"
    numbers: int = option(50, "different integers", least=1)
    longest_train: int = option(25, "integers of the longest training sequence", least=1)
    longest_test: int = option(30, "integers of the longest test sequence")
    sizes: ReverseSizes = field(default_factory=ReverseSizes)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_number("longest_test", self.longest_test, at_least=self.longest_train + 1)
        check_number("sizes.train", self.sizes.train, at_least=TRAIN_PER_SYMBOL * self.numbers)
