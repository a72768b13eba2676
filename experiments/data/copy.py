"""Copy: the target is the source, a sequence of digits. The task of the Sockeye tutorial."""

from pathlib import Path

from experiments.config.data import CopyData
from experiments.data.draw import generator, sequences
from experiments.data.pairs import SentencePair
from experiments.data.source import Source
from experiments.data.tokenizers import Words

DIGITS = 10


def load(config: CopyData, split: str, cache: Path) -> list[SentencePair]:
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
