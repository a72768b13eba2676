"""Pairs of sentences by name: what a sequence-to-sequence experiment trains and is tested on."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from attention.modules.choice import one_of
from experiments.data.batching import EncodedPair
from experiments.data.pairs import SentencePair
from experiments.data.sequences import toy
from experiments.data.sources import SOURCES
from experiments.data.vocabulary import Vocabulary
from experiments.data.words import Tokens
from experiments.errors import UsageError
from experiments.files import write_whole

__all__ = ["SentencePair", "Vocabularies", "check_source", "load_split"]

SIDES = ("source", "target")


class Vocabularies(NamedTuple):
    """The words of both languages.

    Attributes:
        source: of the language read.
        target: of the language written.
        tokens: how text becomes words and back, `Source.tokens` of the data.
    """

    source: Vocabulary
    target: Vocabulary
    tokens: Tokens = toy.SOURCE.tokens

    @classmethod
    def of(
        cls,
        pairs: Sequence[SentencePair],
        tokens: Tokens = toy.SOURCE.tokens,
        *,
        shared: bool = False,
    ) -> "Vocabularies":
        """All words of some sentences.

        Args:
            pairs: the sentences.
            tokens: how text becomes words and back.
            shared: whether both sides have the words of both.
        """
        source = [tokens.tokenize(pair.source) for pair in pairs]
        target = [tokens.tokenize(pair.target) for pair in pairs]
        if shared:
            both = Vocabulary.of(chain(source, target))
            return cls(both, both, tokens)
        return cls(Vocabulary.of(source), Vocabulary.of(target), tokens)

    def encode(self, pair: SentencePair) -> EncodedPair:
        """Both sides of a pair as ids.

        Raises:
            ValueError: an unknown word.
        """
        return EncodedPair(
            self.source.encode(self.tokens.tokenize(pair.source)),
            self.target.encode(self.tokens.tokenize(pair.target)),
        )

    def keep(self, directory: Path) -> None:
        """Writes `vocabulary.source.txt` and `vocabulary.target.txt`, one word a line.

        Raises:
            UsageError: the directory holds other words already, to which a model may be trained.
        """
        for side, vocabulary in zip(SIDES, (self.source, self.target), strict=True):
            path = directory / f"vocabulary.{side}.txt"
            if not path.exists():
                write_whole(path, vocabulary.as_text())
            elif path.read_text(encoding="utf-8") != vocabulary.as_text():
                raise UsageError(
                    f"{path} holds other words than the data, and is left as it is: choose "
                    "another --workdir"
                )

    @classmethod
    def load(cls, directory: Path, tokens: Tokens = toy.SOURCE.tokens) -> "Vocabularies":
        """Reads what `keep` wrote.

        Args:
            directory: where it is.
            tokens: how text becomes words and back.

        Raises:
            UsageError: a file that is missing or damaged.
        """
        vocabularies = []
        for side in SIDES:
            path = directory / f"vocabulary.{side}.txt"
            try:
                vocabularies.append(Vocabulary.from_text(path.read_text(encoding="utf-8")))
            except (OSError, ValueError) as error:
                raise UsageError(f"{path} cannot be read: {error}") from error
        return cls(*vocabularies, tokens)


def check_source(config: ConfigDict) -> None:
    """Checks that `config.data` asks for data that exists.

    Raises:
        ValueError: an unknown name, or what the source refuses.
    """
    one_of("data.name", config.name, tuple(SOURCES))
    SOURCES[config.name].check(config)


def load_split(config: ConfigDict, split: str, cache: Path) -> list[SentencePair]:
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
