"""Tokenizers convert text to ids and back; `subwords.py` has those of subwords."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

from experiments.config.data import TextPart
from experiments.data.fingerprint import fingerprint
from experiments.data.pairs import SentencePair
from experiments.data.rows import EncodedPair
from experiments.data.vocabulary import Vocabulary
from experiments.data.words import SPACED, WHOLE, Tokens
from experiments.errors import UsageError
from experiments.files import write_whole

SIDES = ("source", "target")
UNKNOWN_CHARACTER = "\ufffd"  # in place of those that the training text lacks


class Tokenizer(Protocol):
    """Conversion of text to ids and back; without characters, ids 0, 1, 2 are `PAD`, `BOS`, `EOS`.

    Attributes:
        FILE: its name in a workdir, by the side of an example.
    """

    FILE: ClassVar[str]

    def __len__(self) -> int:
        """Number of ids."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text of the data, without begin and end."""

    def read(self, text: str) -> list[int]:
        """Return the ids of a text that a person typed.

        Raises:
            ValueError: a word or character that is unknown.
        """

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids up to the first end."""

    def token(self, number: int) -> str:
        """Return the token of an id, as a label."""

    def words(self, text: str) -> list[str]:
        """Return the words of a text, between which alignments are."""

    def word_numbers(self, ids: Sequence[int]) -> list[int]:
        """Return the number of the word to which each token belongs, from 0."""

    def as_bytes(self) -> bytes:
        """Return the content of its file."""


@dataclass(frozen=True)
class WordTokenizer:
    """Words of a vocabulary."""

    FILE = "vocabulary.{side}.txt"

    vocabulary: Vocabulary
    tokens: Tokens

    def __len__(self) -> int:
        """Number of words."""
        return len(self.vocabulary)

    def encode(self, text: str) -> list[int]:
        """Return the ids of the words.

        Raises:
            ValueError: an unknown word.
        """
        kind = "class" if self.tokens is WHOLE else "word"
        return self.vocabulary.encode(self.tokens.tokenize(text), kind)

    def read(self, text: str) -> list[int]:
        """Return the ids; a full stop at the end is removed, and the case of words corrected."""
        words = self.tokens.tokenize(text.rstrip().removesuffix("."))
        return self.vocabulary.encode([self.vocabulary.respell(word) for word in words])

    def decode(self, ids: Iterable[int]) -> str:
        """Return the words as a text."""
        return self.tokens.detokenize(self.vocabulary.decode(ids))

    def token(self, number: int) -> str:
        """Return the word."""
        return self.vocabulary.words[number]

    def words(self, text: str) -> list[str]:
        """Return the words, known or not."""
        return self.tokens.tokenize(text)

    def word_numbers(self, ids: Sequence[int]) -> list[int]:
        """Return 0, 1, 2, … because each token is a word."""
        return [*range(len(ids))]

    def as_bytes(self) -> bytes:
        """Return one word on each line."""
        return self.vocabulary.as_text().encode()


@dataclass(frozen=True)
class CharacterTokenizer:
    """Characters of a list; the id of each is its index, and none is special."""

    FILE = "characters.{side}.json"

    characters: str

    def __post_init__(self) -> None:
        """Check that a text can be read back."""
        if len({*self.characters}) != len(self.characters):
            raise ValueError("a list of characters contains each once")
        if UNKNOWN_CHARACTER not in self.characters:
            raise ValueError(f"a list of characters contains {UNKNOWN_CHARACTER!r}")

    @classmethod
    def of(cls, texts: Iterable[str]) -> "CharacterTokenizer":
        """Make a tokenizer of all characters of some texts, in the order of Unicode."""
        known = {UNKNOWN_CHARACTER}
        for text in texts:
            known.update(text)
        return cls("".join(sorted(known)))

    @cached_property
    def ids(self) -> dict[str, int]:
        """Id of each character."""
        return {character: number for number, character in enumerate(self.characters)}

    def __len__(self) -> int:
        """Number of characters."""
        return len(self.characters)

    def encode(self, text: str) -> list[int]:
        """Return the ids of the characters; all unknown ones have the same."""
        unknown = self.ids[UNKNOWN_CHARACTER]
        return [self.ids.get(character, unknown) for character in text]

    def read(self, text: str) -> list[int]:
        """Return the ids of known characters.

        Raises:
            ValueError: an unknown character.
        """
        for character in text:
            if character not in self.ids:
                raise ValueError(f"the character {character!r} is not in the text that was learned")
        return self.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the characters as a text."""
        return "".join(self.characters[number] for number in ids)

    def token(self, number: int) -> str:
        """Return the character."""
        return self.characters[number]

    def words(self, text: str) -> list[str]:
        """Return the characters: each is aligned."""
        return [*text]

    def word_numbers(self, ids: Sequence[int]) -> list[int]:
        """Return 0, 1, 2, … because each token is a word."""
        return [*range(len(ids))]

    def as_bytes(self) -> bytes:
        """Return one line of JSON."""
        return (json.dumps(self.characters, ensure_ascii=False) + "\n").encode()


