"""Parallel sentences by name: what a translation experiment trains and is tested on."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from attention.modules.choice import one_of
from experiments.data.batching import EncodedPair
from experiments.data.toy_language import Sizes, prepare
from experiments.data.vocabulary import Vocabulary
from experiments.data.words import tokenize
from experiments.errors import UsageError
from experiments.files import write_whole


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

    def keep(self, directory: Path) -> None:
        """Writes `vocabulary.source.txt` and `vocabulary.target.txt`, one word a line.

        Raises:
            UsageError: the directory holds other words already, to which a model may be trained.
        """
        for side, vocabulary in self._asdict().items():
            path = directory / f"vocabulary.{side}.txt"
            if not path.exists():
                write_whole(path, vocabulary.as_text())
            elif path.read_text(encoding="utf-8") != vocabulary.as_text():
                raise UsageError(
                    f"{path} holds other words than the data, and is left as it is: choose "
                    "another --workdir"
                )

    @classmethod
    def load(cls, directory: Path) -> "Vocabularies":
        """Reads what `keep` wrote.

        Raises:
            UsageError: a file that is missing or damaged.
        """
        vocabularies = []
        for side in cls._fields:
            path = directory / f"vocabulary.{side}.txt"
            try:
                vocabularies.append(Vocabulary.from_text(path.read_text(encoding="utf-8")))
            except (OSError, ValueError) as error:
                raise UsageError(f"{path} cannot be read: {error}") from error
        return cls(*vocabularies)


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
