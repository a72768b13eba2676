"""BPE dropout: merges are left out at random, so that a word is seen in many segmentations.

Provilkov et al. 2020, section 3: at each step every merge that could be next is left out with
probability `rate`, and the best of those that stay is done; where none stays, the word is as it is.
What sentencepiece samples itself cannot be had again, not even with a seed: its generator starts
elsewhere in each process, and a run could not go on exactly where it stopped.
"""

import functools
import re
from collections.abc import Sequence

import numpy as np
import sentencepiece

from experiments.data.pairs import SentencePair
from experiments.data.rows import Encoded, EncodedPair
from experiments.data.tokenizers import (
    BLANK,
    SubwordTokenizer,
    Tokenizers,
    without_blank_signs,
)

WORD = re.compile(f"{BLANK}?[^{BLANK}]+|{BLANK}")  # each begins with a blank
REMEMBERED = 2**18  # segmentations of words: some hundred megabytes at most

Pieces = tuple[str, ...]


class SubwordDropout:
    """Segmentations of a text by the merges of a BPE vocabulary."""

    def __init__(self, tokenizer: SubwordTokenizer, rate: float) -> None:
        """Reads the merges.

        Args:
            tokenizer: learned as BPE.
            rate: of the merges that are left out, in [0, 1).
        """
        processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
        special = processor.is_control, processor.is_unknown, processor.is_byte
        numbers = [n for n in range(len(processor)) if not any(kind(n) for kind in special)]
        self._processor = processor
        self._ids = {processor.id_to_piece(number): number for number in numbers}
        # Of two merges the one that was learned first is done first.
        self._ranks = {piece: -processor.get_score(number) for piece, number in self._ids.items()}
        self._rate = rate
        self._next = functools.lru_cache(REMEMBERED)(self._merge_best)
        self._plain = functools.lru_cache(REMEMBERED)(self._merge_all)

    def __call__(self, text: str, random: np.random.Generator) -> list[int]:
        """The ids of a text, without begin and end."""
        text = self._processor.normalize(without_blank_signs(text))
        # So many are left out before each merge that is done. A word has fewer merges than letters.
        left_out = (random.geometric(1 - self._rate, len(text)) - 1).tolist()
        ids, start = [], 0
        for word in WORD.findall(text):
            plain, merges = self._plain(word)
            if any(left_out[start : start + merges]):
                ids += self._spell(self._merge(tuple(word), left_out[start : start + len(word)]))
            else:  # as most short words are, which most words are
                ids += plain
            start += len(word)
        return ids

    def _merge(self, pieces: Pieces, left_out: Sequence[int]) -> Pieces:
        for number in left_out:
            merged = self._next(pieces, number)
            if merged is None:
                break
            pieces = merged
        return pieces

    def _merge_all(self, word: str) -> tuple[list[int], int]:
        """The ids of a word of which no merge is left out, and how many merges it has."""
        pieces = self._merge(tuple(word), [0] * len(word))
        return self._spell(pieces), len(word) - len(pieces)

    def _merge_best(self, pieces: Pieces, left_out: int) -> Pieces | None:
        """What becomes of a word by its best merge but so many; none if it has no more."""
        ranked = sorted(
            (self._ranks[joined], place)
            for place in range(len(pieces) - 1)
            if (joined := pieces[place] + pieces[place + 1]) in self._ranks
        )
        if left_out >= len(ranked):
            return None
        _, place = ranked[left_out]
        return (*pieces[:place], pieces[place] + pieces[place + 1], *pieces[place + 2 :])

    def _spell(self, pieces: Pieces) -> list[int]:
        """Ids; a letter that is no piece is one for each of its bytes."""
        ids = []
        for piece in pieces:
            if piece in self._ids:
                ids.append(self._ids[piece])
            else:
                ids += [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in piece.encode()]
        return ids


class PairDropout:
    """Pairs whose sides are segmented anew as often as somebody asks."""

    def __init__(self, tokenizers: Tokenizers, rate: float, most: tuple[int, int]) -> None:
        """Reads the merges of both languages.

        Args:
            tokenizers: learned as BPE.
            rate: of the merges that are left out, in [0, 1).
            most: positions that each side of a pair may take, its end included.
        """
        self._source = self._target = SubwordDropout(tokenizers.source, rate)
        if tokenizers.target != tokenizers.source:
            self._target = SubwordDropout(tokenizers.target, rate)
        self._most = most

    def __call__(
        self,
        pairs: Sequence[SentencePair],
        plain: Sequence[EncodedPair],
        random: np.random.Generator,
    ) -> Encoded[EncodedPair]:
        """New segmentations, which follow from `random`.

        Args:
            pairs: the sentences.
            plain: their segmentations with all merges. A pair whose new one is too long has this.
            random: what is drawn from.
        """
        encoded = Encoded[EncodedPair]()
        for pair, whole in zip(pairs, plain, strict=True):
            new = EncodedPair(self._source(pair.source, random), self._target(pair.target, random))
            has_room = all(len(ids) < most for ids, most in zip(new, self._most, strict=True))
            encoded.append(new if has_room else whole)
        return encoded
