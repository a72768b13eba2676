"""Texts and their ids: pairs of sentences, and tokenizers; `subwords.py` has those of subwords."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np

from experiments.config.parts import TextPart
from experiments.errors import UsageError, nearest
from experiments.files import make_folder, write_whole

Ids = Sequence[int] | np.ndarray
Example = TypeVar("Example", bound=tuple[Ids, ...])

SIDES = ("source", "target")
PAD, BOS, EOS = 0, 1, 2
SPECIALS = ("<pad>", "<bos>", "<eos>")
UNKNOWN_CHARACTER = "\ufffd"  # in place of those that the training text lacks


class SentencePair(NamedTuple):
    """A sentence, its translation, and which of their words correspond.

    Attributes:
        source: plain text; in data of images an array.
        target: plain text, or the name of a class; "" if there is none.
        links: "0-0 1-2", which tokens of the two correspond, source first.
    """

    source: str
    target: str = ""
    links: str = ""

    @property
    def alignment(self) -> list[tuple[int, int]]:
        """The links as indices (source token, target token)."""
        return [tuple(map(int, link.split("-"))) for link in self.links.split()]


class EncodedPair(NamedTuple):
    """Ids of a source and a target sentence, without begin and end."""

    source: Ids
    target: Ids = ()


class EncodedExamples(list[Example]):
    """Examples in memory; each is a tuple of the ids of its sides."""

    @cached_property
    def lengths(self) -> np.ndarray:
        """Positions of each side, its end included: `[examples, sides]`."""
        return np.array([[len(side) + 1 for side in example] for example in self])


def segment_pairs(
    segments: Sequence[Callable[[str, np.random.Generator], Ids]],
    pairs: Sequence[SentencePair],
    plain: Sequence[EncodedPair],
    most: Sequence[int],
    random: np.random.Generator,
) -> EncodedExamples[EncodedPair]:
    """Return pairs with random ids, by a function for each side.

    The ids of a pair are its `plain` ones if a side would need more than `most` positions.
    """
    encoded = EncodedExamples[EncodedPair]()
    for pair, whole in zip(pairs, plain, strict=True):
        sides = [segment(text, random) for segment, text in zip(segments, pair, strict=False)]
        has_room = all(len(ids) < room for ids, room in zip(sides, most, strict=True))
        encoded.append(EncodedPair(*sides) if has_room else whole)
    return encoded


def fingerprint(lines: Iterable[str]) -> str:
    """Return sixteen hexadecimal digits of the SHA-256 of lines."""
    return hashlib.sha256("\n".join([*lines, ""]).encode()).hexdigest()[:16]


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
    vocabulary: Sequence[str]  # the tokens by id, as labels

    def __len__(self) -> int:
        return len(self.vocabulary)

    def token(self, number: int) -> str:
        """Return the token of an id, as a label."""
        return self.vocabulary[number]

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
    """Words, the special ones first; its file has one on each line."""

    FILE = "vocabulary.{side}.txt"

    vocabulary: tuple[str, ...]
    tokens: Tokens

    @cached_property
    def ids(self) -> dict[str, int]:
        """Id of each word but the special ones."""
        return dict(zip(self.vocabulary[len(SPECIALS) :], count(len(SPECIALS)), strict=False))

    @cached_property
    def placeholder(self) -> str:
        """The most frequent capitalized word, which is a name, or else the rarest word."""
        names = (word for word in self.ids if word[:1].isupper() and len(word) > 1)
        return next(names, self.vocabulary[-1])

    @cached_property
    def _in_small_letters(self) -> dict[str, str]:
        """Word by its lower-case spelling; the most frequent one if there are several."""
        return {word.lower(): word for word in reversed([*self.ids])}

    def respell(self, word: str) -> str:
        """Return a word in the case in which it is known; an unknown one as it is."""
        return word if word in self.ids else self._in_small_letters.get(word.lower(), word)

    def encode(self, text: str) -> list[int]:
        try:
            return [*map(self.ids.__getitem__, self.words(text))]
        except KeyError as error:
            (word,) = error.args
            hint = nearest(word, self.ids)
            raise ValueError(f"the word {word!r} is not in the vocabulary{hint}") from None

    def read(self, text: str) -> list[int]:
        """Return the ids; a full stop at the end is removed, and the case of words corrected."""
        words = self.words(text.rstrip().removesuffix("."))
        return self.encode(self.tokens.detokenize([*map(self.respell, words)]))

    def decode(self, ids: Iterable[int]) -> str:
        return self.tokens.detokenize([*map(self.token, without_specials(ids))])

    def words(self, text: str) -> list[str]:
        return self.tokens.tokenize(text)

    def as_bytes(self) -> bytes:
        return ("\n".join(self.vocabulary) + "\n").encode()


@dataclass(frozen=True)
class CharacterTokenizer(Tokenizer):
    """Characters of a list; the id of each is its index, and none is special."""

    FILE = "characters.{side}.json"

    vocabulary: str

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        """Make a tokenizer of all characters of some texts, in the order of Unicode."""
        return cls("".join(sorted({UNKNOWN_CHARACTER}.union(*texts))))

    @cached_property
    def ids(self) -> dict[str, int]:
        """Id of each character."""
        return {character: number for number, character in enumerate(self.vocabulary)}

    def encode(self, text: str) -> list[int]:
        """Return the ids of the characters; all unknown ones have the same."""
        unknown = self.ids[UNKNOWN_CHARACTER]
        return [self.ids.get(character, unknown) for character in text]

    def read(self, text: str) -> list[int]:
        if unknown := [character for character in text if character not in self.ids]:
            raise ValueError(f"the character {unknown[0]!r} is not in the text that was learned")
        return self.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(map(self.token, ids))

    def words(self, text: str) -> list[str]:
        return [*text]

    def as_bytes(self) -> bytes:
        return (json.dumps(self.vocabulary, ensure_ascii=False) + "\n").encode()


class Tokenizers(NamedTuple):
    """Tokenizers of source and target; None for a side without tokens."""

    source: Tokenizer | None
    target: Tokenizer | None

    def encode(self, pair: SentencePair) -> EncodedPair:
        """Return both sides of a pair as ids; a ValueError names an unknown word.

        A source without a tokenizer stays as it is, and such a target is left out.
        """
        source, target = self
        return EncodedPair(
            pair.source if source is None else source.encode(pair.source),
            () if target is None else target.encode(pair.target),
        )

    def keep(self, directory: Path) -> None:
        """Write a file for each side; raise a UsageError if the directory has other tokenizers."""
        for side, tokenizer in zip(SIDES, self, strict=True):
            path = tokenizer and directory / tokenizer.FILE.format(side=side)
            if path and not path.exists():
                write_whole(path, tokenizer.as_bytes())
            elif path and path.read_bytes() != tokenizer.as_bytes():
                raise UsageError(
                    f"{path} holds other words than the data, and is left as it is: choose "
                    "another --workdir"
                )


@dataclass(frozen=True)
class Text(ABC):
    """How the text of a dataset becomes tokens.

    `sides` of its methods are those that have tokens: 0, the source, and 1, the target.

    Attributes:
        shared: whether both sides have the tokens of both; of subwords, `config.text` decides it.
    """

    FILE: ClassVar[str]  # as of its tokenizer
    LEARNED_FROM: ClassVar[int | None] = None  # pairs at the beginning of the data; None: all

    shared: bool = field(default=False, kw_only=True)

    def learn(
        self,
        config: TextPart | None,
        pairs: Any,  # noqa: ANN401 - sentence pairs with a `fingerprint`
        cache: Path,
        sides: Sequence[int] = (0, 1),
    ) -> Tokenizers:
        """Learn the tokens of training data, or read from `cache` those learned before."""
        found: dict[int, Tokenizer] = {}
        joint = config.joint if config else self.shared
        for group in [(*sides,)] if joint else zip(sides):
            path = cache / "tokens" / fingerprint([repr((self, config, group)), pairs.fingerprint])
            if not path.exists():
                make_folder(path.parent)

                def texts(group: Sequence[int] = group) -> Iterator[str]:
                    return (pair[n] for n in group for pair in islice(pairs, self.LEARNED_FROM))

                write_whole(path, self._learn(config, texts).as_bytes())
            found |= dict.fromkeys(group, self._read(path))
        return Tokenizers(found.get(0), found.get(1))

    def load(self, directory: Path, sides: Sequence[int] = (0, 1)) -> Tokenizers:
        """Load what `keep` wrote; raise a UsageError for a file that is missing or damaged."""
        read = {n: self._read(directory / self.FILE.format(side=SIDES[n])) for n in sides}
        return Tokenizers(read.get(0), read.get(1))

    def _read(self, path: Path) -> Tokenizer:
        try:
            return self._parse(path.read_bytes())
        except (OSError, ValueError, RuntimeError) as error:  # sentencepiece raises the last
            raise UsageError(f"{path} cannot be read: {error}") from error

    @abstractmethod
    def _learn(self, config: TextPart | None, texts: Callable[[], Iterator[str]]) -> Tokenizer: ...

    @abstractmethod
    def _parse(self, content: bytes) -> Tokenizer: ...


@dataclass(frozen=True)
class Words(Text):
    """All words of the training sentences; `tokens` tells how text becomes words and back."""

    FILE = WordTokenizer.FILE

    tokens: Tokens = SPACED

    def _learn(self, config: TextPart | None, texts: Callable[[], Iterator[str]]) -> WordTokenizer:
        """Learn the words, the most frequent first."""
        counts = Counter(word for text in texts() for word in self.tokens.tokenize(text))
        words = sorted(counts, key=lambda word: (-counts[word], word))
        return WordTokenizer((*SPECIALS, *words), self.tokens)

    def _parse(self, content: bytes) -> WordTokenizer:
        words = content.decode().removesuffix("\n").split("\n")
        if (*words[:3],) != SPECIALS:
            raise ValueError(f"a vocabulary starts with {SPECIALS}")
        return WordTokenizer((*words,), self.tokens)


@dataclass(frozen=True)
class Characters(Text):
    """All characters of the training text."""

    FILE = CharacterTokenizer.FILE

    def _learn(self, config: TextPart | None, texts: Callable[[], Iterator[str]]) -> Tokenizer:
        return CharacterTokenizer.of(texts())

    def _parse(self, content: bytes) -> CharacterTokenizer:
        return CharacterTokenizer(json.loads(content))
