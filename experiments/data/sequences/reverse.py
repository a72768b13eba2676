"""Reverse: a sequence of integers, said from its end to its beginning.

The task of the JoeyNMT tutorial (integers below 50; up to 25 of them in training, up to 30 in
validation and test), with the two halves of the test apart: `in_range`, as long as in training, and
`longer`.
"""

from pathlib import Path

from ml_collections import ConfigDict

from experiments.data.pairs import SentencePair
from experiments.data.sequences.draw import TRAIN_PER_SYMBOL, check_sizes, generator, sequences
from experiments.data.source import Source
from experiments.data.tokenizers import Words
from experiments.errors import check_at_least


def check(config: ConfigDict) -> None:
    """Checks the sizes of the splits, the lengths and the number of integers."""
    check_at_least("data.numbers", config.numbers, 1)
    check_at_least("data.longest_train", config.longest_train, 1)
    check_at_least("data.longest_test", config.longest_test, config.longest_train + 1)
    check_sizes(config, train=TRAIN_PER_SYMBOL * config.numbers)


def load(config: ConfigDict, split: str, cache: Path) -> list[SentencePair]:
    """One split, drawn anew each time: short sequences may be in several of them."""
    del cache
    seen = split in ("train", "in_range")
    drawn = sequences(
        generator(config.seed, split),
        config.sizes[split],
        shortest=config.longest_train + 1 if split == "longer" else 1,
        longest=config.longest_train if seen else config.longest_test,
        symbols=config.numbers,
    )
    return [SentencePair(" ".join(line), " ".join(reversed(line))) for line in drawn]


SOURCE = Source(load, check, tests=("test", "in_range", "longer"), text=Words(shared=True))