class Tokenizers(NamedTuple):
    """Tokenizers of source and target; None for a side without tokens."""

    source: Tokenizer | None
    target: Tokenizer | None

    def encode(self, pair: SentencePair) -> EncodedPair:
        """Return both sides of a pair as ids.

        A source without a tokenizer stays as it is, and such a target is left out.

        Raises:
            ValueError: an unknown word.
        """
        source, target = self
        return EncodedPair(
            pair.source if source is None else source.encode(pair.source),
            () if target is None else target.encode(pair.target),
        )

    def keep(self, directory: Path) -> None:
        """Write a file for each side.

        Raises:
            UsageError: the directory contains other tokenizers, with which a model may be trained.
        """
        for side, tokenizer in zip(SIDES, self, strict=True):
            if tokenizer is None:
                continue
            path = directory / tokenizer.FILE.format(side=side)
            if not path.exists():
                write_whole(path, tokenizer.as_bytes())
            elif path.read_bytes() != tokenizer.as_bytes():
                raise UsageError(
                    f"{path} holds other words than the data, and is left as it is: choose "
                    "another --workdir"
                )


class Corpus(Protocol):
    """Sentence pairs, and the fingerprint of their text."""

    @property
    def fingerprint(self) -> str:
        """Hash of both sides of all pairs."""

    def __iter__(self) -> Iterator[SentencePair]:
        """Every pair."""


class Text(ABC):
    """How the text of a dataset becomes tokens.

    Methods take the numbers of the sides of a pair that have tokens, 0 for the source and 1 for the
    target.
    """

    FILE: ClassVar[str]
    LEARNED_FROM: ClassVar[int | None] = None  # pairs at the beginning of the data; None: all

    def learn(
        self,
        config: TextPart | None,
        pairs: Corpus,
        cache: Path,
        sides: Sequence[int] = (0, 1),
    ) -> Tokenizers:
        """Learn the tokens of training data, or read from `cache` those learned before.

        Raises:
            UsageError: more subwords than the sentences have, or fewer than they need.
        """

        def tokenizer(*sides: int) -> Tokenizer:
            def texts() -> Iterator[str]:
                return (pair[n] for n in sides for pair in islice(pairs, self.LEARNED_FROM))

            if (name := self._name(config)) is None:
                return self._learn(config, texts)
            kind = repr((self.FILE, name, sides, self.LEARNED_FROM))
            kept = cache / "tokens" / fingerprint([kind, pairs.fingerprint])
            if not kept.exists():
                kept.parent.mkdir(parents=True, exist_ok=True)
                write_whole(kept, self._learn(config, texts).as_bytes())
            return _parsed(kept, self._parse)

        if len(sides) == 2 and self._is_shared(config):
            return Tokenizers(*[tokenizer(*sides)] * 2)
        return Tokenizers(*(tokenizer(side) if side in sides else None for side in (0, 1)))

    def load(self, directory: Path, sides: Sequence[int] = (0, 1)) -> Tokenizers:
        """Load what `Tokenizers.keep` wrote.

        Raises:
            UsageError: a file that is missing or damaged.
        """
        paths = [directory / self.FILE.format(side=name) for name in SIDES]
        return Tokenizers(
            *(_parsed(paths[side], self._parse) if side in sides else None for side in (0, 1))
        )

    def _is_shared(self, config: TextPart | None) -> bool:
        """Return whether both sides have the same tokens."""
        del config
        return False

    @abstractmethod
    def _name(self, config: TextPart | None) -> str | None:
        """Name the tokens, if the same text always has the same; None if they are not stored."""

    @abstractmethod
    def _learn(self, config: TextPart | None, texts: Callable[[], Iterator[str]]) -> Tokenizer: ...

    @abstractmethod
    def _parse(self, content: bytes) -> Tokenizer: ...


@dataclass(frozen=True)
class Words(Text):
    """All words of the training sentences.

    Attributes:
        tokens: how text becomes words and back.
        shared: whether both sides have the words of both.
    """

    FILE = WordTokenizer.FILE

    tokens: Tokens = SPACED
    shared: bool = False

    def _is_shared(self, config: TextPart | None) -> bool:
        del config
        return self.shared

    def _name(self, config: TextPart | None) -> str | None:
        del config
        return self.tokens.name

    def _learn(self, config: TextPart | None, texts: Callable[[], Iterator[str]]) -> WordTokenizer:
        del config
        return WordTokenizer(Vocabulary.of(map(self.tokens.tokenize, texts())), self.tokens)

    def _parse(self, content: bytes) -> WordTokenizer:
        return WordTokenizer(Vocabulary.from_text(content.decode()), self.tokens)


@dataclass(frozen=True)
class Characters(Text):
    """All characters of the training text."""

    FILE = CharacterTokenizer.FILE

    def _name(self, config: TextPart | None) -> str:
        del config
        return "characters"

    def _learn(
        self, config: TextPart | None, texts: Callable[[], Iterator[str]]
    ) -> CharacterTokenizer:
        del config
        return CharacterTokenizer.of(texts())

    def _parse(self, content: bytes) -> CharacterTokenizer:
        return CharacterTokenizer(json.loads(content))


def _parsed(path: Path, parse: Callable[[bytes], Tokenizer]) -> Tokenizer:
    try:
        return parse(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
