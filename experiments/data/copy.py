"""Copy: the target is the source, a sequence of digits. The task of the Sockeye tutorial."""

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

DIGITS = 10


def load(config: "CopyData", split: str, cache: Path) -> list[SentencePair]:
    """Draw a split."""
    del cache
    drawn = sequences(
        generator(config.seed, split),
        getattr(config.sizes, split),
        shortest=config.shortest,
        longest=config.longest,
        symbols=DIGITS,
    )
    return [SentencePair(line, line) for line in map(" ".join, drawn)]


SOURCE = Source(load, text=Words(shared=True))


@dataset(source=SOURCE, contains=("pairs",))
@dataclass(frozen=True, kw_only=True)
class CopyData(RandomData):
    """Random digits; the target equals the source."""

    is_shared: ClassVar[bool] = True
    name: str = "copy"
    shortest: int = option(10, "digits of the shortest sequence", least=1)
    longest: int = option(30, "digits of the longest sequence")
    sizes: Sizes = field(default_factory=Sizes)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_at_least("longest", self.longest, self.shortest)
        check_at_least("sizes.train", self.sizes.train, TRAIN_PER_SYMBOL * 10)
