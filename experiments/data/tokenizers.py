"""From text to ids and back: by a list of words, or by subwords that sentencepiece has learned."""

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol, TypeVar

import sentencepiece

from experiments.config.data import TextPart
from experiments.data.fingerprint import fingerprint
from experiments.data.pairs import SentencePair
from experiments.data.rows import EncodedPair
from experiments.data.vocabulary import BOS, EOS, PAD, Vocabulary
from experiments.data.words import SPACED, Tokens
from experiments.errors import UsageError
from experiments.files import write_whole

SIDES = ("source", "target")
BLANK = "▁"  # as sentencepiece writes one
STAND_IN = "\ufdd0"  # for that character itself: one that Unicode keeps out of texts
UNKNOWN = "▅"  # with which sentencepiece learns from no line, without a word

UNKNOWN_CHARACTER = "\ufffd"  # in place of those that the training text lacks

Parsed = TypeVar("Parsed")


class Tokenizer(Protocol):
    """A language: its tokens have ids, of which the first three are padding, begin and end.

    Attributes:
        FILE: where it stands in a workdir, by the side that it is for.
    """

    FILE: ClassVar[str]

    def __len__(self) -> int:
        """The number of ids."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text of the data, without begin and end."""

    def read(self, text: str) -> list[int]:
        """The ids of a text as a person types it.

        Raises:
            ValueError: what cannot be read.
        """

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids up to the first end."""

    def token(self, number: int) -> str:
        """What an id stands for, as a label."""

    def as_bytes(self) -> bytes:
        """All of it, for `from_bytes` of a `Text`."""


@dataclass(frozen=True)
class WordTokenizer:
    """Words of a list, and a way from text to words."""

    FILE = "vocabulary.{side}.txt"

    vocabulary: Vocabulary
    tokens: Tokens

    def __len__(self) -> int:
        """The number of words."""
        return len(self.vocabulary)

    def encode(self, text: str) -> list[int]:
        """The ids of the words.

        Raises:
            ValueError: an unknown word.
        """
        return self.vocabulary.encode(self.tokens.tokenize(text))

    def read(self, text: str) -> list[int]:
        """The same; a full stop, and the case of a word that has but one, are free."""
        words = self.tokens.tokenize(text.rstrip().removesuffix("."))
        return self.vocabulary.encode([self.vocabulary.respell(word) for word in words])

    def decode(self, ids: Iterable[int]) -> str:
        """The words as a text."""
        return self.tokens.detokenize(self.vocabulary.decode(ids))

    def token(self, number: int) -> str:
        """The word."""
        return self.vocabulary.words[number]

    def as_bytes(self) -> bytes:
        """One word a line."""
        return self.vocabulary.as_text().encode()


@dataclass(frozen=True)
class SubwordTokenizer:
    """Subwords (Kudo and Richardson 2018); what comes back is what went in, to the blank."""

    FILE = "subwords.{side}.model"

    model: bytes

    @cached_property
    def _processor(self) -> sentencepiece.SentencePieceProcessor:
        return sentencepiece.SentencePieceProcessor(model_proto=self.model)

    def __len__(self) -> int:
        """The number of subwords."""
        return self._processor.get_piece_size()

    def encode(self, text: str) -> list[int]:
        """The ids of the subwords; there is one for every byte."""
        return self._processor.encode(without_blank_signs(text))

    def read(self, text: str) -> list[int]:
        """The same without the blanks around it."""
        return self.encode(text.strip())

    def decode(self, ids: Iterable[int]) -> str:
        """The subwords as a text."""
        said = []
        for number in ids:
            if number == EOS:
                break
            if number not in (PAD, BOS):
                said.append(int(number))
        text = self._processor.decode(said)
        # A word of which sentencepiece has bytes alone brings the blank before it along, as text.
        if said and self._processor.is_byte(said[0]):
            text = text.removeprefix(BLANK)
        return text.replace(BLANK, " ").replace(STAND_IN, BLANK)

    def token(self, number: int) -> str:
        """The subword; a blank before it is a low line."""
        return self._processor.id_to_piece(int(number)).replace(BLANK, "_").replace(STAND_IN, BLANK)

    def as_bytes(self) -> bytes:
        """The model of sentencepiece."""
        return self.model


def without_blank_signs(text: str) -> str:
    """A text in which sentencepiece finds no blank but blanks."""
    return text.replace(BLANK, STAND_IN)


@dataclass(frozen=True)
class CharacterTokenizer:
    """Characters of a list; the id of each is its place, and none is special."""

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
        """All characters of some texts, in the order of Unicode."""
        known = {UNKNOWN_CHARACTER}
        for text in texts:
            known.update(text)
        return cls("".join(sorted(known)))

    @cached_property
    def ids(self) -> dict[str, int]:
        """Id of each character."""
        return {character: number for number, character in enumerate(self.characters)}

    def __len__(self) -> int:
        """The number of characters."""
        return len(self.characters)

    def encode(self, text: str) -> list[int]:
        """The ids of the characters; all unknown ones have the same."""
        unknown = self.ids[UNKNOWN_CHARACTER]
        return [self.ids.get(character, unknown) for character in text]

    def read(self, text: str) -> list[int]:
        """The same, of known characters.

        Raises:
            ValueError: an unknown character.
        """
        for character in text:
            if character not in self.ids:
                raise ValueError(f"the character {character!r} is not in the text that was learned")
        return self.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """The characters as a text."""
        return "".join(self.characters[number] for number in ids)

    def token(self, number: int) -> str:
        """The character."""
        return self.characters[number]

    def as_bytes(self) -> bytes:
        """One line of JSON."""
        return (json.dumps(self.characters, ensure_ascii=False) + "\n").encode()


class Tokenizers(NamedTuple):
    """Tokenizers of what is read and of what is predicted; None for a side without tokens."""

    source: Tokenizer | None
    target: Tokenizer | None

    def encode(self, pair: SentencePair) -> EncodedPair:
        """Both sides of a pair as ids.

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
        """Writes a file for each side.

        Raises:
            UsageError: the directory holds others already, to which a model may be trained.
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

    Methods take the numbers of the sides of a pair that have tokens, 0 for the source and 1 for the
    target.
    """

    FILE: ClassVar[str]
    LEARNED_FROM: ClassVar[int | None] = None  # pairs at the beginning of the data; None: all

    def learn(
        self,
        config: TextPart | None,
        pairs: Iterable[SentencePair],
        cache: Path,
        sides: Sequence[int] = (0, 1),
    ) -> Tokenizers:
        """Learn the tokens of training data; what takes long is kept in `cache`.

        Raises:
            UsageError: more subwords than the sentences have, or fewer than they need.
        """

        def tokenizer(*sides: int) -> Tokenizer:
            def texts() -> Iterator[str]:
                return (pair[n] for n in sides for pair in islice(pairs, self.LEARNED_FROM))

            return self._learn(config, texts, cache)

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
    def _learn(
        self, config: TextPart | None, texts: Callable[[], Iterator[str]], cache: Path
    ) -> Tokenizer: ...

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

    def _learn(
        self, config: TextPart | None, texts: Callable[[], Iterator[str]], cache: Path
    ) -> WordTokenizer:
        del config, cache
        return WordTokenizer(Vocabulary.of(map(self.tokens.tokenize, texts())), self.tokens)

    def _parse(self, content: bytes) -> WordTokenizer:
        return WordTokenizer(Vocabulary.from_text(content.decode()), self.tokens)


