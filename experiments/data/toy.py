"""The toy language, English to French, with alignments."""

from dataclasses import dataclass, field
from pathlib import Path

from experiments.config.data import RandomData
from experiments.data.examples import SentencePair
from experiments.data.source import Source
from experiments.data.tokenizers import WORDS, Words
from experiments.data.toy_language import ToyTranslation, corpus_name, prepare
from experiments.data.toy_language.splits import ToySizes
from experiments.registry import dataset


def load(config: "ToyData", split: str, cache: Path) -> list[SentencePair]:
    """Return a split; the language is generated the first time."""
    return load_pairs(config.seed, config.sizes, split, cache)


def load_pairs(seed: int, sizes: ToySizes, split: str, cache: Path) -> list[SentencePair]:
    """Return the pairs of a split of a toy language."""
    source = prepare(cache / "data", seed=seed, sizes=sizes).as_data_source(split=split)
    return [
        SentencePair(*(example[side].decode() for side in ("en", "fr", "alignment")))
        for example in source.__getitems__(range(len(source)))
    ]


def _name(config: "ToyData") -> str:
    return f"{corpus_name(config.seed, config.sizes)} {ToyTranslation.VERSION}"


SOURCE = Source(
    load,
    tests=("test", "compositional", "longer"),
    text=Words(WORDS),
    has_phenomena=True,
    name=_name,
)


@dataset(source=SOURCE, contains=("text", "pairs"))
@dataclass(frozen=True, kw_only=True)
class ToyData(RandomData):
    """The toy language, English and French."""

    name: str = "toy"
    sizes: ToySizes = field(default_factory=ToySizes)
