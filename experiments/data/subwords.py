"""Subwords that sentencepiece has learned, in which every text can be spelled, and BPE dropout."""

import functools
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import sentencepiece

from experiments.config.parts import SMALLEST_SUBWORDS, TextPart
from experiments.data.tokenizers import (
    BOS,
    EOS,
    PAD,
    SPECIALS,
    EncodedExamples,
    EncodedPair,
    SentencePair,
    Text,
    Tokenizer,
    Tokenizers,
    without_specials,
)

BLANK = "▁"  # of sentencepiece, for a blank
LARGEST = 8_000  # subwords, of a size that the text decides
UNKNOWN = "▅"  # of sentencepiece: it ignores lines that contain it
# In texts, code points that Unicode reserves stand for `BLANK`, and each of those for itself.
STAND_IN = "\ufdd0"
ESCAPES = {BLANK: STAND_IN, STAND_IN: "\ufdd10", "\ufdd1": "\ufdd11"}
ESCAPED = re.compile("\ufdd1[01]|\ufdd0")
WORD = re.compile(f"{BLANK}?[^{BLANK}]+|{BLANK}")  # each begins with a blank
CACHED = 2**18  # segmentations of words: some hundred megabytes at most


def escape(text: str) -> str:
    """Return a text without the character that means a blank for sentencepiece."""
    return text.translate(str.maketrans(ESCAPES))


def unescape(text: str) -> str:
    """Invert `escape`."""
    originals = {escaped: original for original, escaped in ESCAPES.items()}
    return ESCAPED.sub(lambda match: originals[match[0]], text)


@dataclass(frozen=True)
class SubwordTokenizer(Tokenizer):
    """Subwords (Kudo and Richardson 2018); decoding restores a text exactly."""

    FILE = "subwords.{side}.model"

    model: bytes

    @cached_property
    def processor(self) -> sentencepiece.SentencePieceProcessor:
        """The model of sentencepiece."""
        return sentencepiece.SentencePieceProcessor(model_proto=self.model)

    def __len__(self) -> int:
        return self.processor.get_piece_size()

    def encode(self, text: str) -> list[int]:
        return self.processor.encode(escape(text))

    def read(self, text: str) -> list[int]:
        return self.encode(text.strip())

    def decode(self, ids: Iterable[int]) -> str:
        spelled = [*without_specials(ids)]
        text = self.processor.decode(spelled)
        # Before a word that is spelled in bytes, sentencepiece leaves the blank in the text.
        if spelled and self.processor.is_byte(spelled[0]):
            text = text.removeprefix(BLANK)
        return unescape(text.replace(BLANK, " "))

    def token(self, number: int) -> str:
        """Return the subword; a blank before it is an underscore."""
        if number < len(SPECIALS):
            return SPECIALS[number]
        return unescape(self.processor.id_to_piece(int(number)).replace(BLANK, "_"))

    def words(self, text: str) -> list[str]:
        return text.split()

    def word_numbers(self, ids: Sequence[int]) -> list[int]:
        """Return the number of the word of each subword; a blank belongs to the word after it."""
        texts = (self.decode(ids[: end + 1]) for end in range(len(ids)))
        return [len(f"{text}x".split()) - 1 for text in texts]

    def pieces(self) -> list[str]:
        """Return all subwords in the spelling of sentencepiece."""
        return self.processor.id_to_piece([*range(len(self))])

    def as_bytes(self) -> bytes:
        return self.model


