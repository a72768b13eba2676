"""Every source of sentence pairs by its name, `config.data.name`."""

from pathlib import Path

from ml_collections import ConfigDict

from attention.primitives.choice import one_of
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
from experiments.data.store import TextStore, store_text

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


def check_source(config: ConfigDict) -> None:
    """Checks that `config.data` asks for data that exists.

    Raises:
        ValueError: an unknown name, or what the source refuses.
    """
    one_of("data.name", config.name, tuple(SOURCES))
    SOURCES[config.name].check(config)


def load_split(config: ConfigDict, split: str, cache: Path) -> list[SentencePair]:
    """One split of the data that `config.data` names, in memory.

    Args:
        config: name, and the fields that the source of this name reads.
        split: one of `SOURCES[config.name].splits`.
        cache: where generated data is kept.

    Raises:
        ValueError: a split that the source does not have.
    """
    source = SOURCES[config.name]
    one_of("split", split, source.splits)
    return [*source.load(config, split, cache)]


def store_split(config: ConfigDict, split: str, cache: Path) -> TextStore:
    """One split of the data that `config.data` names, stored in `cache`.

    Raises:
        ValueError: a split that the source does not have.
    """
    source = SOURCES[config.name]
    one_of("split", split, source.splits)
    name = source.name and f"{config.name} {source.name(config)} {split}"
    return store_text(cache, lambda: source.load(config, split, cache), name)
