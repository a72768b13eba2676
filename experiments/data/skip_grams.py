"""Words and the words around them, from which static word vectors are learned."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.data.epoch import Epoch

POWER = 0.75  # Mikolov et al. 2013, section 2.2


class SkipGramBatch(NamedTuple):
    """Words, and for each a neighbour and some words drawn at random.

    Attributes:
        center: `[B]` ids.
        others: `[B, 1 + negatives]` ids: the neighbour, then those that are drawn.
        counted: `[B]` bool, False for what fills up a part of a batch.
    """

    center: np.ndarray
    others: np.ndarray
    counted: np.ndarray


def keep_probabilities(counts: np.ndarray, threshold: float) -> np.ndarray:
    """How likely each occurrence of a word stays in the text: √(t / f), at most 1.

    Frequent words say little about their neighbours (Mikolov et al. 2013, equation 5).

    Args:
        counts: `[V]`, how often each word occurs.
        threshold: t, the share of all words up to which a word is always kept.
    """
    share = counts / counts.sum()
    return np.minimum(1, np.sqrt(threshold / np.maximum(share, np.finfo(float).tiny)))


def subsample(
    sentences: Sequence[Sequence[int]], keep: np.ndarray, *, seed: int
) -> list[np.ndarray]:
    """Leaves out occurrences of words at random; what stays moves together.

    Args:
        sentences: ids.
        keep: `[V]`, as `keep_probabilities` returns it.
        seed: same seed, same words.
    """
    random = np.random.default_rng(seed)
    kept = []
    for sentence in map(np.asarray, sentences):
        kept.append(sentence[random.random(len(sentence)) < keep[sentence]])
    return kept


def skip_grams(sentences: Sequence[Sequence[int]], window: int) -> np.ndarray:
    """All pairs of a word and another one of its sentence, at most `window` places away.

    Args:
        sentences: ids.
        window: places on either side.

    Returns:
        `[P, 2]` int32, centre and neighbour.
    """
    words = np.concatenate([np.asarray(sentence, np.int32) for sentence in sentences])
    numbers = np.repeat(np.arange(len(sentences)), [len(sentence) for sentence in sentences])
    pairs = []
    for distance in range(1, window + 1):
        together = numbers[:-distance] == numbers[distance:]
        first, second = words[:-distance][together], words[distance:][together]
        pairs += [np.stack([first, second], axis=1), np.stack([second, first], axis=1)]
    return np.concatenate(pairs)


def noise(counts: np.ndarray) -> np.ndarray:
    """How likely each word `[V]` is drawn as a negative: by its count to the power of 3/4."""
    weights = counts**POWER
    return weights / weights.sum()


class SkipGramBatches:
    """Random access to batches of skip-grams, drawn with replacement.

    Batch i follows from (seed, i) alone, which is what makes a run resume exactly. A negative may
    happen to be a neighbour: at equation 4 nobody looks.
    """

    def __init__(
        self,
        pairs: np.ndarray,
        noise: np.ndarray,
        *,
        size: int,
        negatives: int,
        seed: int,
    ) -> None:
        """Batches without end.

        Args:
            pairs: as `skip_grams` returns them.
            noise: `[V]`, the distribution of negatives.
            size: B.
            negatives: words drawn for each pair.
            seed: same seed, same batches.
        """
        self._pairs = pairs
        self._table = np.cumsum(noise)
        self._size = size
        self._negatives = negatives
        self._seed = seed

    @property
    def epoch(self) -> Epoch:
        """As many skip-grams as there are; which they are is drawn."""
        number = len(self._pairs)
        return Epoch(-(-number // self._size), examples=number, tokens=number)

    def __getitem__(self, index: int) -> SkipGramBatch:
        """The batch of one training step."""
        random = np.random.default_rng((self._seed, index))
        pairs = self._pairs[random.integers(len(self._pairs), size=self._size)]
        # The last sum may fall short of 1 by a rounding error.
        places = random.random((self._size, self._negatives)) * self._table[-1]
        negatives = np.searchsorted(self._table, places, side="right").astype(np.int32)
        others = np.concatenate([pairs[:, 1:], negatives], axis=1)
        return SkipGramBatch(pairs[:, 0], others, counted=np.ones(self._size, bool))
