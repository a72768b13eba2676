"""Tokenizers convert text to ids and back; `subwords.py` has those of subwords."""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from experiments.config.parts import TextPart
from experiments.data.examples import EncodedPair, SentencePair, fingerprint
from experiments.errors import UsageError, nearest
from experiments.files import write_whole

SIDES = ("source", "target")
PAD, BOS, EOS = 0, 1, 2
SPECIALS = ("<pad>", "<bos>", "<eos>")
UNKNOWN_CHARACTER = "\ufffd"  # in place of those that the training text lacks


def tokenize(text: str) -> list[str]:
    """Split a sentence at spaces and after apostrophes: "l'Afrique" is "l'", "Afrique"."""
    return text.replace("'", "' ").split()


def detokenize(tokens: list[str]) -> str:
    """Join tokens to a sentence: the inverse of `tokenize`."""
    return " ".join(tokens).replace("' ", "'")


@dataclass(frozen=True)
class Tokens:
    """A function from text to tokens, its inverse, and a name of both for stored vocabularies."""

    tokenize: Callable[[str], list[str]] = field(repr=False)
    detokenize: Callable[[list[str]], str] = field(repr=False)
    name: str


WORDS = Tokens(tokenize, detokenize, "words")
SPACED = Tokens(str.split, " ".join, "spaced")
WHOLE = Tokens(lambda text: [text], "".join, "whole")  # a text is one token


@dataclass(frozen=True)
class Vocabulary:
    """A list of words, whose ids are their indices; padding, begin and end come first."""

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check that the list can be read back."""
        if self.words[:3] != SPECIALS or len({*self.words}) != len(self.words):
            raise ValueError(f"a vocabulary starts with {SPECIALS} and contains each word once")

    @classmethod
    def of(cls, sentences: Iterable[Sequence[str]]) -> Self:
        """Make a vocabulary of all words of tokenized sentences, the most frequent first.

        Raises:
            UsageError: a word that is spelled as a special one.
        """
        counts = Counter(word for sentence in sentences for word in sentence)
        if taken := [word for word in SPECIALS if word in counts]:
            raise UsageError(
                f"the word or class {taken[0]!r} of the data is a special token of the "
                "vocabulary: rename it"
            )
        return cls((*SPECIALS, *sorted(counts, key=lambda word: (-counts[word], word))))

    @cached_property
    def ids(self) -> dict[str, int]:
        """Id of each word but the special ones."""
        return {word: number for number, word in enumerate(self.words) if number >= len(SPECIALS)}

    @cached_property
    def _in_small_letters(self) -> dict[str, str]:
        """Word by its lower-case spelling; the most frequent one if there are several."""
        return {word.lower(): word for word in reversed([*self.ids])}

    def respell(self, word: str) -> str:
        """Return a word in the case in which it is known; an unknown one as it is."""
        return word if word in self.ids else self._in_small_letters.get(word.lower(), word)

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, sentence: Sequence[str], kind: str = "word") -> list[int]:
        """Return the ids of the words, without begin and end.

        Raises:
            ValueError: a word that is unknown, named as a `kind`, with the nearest that is known.
        """
        try:
            return [self.ids[word] for word in sentence]
        except KeyError as error:
            (word,) = error.args
            hint = nearest(word, self.ids, quote=True)
            raise ValueError(f"the {kind} {word!r} is not in the vocabulary{hint}") from None

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the words of ids up to the first end; padding and begin are left out."""
        return [self.words[number] for number in without_specials(ids)]


def placeholder(vocabulary: Vocabulary) -> str:
    """Return the most frequent capitalized word, which is a name, or else the rarest word."""
    words = vocabulary.words[len(SPECIALS) :]
    return next((word for word in words if word[:1].isupper() and len(word) > 1), words[-1])


def without_specials(ids: Iterable[int]) -> Iterator[int]:
    """Yield the ids up to the first end, without padding and begin."""
    for number in ids:
        if number == EOS:
            return
        if number not in (PAD, BOS):
            yield int(number)


class Tokenizer(ABC):
    """Conversion of text to ids and back; ids 0, 1, 2 are `PAD`, `BOS`, `EOS`, or characters."""

    FILE: ClassVar[str]  # its name in a workdir, by the side of an example

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the ids of a text of the data; a ValueError names an unknown word."""

    @abstractmethod
    def read(self, text: str) -> list[int]:
        """Return the ids of a text that a person typed; a ValueError names what is unknown."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids up to the first end."""

    @abstractmethod
    def token(self, number: int) -> str:
        """Return the token of an id, as a label."""

    @abstractmethod
    def words(self, text: str) -> list[str]:
        """Return the words of a text, known or not, between which alignments are."""

    def word_numbers(self, ids: Sequence[int]) -> list[int]:
        """Return the number of the word to which each token belongs, from 0."""
        return [*range(len(ids))]

    @abstractmethod
    def as_bytes(self) -> bytes:
        """Return the content of its file."""


