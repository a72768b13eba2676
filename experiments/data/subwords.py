"""Subwords that sentencepiece has learned, in which every text can be spelled, and BPE dropout."""

import functools
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
import sentencepiece

from experiments.config.parts import SMALLEST_SUBWORDS, TextPart
from experiments.data.tokenizers import BOS, EOS, PAD, SPECIALS, Text, Tokenizer, without_specials

BLANK = "▁"  # of sentencepiece, for a blank
LARGEST = 8_000  # subwords, of a size that the text decides
UNKNOWN = "▅"  # of sentencepiece: it ignores lines that contain it
# In texts, code points that Unicode reserves stand for `BLANK`, and each of those for itself.
STAND_IN = "\ufdd0"
ESCAPES = {BLANK: STAND_IN, STAND_IN: "\ufdd10", "\ufdd1": "\ufdd11"}
WORD = re.compile(f"{BLANK}?[^{BLANK}]+|{BLANK}")  # each begins with a blank
CACHED = 2**18  # segmentations of words: some hundred megabytes at most


def escape(text: str) -> str:
    """Return a text without the character that means a blank for sentencepiece."""
    return text.translate(str.maketrans(ESCAPES))


def unescape(text: str) -> str:
    """Invert `escape`."""
    for original, escaped in ESCAPES.items():
        text = text.replace(escaped, original)
    return text


@dataclass(frozen=True)
class SubwordTokenizer(Tokenizer):
    """Subwords (Kudo and Richardson 2018); decoding restores a text exactly."""

    FILE = "subwords.{side}.model"

    model: bytes

    @cached_property
    def processor(self) -> sentencepiece.SentencePieceProcessor:
        """The model of sentencepiece."""
        return sentencepiece.SentencePieceProcessor(model_proto=self.model)

    def pieces(self) -> list[str]:
        """Return all subwords in the spelling of sentencepiece."""
        return self.processor.id_to_piece([*range(len(self.processor))])

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """The subwords; a blank before one is an underscore."""
        spelled = (piece.replace(BLANK, "_") for piece in self.pieces()[len(SPECIALS) :])
        return (*SPECIALS, *map(unescape, spelled))

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

    def words(self, text: str) -> list[str]:
        return text.split()

    def word_numbers(self, ids: Sequence[int]) -> list[int]:
        """Return the number of the word of each subword; a blank belongs to the word after it."""
        texts = (self.decode(ids[: end + 1]) for end in range(len(ids)))
        return [len(f"{text}x".split()) - 1 for text in texts]

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
        _ = tokenizer.processor  # which raises a RuntimeError
        return tokenizer


def subword_dropout(
    tokenizer: SubwordTokenizer, rate: float
) -> Callable[[str, np.random.Generator], list[int]]:
    """Return a function from a text to ids, in which merges of BPE are left out at random.

    Provilkov et al. 2020, section 3: at each step every possible merge is left out with probability
    `rate`, and the best of the others is applied; if there is none, the word is complete. Sampling
    by sentencepiece cannot be repeated, not even with a seed, because its generator starts with
    another state in each process: a resumed run would differ.

    The tokenizer was learned as BPE, and `rate` lies in [0, 1).
    """
    processor = tokenizer.processor
    numbers = {processor.id_to_piece(n): n for n in range(SMALLEST_SUBWORDS, len(processor))}
    # Of two merges the one that was learned first is applied first.
    ranks = {piece: -processor.get_score(number) for piece, number in numbers.items()}

    @functools.lru_cache(CACHED)
    def merge_once(pieces: tuple[str, ...], left_out: int) -> tuple[str, ...]:
        """Apply the best merge after the first `left_out`, if there is one."""
        joined = map("".join, pairwise(pieces))
        ranked = sorted((ranks[each], index) for index, each in enumerate(joined) if each in ranks)
        if left_out >= len(ranked):
            return pieces
        _, index = ranked[left_out]
        return (*pieces[:index], pieces[index] + pieces[index + 1], *pieces[index + 2 :])

    @functools.lru_cache(CACHED)
    def merge(word: str, left_out: tuple[int, ...]) -> list[int]:
        """Return the ids of a word, bytes for a letter without a piece."""
        pieces = (*word,)
        for number in left_out:
            if (merged := merge_once(pieces, number)) == pieces:
                break
            pieces = merged
        ids = []
        for piece in pieces:
            spelled = [f"<0x{byte:02X}>" for byte in piece.encode()]
            ids += [numbers[piece]] if piece in numbers else processor.piece_to_id(spelled)
        return ids

    def segment(text: str, random: np.random.Generator) -> list[int]:
        text = processor.normalize(escape(text))
        # Merges left out before each applied merge; a word has fewer merges than letters.
        left_out = (random.geometric(1 - rate, len(text)) - 1).tolist()
        ids, start = [], 0
        for word in WORD.findall(text):
            ids += merge(word, (*left_out[start : start + len(word)],))
            start += len(word)
        return ids

    return segment
