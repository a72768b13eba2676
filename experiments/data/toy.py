"""The toy language, English to French, with alignments."""

from pathlib import Path

from experiments.config.data import ToyData, ToySizes
from experiments.data.pairs import SentencePair
from experiments.data.source import Source
from experiments.data.tokenizers import Words
from experiments.data.toy_language import ToyTranslation, corpus_name, prepare
from experiments.data.words import WORDS


def load(config: ToyData, split: str, cache: Path) -> list[SentencePair]:
    """Return a split; the language is generated the first time."""
    return load_pairs(config.seed, config.sizes, split, cache)


def load_pairs(seed: int, sizes: ToySizes, split: str, cache: Path) -> list[SentencePair]:
    """Return the pairs of a split of a toy language."""
    source = prepare(cache / "data", seed=seed, sizes=sizes).as_data_source(split=split)
    return [
        SentencePair(*(example[side].decode() for side in ("en", "fr", "alignment")))
        for example in source.__getitems__(range(len(source)))
    ]


def _name(config: ToyData) -> str:
    return f"{corpus_name(config.seed, config.sizes)} {ToyTranslation.VERSION}"


SOURCE = Source(
    load,
    tests=("test", "compositional", "longer"),
    text=Words(WORDS),
    has_phenomena=True,
    name=_name,
)
