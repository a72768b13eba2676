"""Corpora of other people: what is asked of their pairs wherever they stand, and how they are read.

Their faults are told or left out, and their text is subwords, as no list of words would hold it.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from experiments.config.data import ParallelData, TfdsData
from experiments.data.pairs import SentencePair
from experiments.data.sequences.faults import Line, sound_pairs
from experiments.data.source import Source
from experiments.data.tokenizers import Subwords


def corpus_source(
    lines: Callable[[Any, str], Iterable[tuple[Line, Line]]],
) -> Source:
    """The source of pairs that stand somewhere.

    Args:
        lines: both sides of every pair of a split, from (`config.data`, its name).
    """

    def load(config: ParallelData | TfdsData, split: str, cache: Path) -> Iterator[SentencePair]:
        del cache
        return sound_pairs(lines(config, split), config, split)

    return Source(load, text=Subwords())
