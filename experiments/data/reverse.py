"""Reverse: the target is the source in reversed order, a sequence of integers.

The task of the JoeyNMT tutorial (integers below 50; up to 25 of them in training, up to 30 in
validation and test), and both halves of the test separately: `in_range`, as long as in training,
and `longer`.
"""

from pathlib import Path

from experiments.config.data import ReverseData
from experiments.data.draw import generator, sequences
from experiments.data.pairs import SentencePair
from experiments.data.source import Source
from experiments.data.tokenizers import Words


def load(config: ReverseData, split: str, cache: Path) -> list[SentencePair]:
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
