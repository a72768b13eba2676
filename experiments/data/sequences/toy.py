"""The toy language: English to French, with the words that correspond."""

from functools import partial
from pathlib import Path

from ml_collections import ConfigDict

from experiments.data.pairs import SentencePair
from experiments.data.source import Source
from experiments.data.store import TextStore, store_text
from experiments.data.tokenizers import Words
from experiments.data.toy_language import Sizes, ToyTranslation, corpus_name, prepare
from experiments.data.words import WORDS
from experiments.errors import check_at_least


def check(config: ConfigDict) -> None:
    """Checks the seed and the sizes of the splits."""
    check_at_least("data.seed", config.seed, 0)
    Sizes(**config.sizes)


def load(config: ConfigDict, split: str, cache: Path) -> list[SentencePair]:
    """One split; the language is generated the first time."""
    return load_pairs(config.seed, Sizes(**config.sizes), split, cache)


def load_pairs(seed: int, sizes: Sizes, split: str, cache: Path) -> list[SentencePair]:
    """The pairs of one split of a toy language."""
    source = prepare(cache / "data", seed=seed, sizes=sizes).as_data_source(split=split)
    return [
        SentencePair(*(example[side].decode() for side in ("en", "fr", "alignment")))
        for example in source.__getitems__(range(len(source)))
    ]


def store(config: ConfigDict, split: str, cache: Path) -> TextStore:
    """One split, stored in `cache`."""
    return store_text(cache, partial(load, config, split, cache), f"toy {_name(config)} {split}")


def load_splits(config: ConfigDict, cache: Path) -> dict[str, list[SentencePair]]:
    """The splits by name, for a model of English; the French tells the senses of words."""
    return {split: store(config, split, cache)[:] for split in ("train", "validation", "test")}


def _name(config: ConfigDict) -> str:
    sizes = Sizes(**config.sizes)
    return f"{corpus_name(config.seed, sizes)} {ToyTranslation.VERSION}"


SOURCE = Source(
    load,
    check,
    tests=("test", "compositional", "longer"),
    text=Words(WORDS),
    has_phenomena=True,
    name=_name,
)
