"""From text to ids and back: by a list of words, or by subwords that sentencepiece has learned."""

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol, TypeVar

import sentencepiece

from experiments.config.data import TextPart
from experiments.data.batching import EncodedPair
from experiments.data.fingerprint import fingerprint
from experiments.data.pairs import SentencePair
from experiments.data.vocabulary import BOS, EOS, PAD, Vocabulary
from experiments.data.words import SPACED, Tokens
from experiments.errors import UsageError
from experiments.files import write_whole

SIDES = ("source", "target")
BLANK = "▁"  # as sentencepiece writes one
STAND_IN = "\ufdd0"  # for that character itself: one that Unicode keeps out of texts
UNKNOWN = "▅"  # with which sentencepiece learns from no line, without a word

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


class Tokenizers(NamedTuple):
    """Those of the language that is read and of the one that is said."""

    source: Tokenizer
    target: Tokenizer

    def encode(self, pair: SentencePair) -> EncodedPair:
        """Both sides of a pair as ids.

        Raises:
            ValueError: an unknown word.
        """
        return EncodedPair(self.source.encode(pair.source), self.target.encode(pair.target))

    def keep(self, directory: Path) -> None:
        """Writes a file for each side.

        Raises:
            UsageError: the directory holds others already, to which a model may be trained.
        """
        for side, tokenizer in zip(SIDES, self, strict=True):
            path = directory / tokenizer.FILE.format(side=side)
            if not path.exists():
                write_whole(path, tokenizer.as_bytes())
            elif path.read_bytes() != tokenizer.as_bytes():
                raise UsageError(
                    f"{path} holds other words than the data, and is left as it is: choose "
                    "another --workdir"
                )


class Text(Protocol):
    """How the text of a source becomes tokens."""

    def learn(
        self, config: TextPart | None, pairs: Sequence[SentencePair], cache: Path
    ) -> Tokenizers:
        """The tokens of some sentences, by `config.text`; what takes long is kept in `cache`."""

    def load(self, directory: Path) -> Tokenizers:
        """What `Tokenizers.keep` wrote.

        Raises:
            UsageError: a file that is missing or damaged.
        """


@dataclass(frozen=True)
class Words:
    """All words of the training sentences.

    Attributes:
        tokens: how text becomes words and back.
        shared: whether both sides have the words of both.
    """

    tokens: Tokens = SPACED
    shared: bool = False

    def learn(
        self, config: TextPart | None, pairs: Sequence[SentencePair], cache: Path
    ) -> Tokenizers:
        """Every word, however rare."""
        del config, cache
        source, target = (
            [self.tokens.tokenize(text) for text in texts]
            for texts in zip(*((pair.source, pair.target) for pair in pairs), strict=True)
        )
        if self.shared:
            source = target = [*source, *target]
        return self._tokenizers(Vocabulary.of(source), Vocabulary.of(target))

    def load(self, directory: Path) -> Tokenizers:
        """As in `Text`."""
        return self._tokenizers(
            *(
                _parsed(path, lambda found: Vocabulary.from_text(found.decode()))
                for path in _paths(directory, WordTokenizer)
            )
        )

    def _tokenizers(self, source: Vocabulary, target: Vocabulary) -> Tokenizers:
        return Tokenizers(WordTokenizer(source, self.tokens), WordTokenizer(target, self.tokens))


@dataclass(frozen=True)
class Subwords:
    """Subwords, as `config.text` says: kind, size, and whether the sides share them."""

    def learn(
        self, config: TextPart | None, pairs: Sequence[SentencePair], cache: Path
    ) -> Tokenizers:
        """Of the training sentences, or what is kept of the same sentences and settings.

        Raises:
            UsageError: more subwords than the sentences have, or fewer than they need.
        """
        sides = [pair.source for pair in pairs], [pair.target for pair in pairs]
        if config.joint:
            both = _learned(config, [*chain(*sides)], cache)
            return Tokenizers(both, both)
        return Tokenizers(*(_learned(config, texts, cache) for texts in sides))

    def load(self, directory: Path) -> Tokenizers:
        """As in `Text`."""
        return Tokenizers(
            *(_parsed(path, _checked) for path in _paths(directory, SubwordTokenizer))
        )


def _learned(config: TextPart, texts: Sequence[str], cache: Path) -> SubwordTokenizer:
    content = fingerprint([repr((config.kind, config.size)), *texts])
    kept = cache / "subwords" / f"{content}.model"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept, _train(config.kind, config.size, texts))
    return SubwordTokenizer(kept.read_bytes())


def _train(kind: str, size: int, texts: Sequence[str]) -> bytes:
    """A model in whose text no character is changed and every byte can be spelled."""
    model = io.BytesIO()
    lines = [without_blank_signs(text).replace(UNKNOWN, STAND_IN) for text in texts]
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
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
            max_sentence_length=10 + max(len(line.encode()) for line in lines),
            num_threads=1,  # for the same bytes each time
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].rpartition("] ")[2]
        reason = reason.partition(" Increase ")[0]  # by options that are not ours
        raise UsageError(f"text.size={size} cannot be learned: {reason}") from error
    return model.getvalue()


def _paths(directory: Path, kind: type[Tokenizer]) -> list[Path]:
    return [directory / kind.FILE.format(side=side) for side in SIDES]


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
