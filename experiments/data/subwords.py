"""Subwords that sentencepiece has learned: a model in which every text can be spelled."""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import sentencepiece

from experiments.config.data import SMALLEST_SUBWORDS, TextPart
from experiments.data.tokenizers import Text
from experiments.data.vocabulary import BOS, EOS, PAD
from experiments.errors import UsageError

BLANK = "▁"  # of sentencepiece, for a blank
STAND_IN = "\ufdd0"  # replaces that character in texts: a code point that Unicode reserves
LARGEST = 8_000  # subwords, of a size that the text decides
UNKNOWN = "▅"  # of sentencepiece: it ignores lines that contain it


@dataclass(frozen=True)
class SubwordTokenizer:
    """Subwords (Kudo and Richardson 2018); decoding restores a text exactly."""

    FILE = "subwords.{side}.model"

    model: bytes

    @cached_property
    def _processor(self) -> sentencepiece.SentencePieceProcessor:
        return sentencepiece.SentencePieceProcessor(model_proto=self.model)

    def __len__(self) -> int:
        """Number of subwords."""
        return self._processor.get_piece_size()

    def encode(self, text: str) -> list[int]:
        """Return the ids of the subwords; there is one for every byte."""
        return self._processor.encode(without_blank_signs(text))

    def read(self, text: str) -> list[int]:
        """Return the ids of a text without the blanks around it."""
        return self.encode(text.strip())

    def decode(self, ids: Iterable[int]) -> str:
        """Return the subwords as a text."""
        spelled = []
        for number in ids:
            if number == EOS:
                break
            if number not in (PAD, BOS):
                spelled.append(int(number))
        text = self._processor.decode(spelled)
        # Before a word that is spelled in bytes, sentencepiece leaves the blank in the text.
        if spelled and self._processor.is_byte(spelled[0]):
            text = text.removeprefix(BLANK)
        return text.replace(BLANK, " ").replace(STAND_IN, BLANK)

    def token(self, number: int) -> str:
        """Return the subword; a blank before it is an underscore."""
        return self._processor.id_to_piece(int(number)).replace(BLANK, "_").replace(STAND_IN, BLANK)

    def words(self, text: str) -> list[str]:
        """Return the words, which blanks separate."""
        return text.split()

    def word_numbers(self, ids: Sequence[int]) -> list[int]:
        """Return the number of the word of each subword; a blank belongs to the word after it."""
        texts = (self.decode(ids[: place + 1]) for place in range(len(ids)))
        return [len(f"{text}x".split()) - 1 for text in texts]

    def pieces(self) -> list[str]:
        """Return all subwords in the spelling of sentencepiece."""
        return self._processor.id_to_piece([*range(len(self))])

    def as_bytes(self) -> bytes:
        """Return the model of sentencepiece."""
        return self.model


def without_blank_signs(text: str) -> str:
    """Return a text without the character that means a blank for sentencepiece."""
    return text.replace(BLANK, STAND_IN)


@dataclass(frozen=True)
class Subwords(Text):
    """Subwords, as `config.text` describes them: kind, size, and whether the sides share them."""

    FILE = SubwordTokenizer.FILE
    LEARNED_FROM = 1_000_000

    def _is_shared(self, config: TextPart | None) -> bool:
        return config.joint

    def _name(self, config: TextPart | None) -> str:
        return repr((config.kind, config.size))

    def _learn(
        self, config: TextPart | None, texts: Callable[[], Iterator[str]]
    ) -> SubwordTokenizer:
        return SubwordTokenizer(_train(config.kind, config.size, texts))

    def _parse(self, content: bytes) -> SubwordTokenizer:
        return _checked(content)


def _train(kind: str, size: int, texts: Callable[[], Iterator[str]]) -> bytes:
    """Return a model that changes no character and has a subword for every byte.

    The size 0 is a tenth of the words of the text, at most 8,000, within the limits of the text.

    Raises:
        UsageError: a size that does not fit the text.
    """
    if size:
        return _train_size(kind, size, texts)
    size = min(LARGEST, max(SMALLEST_SUBWORDS, sum(len(text.split()) for text in texts()) // 10))
    try:
        return _train_size(kind, size, texts)
    except _SizeError as error:
        return _train_size(kind, error.limit, texts)


class _SizeError(UsageError):
    """A size outside the limits of a text; `limit` is the nearest one inside."""

    limit: int


def _train_size(kind: str, size: int, texts: Callable[[], Iterator[str]]) -> bytes:
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
        raise _size_error(size, str(error)) from error
    return model.getvalue()


def _size_error(size: int, error: str) -> UsageError:
    """Return what is wrong with a size, from the message of sentencepiece."""
    if high := re.search(r"too high .*<= (\d+)", error):
        reason, limit = "is more than the {0} subwords that this text has: choose at most {0}", high
    elif low := re.search(r"smaller than required_chars\. \d+ vs (\d+)", error):
        reason, limit = (
            "is less than the {0} subwords that this text needs: choose at least {0}",
            low,
        )
    else:
        reason = f"cannot be learned: {error.strip().splitlines()[-1].rpartition('] ')[2]}"
        return UsageError(f"text.size={size} {reason}")
    found = _SizeError(f"text.size={size} {reason.format(limit[1])}")
    found.limit = int(limit[1])
    return found


def _checked(model: bytes) -> SubwordTokenizer:
    tokenizer = SubwordTokenizer(model)
    try:
        size = len(tokenizer)
    except RuntimeError:
        size = 0
    if not size:
        raise ValueError("it is no model of sentencepiece")
    return tokenizer
