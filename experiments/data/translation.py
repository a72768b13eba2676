"""Parallel sentences by name: what a translation experiment trains and is tested on."""

from collections.abc import Sequence
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
        links: "0-0 1-2", which tokens of `words.tokenize` correspond, source first.
    """

    source: str
    target: str
    links: str = ""

    @property
    def alignment(self) -> list[tuple[int, int]]:
        """The links as (source token, target token) places."""
        places = (link.split("-") for link in self.links.split())
        return [(int(source), int(target)) for source, target in places]


class Vocabularies(NamedTuple):
    """The words of both languages.

    Attributes:
        source: of the language read.
        target: of the language written.
    """

    source: Vocabulary
    target: Vocabulary

    @classmethod
    def of(cls, pairs: Sequence[SentencePair]) -> "Vocabularies":
        """All words of some sentences."""
        return cls(
            Vocabulary.of(tokenize(pair.source) for pair in pairs),
            Vocabulary.of(tokenize(pair.target) for pair in pairs),
        )

    def encode(self, pair: SentencePair) -> EncodedPair:
        """Both sides of a pair as ids.

        Raises:
            ValueError: an unknown word.
        """
        return EncodedPair(
            self.source.encode(tokenize(pair.source)), self.target.encode(tokenize(pair.target))
        )

    def save(self, directory: Path) -> None:
        """Writes `vocabulary.source.txt` and `vocabulary.target.txt`, one word a line."""
        for side, vocabulary in self._asdict().items():
            vocabulary.save(directory / f"vocabulary.{side}.txt")

    @classmethod
    def load(cls, directory: Path) -> "Vocabularies":
        """Reads what `save` wrote."""
        return cls(*(Vocabulary.load(directory / f"vocabulary.{side}.txt") for side in cls._fields))


def check_source(config: ConfigDict) -> None:
    """Checks that `config.data` asks for data that exists.

    Raises:
        ValueError: an unknown name, or a split with too few sentences.
    """
    one_of("data.name", config.name, ("toy",))
    Sizes(**config.sizes)


def load_split(config: ConfigDict, split: str, cache: Path) -> list[SentencePair]:
    """One split of the data that `config.data` names.

    Args:
        config: name ("toy"), seed, and the sizes of the splits.
        split: "train", "validation", "test", "compositional" or "longer".
        cache: where generated data is kept.
    """
    builder = prepare(cache / "data", seed=config.seed, sizes=Sizes(**config.sizes))
    source = builder.as_data_source(split=split)
    return [
        SentencePair(*(example[side].decode() for side in ("en", "fr", "alignment")))
        for example in source.__getitems__(range(len(source)))
    ]
