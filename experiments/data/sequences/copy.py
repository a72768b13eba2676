"""Copy: a sequence of digits, said again. The task of the Sockeye tutorial."""

from pathlib import Path

from ml_collections import ConfigDict

from experiments.data.pairs import SentencePair
from experiments.data.sequences.draw import TRAIN_PER_SYMBOL, check_sizes, generator, sequences
from experiments.data.source import Source
from experiments.data.tokenizers import Words
from experiments.errors import check_at_least

DIGITS = 10


def check(config: ConfigDict) -> None:
    """Checks the sizes of the splits and the lengths."""
    check_at_least("data.shortest", config.shortest, 1)
    check_at_least("data.longest", config.longest, config.shortest)
    check_sizes(config, train=TRAIN_PER_SYMBOL * DIGITS)


def load(config: ConfigDict, split: str, cache: Path) -> list[SentencePair]:
    """One split, drawn anew each time."""
    del cache
    drawn = sequences(
        generator(config.seed, split),
        config.sizes[split],
        shortest=config.shortest,
        longest=config.longest,
        symbols=DIGITS,
    )
    return [SentencePair(line, line) for line in map(" ".join, drawn)]


SOURCE = Source(load, check, text=Words(shared=True))
