"""Corpora of other people: what is asked of their pairs wherever they stand, and how they are read.

Their faults are told or left out, and their text is subwords, as no list of words would hold it.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ml_collections import ConfigDict

from experiments.data.pairs import SentencePair
from experiments.data.sequences.faults import Line, check_policy, sound_pairs
from experiments.data.source import Source
from experiments.data.tokenizers import Subwords


def corpus_source(
    lines: Callable[[ConfigDict, str], Iterable[tuple[Line, Line]]],
    check_there: Callable[[ConfigDict], None],
) -> Source:
    """The source of pairs that stand somewhere.

    Args:
        lines: both sides of every pair of a split, from (`config.data`, its name).
        check_there: raises a ValueError, in one sentence, if they do not stand where `config.data`
            says.
    """
    subwords = Subwords()

    def load(config: ConfigDict, split: str, cache: Path) -> Iterator[SentencePair]:
        del cache
        return sound_pairs(lines(config, split), config, split)

    def check(config: ConfigDict) -> None:
        check_policy(config)
        subwords.check(config)
        check_there(config)

    return Source(load, check, text=subwords)
