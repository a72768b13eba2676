"""Reverse: the target is the source in reversed order, a sequence of integers.

The task of the JoeyNMT tutorial (integers below 50; up to 25 of them in training, up to 30 in
validation and test), and both halves of the test separately: `in_range`, as long as in training,
and `longer`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from experiments.config.build import option
from experiments.config.data import TRAIN_PER_SYMBOL, RandomData, Sizes
from experiments.data.draw import generator, sequences
from experiments.data.examples import SentencePair
from experiments.data.source import Source
from experiments.data.tokenizers import Words
from experiments.errors import check_at_least
from experiments.registry import dataset


def load(config: "ReverseData", split: str, cache: Path) -> list[SentencePair]:
    """Draw a split; short sequences may be in several splits."""
    del cache
    seen = split in ("train", "in_range")
    drawn = sequences(
        generator(config.seed, split),
        getattr(config.sizes, split),
        shortest=config.longest_train + 1 if split == "longer" else 1,
        longest=config.longest_train if seen else config.longest_test,
        symbols=config.numbers,
    )
    return [SentencePair(" ".join(line), " ".join(reversed(line))) for line in drawn]


SOURCE = Source(load, tests=("test", "in_range", "longer"), text=Words(shared=True))


@dataclass(frozen=True, kw_only=True)
class ReverseSizes(Sizes):
    """Sequences of each split."""

    train: int = option(50_000, least=1)
    in_range: int = option(1_000, least=1)
    longer: int = option(500, least=1)


@dataset(source=SOURCE, contains=("pairs",))
@dataclass(frozen=True, kw_only=True)
class ReverseData(RandomData):
    """Random integers; the target is the source from its end to its beginning."""

    is_shared: ClassVar[bool] = True
    name: str = "reverse"
    numbers: int = option(50, "different integers", least=1)
    longest_train: int = option(25, "integers of the longest training sequence", least=1)
    longest_test: int = option(30, "integers of the longest test sequence")
    sizes: ReverseSizes = field(default_factory=ReverseSizes)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_at_least("longest_test", self.longest_test, self.longest_train + 1)
        check_at_least("sizes.train", self.sizes.train, TRAIN_PER_SYMBOL * self.numbers)