@dataclass(frozen=True)
class Subwords(Text):
    """Subwords, as `config.text` describes them: kind, size, and whether the sides share them."""

    FILE = SubwordTokenizer.FILE
    LEARNED_FROM = 1_000_000

    def _is_shared(self, config: TextPart | None) -> bool:
        return config.joint

    def _learn(
        self, config: TextPart | None, texts: Callable[[], Iterator[str]], cache: Path
    ) -> SubwordTokenizer:
        return _learned(config, texts, cache)

    def _parse(self, content: bytes) -> SubwordTokenizer:
        return _checked(content)


@dataclass(frozen=True)
class Characters(Text):
    """All characters of the training text."""

    FILE = CharacterTokenizer.FILE

    def _learn(
        self, config: TextPart | None, texts: Callable[[], Iterator[str]], cache: Path
    ) -> CharacterTokenizer:
        del config, cache
        return CharacterTokenizer.of(texts())

    def _parse(self, content: bytes) -> CharacterTokenizer:
        return CharacterTokenizer(json.loads(content))


def _learned(config: TextPart, texts: Callable[[], Iterator[str]], cache: Path) -> SubwordTokenizer:
    content = fingerprint(chain([repr((config.kind, config.size))], texts()))
    kept = cache / "subwords" / f"{content}.model"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept, _train(config.kind, config.size, texts))
    return SubwordTokenizer(kept.read_bytes())


def _train(kind: str, size: int, texts: Callable[[], Iterator[str]]) -> bytes:
    """A model in whose text no character is changed and every byte can be spelled."""
    model = io.BytesIO()

    def lines() -> Iterator[str]:
        return (without_blank_signs(text).replace(UNKNOWN, STAND_IN) for text in texts())

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines(),
            model_writer=model,
            model_type=kind,
            vocab_size=size,
            pad_id=PAD,
            bos_id=BOS,
            eos_id=EOS,
            unk_id=EOS + 1,
            character_coverage=1.0,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            max_sentence_length=10 + max(len(line.encode()) for line in lines()),
            num_threads=1,  # for the same bytes each time
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].rpartition("] ")[2]
        reason = reason.partition(" Increase ")[0]  # by options that are not ours
        raise UsageError(f"text.size={size} cannot be learned: {reason}") from error
    return model.getvalue()


def _parsed(path: Path, parse: Callable[[bytes], Parsed]) -> Parsed:
    try:
        return parse(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def _checked(model: bytes) -> SubwordTokenizer:
    tokenizer = SubwordTokenizer(model)
    try:
        size = len(tokenizer)
    except RuntimeError:
        size = 0
    if not size:
        raise ValueError("it is no model of sentencepiece")
    return tokenizer