@dataclass(frozen=True)
class Subwords(Text):
    """Subwords, as `config.text` describes them: kind, size, and whether the sides share them.

    There are at most `size`, but at least one for each character.
    """

    FILE = SubwordTokenizer.FILE
    LEARNED_FROM = 1_000_000

    shared: bool | None = field(default=None, kw_only=True)

    def _learn(self, config: TextPart, texts: Callable[[], Iterator[str]]) -> SubwordTokenizer:
        """Learn a model that changes no character and has a subword for every byte."""
        model = io.BytesIO()

        def lines() -> Iterator[str]:
            return (escape(text).replace(UNKNOWN, STAND_IN) for text in texts())

        characters, words = {" "}, 0
        for line in lines():
            characters.update(line)
            words += len(line.split())
        least = SMALLEST_SUBWORDS + len(characters)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines(),
            model_writer=model,
            model_type=config.kind,
            vocab_size=max(least, config.size or min(LARGEST, words // 10)),
            hard_vocab_limit=False,  # a short text has fewer
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
        return SubwordTokenizer(model.getvalue())

    def _parse(self, content: bytes) -> SubwordTokenizer:
        tokenizer = SubwordTokenizer(content)
        try:
            len(tokenizer)
        except RuntimeError as error:
            raise ValueError("it is no model of sentencepiece") from error
        return tokenizer


class SubwordDropout:
    """Segmentations of a text in which merges of BPE are left out at random.

    Provilkov et al. 2020, section 3: at each step every possible merge is left out with probability
    `rate`, and the best of the others is applied; if there is none, the word is complete. Sampling
    by sentencepiece cannot be repeated, not even with a seed, because its generator starts with
    another state in each process: a resumed run would differ.
    """

    def __init__(self, tokenizer: SubwordTokenizer, rate: float) -> None:
        """Read the merges of a tokenizer that was learned as BPE; `rate` lies in [0, 1)."""
        self._processor = processor = tokenizer.processor
        special = processor.is_control, processor.is_unknown, processor.is_byte
        numbers = [n for n in range(len(processor)) if not any(kind(n) for kind in special)]
        self._ids = {processor.id_to_piece(number): number for number in numbers}
        # Of two merges the one that was learned first is applied first.
        self._ranks = {piece: -processor.get_score(number) for piece, number in self._ids.items()}
        self._rate = rate
        self._next = functools.lru_cache(CACHED)(self._merge_once)
        self._plain = functools.lru_cache(CACHED)(lambda word: self._merge(word, [0] * len(word)))

    def __call__(self, text: str, random: np.random.Generator) -> list[int]:
        """Return the ids of a text, without begin and end."""
        text = self._processor.normalize(escape(text))
        # Merges left out before each applied merge; a word has fewer merges than letters.
        left_out = (random.geometric(1 - self._rate, len(text)) - 1).tolist()
        ids, start = [], 0
        for word in WORD.findall(text):
            word_ids, merges = self._plain(word)
            if any(left_out[start : start + merges]):
                word_ids, _ = self._merge(word, left_out[start : start + len(word)])
            ids += word_ids
            start += len(word)
        return ids

    def _merge(self, word: str, left_out: Sequence[int]) -> tuple[list[int], int]:
        """Return the ids of a word, bytes for a letter without a piece, and the merges."""
        pieces = (*word,)
        for number in left_out:
            if (merged := self._next(pieces, number)) is None:
                break
            pieces = merged
        ids = []
        for piece in pieces:
            if piece in self._ids:
                ids.append(self._ids[piece])
            else:
                ids += [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in piece.encode()]
        return ids, len(word) - len(pieces)

    def _merge_once(self, pieces: tuple[str, ...], left_out: int) -> tuple[str, ...] | None:
        """Apply the best merge after the first `left_out`; None if there are no more."""
        ranked = sorted(
            (self._ranks[joined], index)
            for index in range(len(pieces) - 1)
            if (joined := pieces[index] + pieces[index + 1]) in self._ranks
        )
        if left_out >= len(ranked):
            return None
        _, index = ranked[left_out]
        return (*pieces[:index], pieces[index] + pieces[index + 1], *pieces[index + 2 :])


class PairDropout:
    """New segmentations of both sides of pairs."""

    def __init__(self, tokenizers: Tokenizers, rate: float, most: tuple[int, int]) -> None:
        """Take tokenizers and a rate as `SubwordDropout`, and most positions of each side."""
        self._segment = [SubwordDropout(tokenizer, rate) for tokenizer in tokenizers]
        self._most = most

    def __call__(
        self,
        pairs: Sequence[SentencePair],
        plain: Sequence[EncodedPair],
        random: np.random.Generator,
    ) -> EncodedExamples[EncodedPair]:
        """Return new segmentations, drawn by `random`; `plain` ones of pairs that get too long."""
        encoded = EncodedExamples[EncodedPair]()
        for pair, whole in zip(pairs, plain, strict=True):
            sides = zip(self._segment, pair, strict=False)
            new = EncodedPair(*(segment(text, random) for segment, text in sides))
            has_room = all(len(ids) < most for ids, most in zip(new, self._most, strict=True))
            encoded.append(new if has_room else whole)
        return encoded
