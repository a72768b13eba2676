"""Parallel sentences by name: what a translation experiment trains and is tested on."""

from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from attention.modules.config import one_of
from experiments.data.batching import EncodedPair
from experiments.data.toy_language import Sizes, prepare
from experiments.data.vocabulary import Vocabulary
from experiments.data.words import tokenize


class SentencePair(NamedTuple):
    """A sentence, its translation, and which of their words correspond.

    Attributes:
        source: plain text.
        target: plain text.
        alignment: (source token, target token) places, in `words.tokenize` of each side.
    """

    source: str
    target: str
    alignment: tuple[tuple[int, int], ...] = ()

    def encode(self, vocabulary: Vocabulary) -> EncodedPair:
        """Both sides as ids."""
        return EncodedPair(
            vocabulary.encode(tokenize(self.source)), vocabulary.encode(tokenize(self.target))
        )


def check_source(config: ConfigDict) -> None:
    """Checks that `config.data` names data that exists.

    Raises:
        ValueError: an unknown name.
    """
    one_of("data.name", config.name, ("toy",))


def load_split(config: ConfigDict, split: str, cache: Path) -> list[SentencePair]:
    """One split of the data that `config.data` names.

    Args:
        config: name ("toy"), seed, and the sizes of the splits.
        split: "train", "validation", "test", "compositional" or "longer".
        cache: where generated data is kept.
    """
    builder = prepare(cache, seed=config.seed, sizes=Sizes(**config.sizes))
    source = builder.as_data_source(split=split)
    return [
        SentencePair(
            example["en"].decode(), example["fr"].decode(), tuple(map(tuple, example["alignment"]))
        )
        for example in source.__getitems__(range(len(source)))
    ]


def vocabulary_of(pairs: list[SentencePair]) -> Vocabulary:
    """One vocabulary for both languages."""
    sides = (side for pair in pairs for side in (pair.source, pair.target))
    return Vocabulary.of(map(tokenize, sides))
