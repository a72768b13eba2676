"""BPE dropout: merges are left out at random, so that a word has many segmentations.

Provilkov et al. 2020, section 3: at each step every possible merge is left out with probability
`rate`, and the best of the others is applied; if there is none, the word is complete. Sampling by
sentencepiece cannot be repeated, not even with a seed, because its generator starts with another
state in each process: a resumed run would differ.
"""

import functools
import re
from collections.abc import Sequence

import numpy as np
import sentencepiece

from experiments.data.pairs import SentencePair
from experiments.data.rows import Encoded, EncodedPair
from experiments.data.subwords import BLANK, SubwordTokenizer, without_blank_signs
from experiments.data.tokenizers import Tokenizers

WORD = re.compile(f"{BLANK}?[^{BLANK}]+|{BLANK}")  # each begins with a blank
REMEMBERED = 2**18  # segmentations of words: some hundred megabytes at most

Pieces = tuple[str, ...]


class SubwordDropout:
    """Segmentations of a text by the merges of a BPE vocabulary."""

    def __init__(self, tokenizer: SubwordTokenizer, rate: float) -> None:
        """Read the merges.

        Args:
            tokenizer: learned as BPE.
            rate: of the merges that are left out, in [0, 1).
        """
        processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
        special = processor.is_control, processor.is_unknown, processor.is_byte
        numbers = [n for n in range(len(processor)) if not any(kind(n) for kind in special)]
        self._processor = processor
        self._ids = {processor.id_to_piece(number): number for number in numbers}
        # Of two merges the one that was learned first is applied first.
        self._ranks = {piece: -processor.get_score(number) for piece, number in self._ids.items()}
        self._rate = rate
        self._next = functools.lru_cache(REMEMBERED)(self._merge_best)
        self._plain = functools.lru_cache(REMEMBERED)(self._merge_all)

    def __call__(self, text: str, random: np.random.Generator) -> list[int]:
        """Return the ids of a text, without begin and end."""
        text = self._processor.normalize(without_blank_signs(text))
        # Merges left out before each applied merge; a word has fewer merges than letters.
        left_out = (random.geometric(1 - self._rate, len(text)) - 1).tolist()
        ids, start = [], 0
        for word in WORD.findall(text):
            plain, merges = self._plain(word)
            if any(left_out[start : start + merges]):
                ids += self._spell(self._merge(tuple(word), left_out[start : start + len(word)]))
            else:  # the usual case: most words are short
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
        """Return the ids of a word without dropout, and its number of merges."""
        pieces = self._merge(tuple(word), [0] * len(word))
        return self._spell(pieces), len(word) - len(pieces)

    def _merge_best(self, pieces: Pieces, left_out: int) -> Pieces | None:
        """Apply the best merge after the first `left_out`; None if there are no more."""
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
        """Return ids; a letter without a piece has one for each of its bytes."""
        ids = []
        for piece in pieces:
            if piece in self._ids:
                ids.append(self._ids[piece])
            else:
                ids += [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in piece.encode()]
        return ids


class PairDropout:
    """New segmentations of both sides of pairs."""

    def __init__(self, tokenizers: Tokenizers, rate: float, most: tuple[int, int]) -> None:
        """Read the merges of both languages.

        Args:
            tokenizers: learned as BPE.
            rate: of the merges that are left out, in [0, 1).
            most: positions of each side of a pair, its end included.
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
        """Return new segmentations.

        Args:
            pairs: the sentences.
            plain: their segmentations with all merges, used for pairs that would be too long.
            random: generator, on which the segmentations depend.
        """
        encoded = Encoded[EncodedPair]()
        for pair, whole in zip(pairs, plain, strict=True):
            new = EncodedPair(self._source(pair.source, random), self._target(pair.target, random))
            has_room = all(len(ids) < most for ids, most in zip(new, self._most, strict=True))
            encoded.append(new if has_room else whole)
        return encoded
