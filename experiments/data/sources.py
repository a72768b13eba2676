"""Every source of sentence pairs by its name, `config.data.name`."""

from pathlib import Path

from experiments.config.data import PairData
from experiments.data.pairs import SentencePair
from experiments.data.sequences import (
    copy,
    denoising,
    parallel,
    reverse,
    scan,
    summary,
    tfds,
    toy,
)
from experiments.errors import one_of

SOURCES = {
    "toy": toy.SOURCE,
    "reverse": reverse.SOURCE,
    "copy": copy.SOURCE,
    "scan": scan.SOURCE,
    "denoising": denoising.SOURCE,
    "summary": summary.SOURCE,
    "parallel": parallel.SOURCE,
    "tfds": tfds.SOURCE,
}


def load_split(config: PairData, split: str, cache: Path) -> list[SentencePair]:
    """One split of the data that `config.data` names.

    Args:
        config: name, and the fields that the source of this name reads.
        split: one of `SOURCES[config.name].splits`.
        cache: where generated data is kept.

    Raises:
        ValueError: a split that the source does not have.
    """
    source = SOURCES[config.name]
    one_of("split", split, source.splits)
    return source.load(config, split, cache)
