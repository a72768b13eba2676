"""Skip-grams, words and their neighbours, from which static word vectors are learned.

They are drawn at random from a memory-mapped text, so no list of them grows with it.
"""

from typing import NamedTuple

import numpy as np

from experiments.data.pipeline import Batches, Epoch, Rows
from experiments.errors import UsageError

POWER = 0.75  # Mikolov et al. 2013, section 2.2
REACH = 4  # windows that are searched for a neighbour among words of which some are left out
CHUNK = 1 << 20  # ids that are counted at once
TRIED = 65_536  # words from which the number of skip-grams is estimated


class SkipGramBatch(NamedTuple):
    """Words, and for each a neighbour and some random words.

    Attributes:
        center: `[B]` ids.
        others: `[B, 1 + negatives]` ids: the neighbour, then the random words.
        counted: `[B]` bool, False for the padding of a part of a batch.
    """

    center: np.ndarray
    others: np.ndarray
    counted: np.ndarray


class SkipGramBatches(Batches[SkipGramBatch]):
    """The batch of each training step, drawn with replacement: a pure function of (seed, step).

    Occurrences of frequent words, which tell little about their neighbours, are left out at random,
    anew for each skip-gram, and distances count the words that are kept. A negative may happen to
    be a neighbour, as in equation 4 of Mikolov et al. 2013. All of a batch are drawn where some of
    its rows are read, since each depends on those that were left out before it.
    """

    padding = 0.0

    def __init__(
        self,
        ids: np.ndarray,
        ends: np.ndarray,
        *,
        vocab_size: int,
        window: int,
        threshold: float,
        size: int,
        negatives: int,
        seed: int,
    ) -> None:
        """Count the words, and estimate the number of skip-grams.

        Args:
            ids: of all sentences, one after the other.
            ends: index where each sentence ends.
            vocab_size: V.
            window: distance of the farthest neighbour.
            threshold: share t of all words up to which a word is always kept; an occurrence of one
                with a share f is kept with probability √(t / f).
            size: B.
            negatives: random words of each skip-gram.
            seed: of the batches.

        Raises:
            UsageError: there are no skip-grams.
        """
        self._ids, self._ends, self._window = ids, ends, window
        self._size, self._negatives, self._seed = size, negatives, seed
        parts = np.array_split(ids, len(ids) // CHUNK + 1)
        counts = sum(np.bincount(part, minlength=vocab_size) for part in parts)
        share = np.maximum(counts / counts.sum(), np.finfo(float).tiny)
        self._keep = np.minimum(1, np.sqrt(threshold / share))  # equation 5 of Mikolov et al. 2013
        weights = counts**POWER
        self._table = np.cumsum(weights / weights.sum())  # of negatives
        self._share = len(self._draw(np.random.default_rng(0), TRIED)) / TRIED
        if not self._share:
            raise UsageError(
                f"batch.threshold={threshold} leaves no two words of a sentence: raise it"
            )
        number = round(2 * window * len(ids) * self._share)
        self.epoch = Epoch(-(-number // size), examples=number, tokens=number)

    def rows(self, step: int) -> Rows[SkipGramBatch]:
        """The rows of the batch of one training step."""
        return Rows(self._size, lambda rows: SkipGramBatch(*(a[rows] for a in self._batch(step))))

    def _batch(self, step: int) -> SkipGramBatch:
        random = np.random.default_rng((self._seed, step))
        pairs = np.zeros((0, 2), np.int32)
        while len(pairs) < self._size:
            missing = self._size - len(pairs)
            drawn = self._draw(random, int(1.2 * missing / self._share) + 1)
            pairs = np.concatenate([pairs, drawn])[: self._size]
        # The last sum may be less than 1 by a rounding error.
        shares = random.random((self._size, self._negatives)) * self._table[-1]
        negatives = np.searchsorted(self._table, shares, side="right").astype(np.int32)
        others = np.concatenate([pairs[:, 1:], negatives], axis=1)
        return SkipGramBatch(pairs[:, 0], others, counted=np.ones(self._size, bool))

    def _draw(self, random: np.random.Generator, tries: int) -> np.ndarray:
        """Draw words, directions and distances; return those that are skip-grams, `[P, 2]`."""
        center = random.integers(len(self._ids), size=tries)
        center = center[random.random(tries) < self._keep[self._ids[center]]]
        distance = random.integers(1, self._window, size=(len(center), 1), endpoint=True)
        direction = random.choice((-1, 1), size=(len(center), 1))
        index = center[:, None] + direction * np.arange(1, REACH * self._window + 1)
        sentence = np.searchsorted(self._ends, center, side="right")
        start = np.where(sentence > 0, self._ends[sentence - 1], 0)
        is_inside = (start[:, None] <= index) & (index < self._ends[sentence, None])
        words = self._ids[np.where(is_inside, index, 0)]
        kept = is_inside & (random.random(words.shape) < self._keep[words])
        is_neighbour = kept & (np.cumsum(kept, axis=1) == distance)
        neighbour = words[np.arange(len(words)), is_neighbour.argmax(axis=1)]
        return np.stack([self._ids[center], neighbour], axis=1)[is_neighbour.any(axis=1)]