@dataclass(frozen=True)
class WordTokenizer(Tokenizer):
    """Words of a vocabulary; its file has one word on each line."""

    FILE = "vocabulary.{side}.txt"

    vocabulary: Vocabulary
    tokens: Tokens

    def __len__(self) -> int:
        return len(self.vocabulary)

    def encode(self, text: str) -> list[int]:
        kind = "class" if self.tokens is WHOLE else "word"
        return self.vocabulary.encode(self.tokens.tokenize(text), kind)

    def read(self, text: str) -> list[int]:
        """Return the ids; a full stop at the end is removed, and the case of words corrected."""
        words = self.tokens.tokenize(text.rstrip().removesuffix("."))
        return self.vocabulary.encode([self.vocabulary.respell(word) for word in words])

    def decode(self, ids: Iterable[int]) -> str:
        return self.tokens.detokenize(self.vocabulary.decode(ids))

    def token(self, number: int) -> str:
        return self.vocabulary.words[number]

    def words(self, text: str) -> list[str]:
        return self.tokens.tokenize(text)

    def as_bytes(self) -> bytes:
        return ("\n".join(self.vocabulary.words) + "\n").encode()


@dataclass(frozen=True)
class CharacterTokenizer(Tokenizer):
    """Characters of a list; the id of each is its index, and none is special."""

    FILE = "characters.{side}.json"

    characters: str

    def __post_init__(self) -> None:
        """Check that a text can be read back."""
        if len(self.ids) != len(self.characters) or UNKNOWN_CHARACTER not in self.ids:
            raise ValueError(
                f"a list of characters contains each once, and {UNKNOWN_CHARACTER!r} among them"
            )

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        """Make a tokenizer of all characters of some texts, in the order of Unicode."""
        return cls("".join(sorted({UNKNOWN_CHARACTER}.union(*texts))))

    @cached_property
    def ids(self) -> dict[str, int]:
        """Id of each character."""
        return {character: number for number, character in enumerate(self.characters)}

    def __len__(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> list[int]:
        """Return the ids of the characters; all unknown ones have the same."""
        unknown = self.ids[UNKNOWN_CHARACTER]
        return [self.ids.get(character, unknown) for character in text]

    def read(self, text: str) -> list[int]:
        for character in text:
            if character not in self.ids:
                raise ValueError(f"the character {character!r} is not in the text that was learned")
        return self.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.characters[number] for number in ids)

    def token(self, number: int) -> str:
        return self.characters[number]

    def words(self, text: str) -> list[str]:
        """Return the characters: each is aligned."""
        return [*text]

    def as_bytes(self) -> bytes:
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


class Text(ABC):
    """How the text of a dataset becomes tokens.

    Methods take `config.text`, and the sides that have tokens: 0, the source, and 1, the target.
    """

    FILE: ClassVar[str]
    LEARNED_FROM: ClassVar[int | None] = None  # pairs at the beginning of the data; None: all

    def learn(
        self,
        config: TextPart | None,
        pairs: Any,  # noqa: ANN401 - sentence pairs with a `fingerprint`
        cache: Path,
        sides: Sequence[int] = (0, 1),
    ) -> Tokenizers:
        """Learn the tokens of training data, or read from `cache` those learned before.

        Raises:
            UsageError: more subwords than the sentences have, or fewer than they need.
        """

        def tokenizer(*sides: int) -> Tokenizer:
            path = cache / "tokens" / fingerprint([repr((self, config, sides)), pairs.fingerprint])
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)

                def texts() -> Iterator[str]:
                    return (pair[n] for n in sides for pair in islice(pairs, self.LEARNED_FROM))

                write_whole(path, self._learn(config, texts).as_bytes())
            return self._read(path)

        if len(sides) == 2 and self._is_shared(config):
            return Tokenizers(*[tokenizer(*sides)] * 2)
        return Tokenizers(*(tokenizer(side) if side in sides else None for side in (0, 1)))

    def load(self, directory: Path, sides: Sequence[int] = (0, 1)) -> Tokenizers:
        """Load what `Tokenizers.keep` wrote.

        Raises:
            UsageError: a file that is missing or damaged.
        """
        paths = [directory / self.FILE.format(side=side) for side in SIDES]
        return Tokenizers(*(self._read(paths[n]) if n in sides else None for n in (0, 1)))

    def _read(self, path: Path) -> Tokenizer:
        try:
            return self._parse(path.read_bytes())
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be read: {error}") from error

    def _is_shared(self, config: TextPart | None) -> bool:
        """Return whether both sides have the same tokens."""
        return False

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
        return self.shared

    def _learn(self, config: TextPart | None, texts: Callable[[], Iterator[str]]) -> WordTokenizer:
        return WordTokenizer(Vocabulary.of(map(self.tokens.tokenize, texts())), self.tokens)

    def _parse(self, content: bytes) -> WordTokenizer:
        words = content.decode().removesuffix("\n").split("\n")
        return WordTokenizer(Vocabulary((*words,)), self.tokens)


@dataclass(frozen=True)
class Characters(Text):
    """All characters of the training text."""

    FILE = CharacterTokenizer.FILE

    def _learn(self, config: TextPart | None, texts: Callable[[], Iterator[str]]) -> Tokenizer:
        return CharacterTokenizer.of(texts())

    def _parse(self, content: bytes) -> CharacterTokenizer:
        return CharacterTokenizer(json.loads(content))
