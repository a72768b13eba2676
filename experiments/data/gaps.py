"""Sentences with gaps in them, in batches: what a masked language model learns from."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from experiments.data.batching import Batch, Buckets, EncodedPair, Epochs, evaluation_batches
from experiments.data.epoch import Epoch
from experiments.data.masking import CHOSEN, Masked, mask_tokens
from experiments.data.pairs import SentencePair
from experiments.data.vocabulary import SPECIALS, Vocabulary
from experiments.data.words import tokenize


class GapBatch(NamedTuple):
    """Padded sentences with gaps.

    Attributes:
        inputs: `[B, S]` ids, as the model reads them.
        lengths: `[B]`, how many are not padding.
        labels: `[B, S]` ids, what stood there.
        counted: `[B, S]` bool, where the model shall say it.
    """

    inputs: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray
    counted: np.ndarray


def buckets(
    words: Vocabulary, pairs: Sequence[SentencePair], lengths: Sequence[int], tokens: int
) -> Buckets:
    """The English sentences of some pairs, ended, in batches of similar length."""
    encoded = [EncodedPair(words.encode(tokenize(pair.source)), ()) for pair in pairs]
    return Buckets(encoded, lengths, tokens)


class Gaps:
    """Makes gaps in sentences; in each batch others."""

    def __init__(self, words: Vocabulary, seed: int) -> None:
        """Gaps in sentences of these words; the id behind the last word stands in a gap."""
        self._words = range(len(SPECIALS), len(words))
        self._seed = seed

    def __call__(self, batch: Batch, index: int) -> GapBatch:
        """Batch number `index`, with its gaps."""
        masked = self.make(batch.source, index)
        return GapBatch(masked.inputs, batch.source_lengths, batch.source, masked.chosen)

    def make(self, tokens: np.ndarray, index: int) -> Masked:
        """Gaps in ids `[...]` that follow from them, the seed and `index`."""
        return mask_tokens(
            tokens, words=self._words, mask_token=self._words.stop, seed=self._seed, index=index
        )


class GapEpochs:
    """Random access to the batches of one epoch after the other, with new gaps in each."""

    def __init__(self, buckets: Buckets, gaps: Gaps, *, num_batches: int, seed: int) -> None:
        """Makes a sequence of `num_batches` batches."""
        self._epochs = Epochs(buckets, num_batches=num_batches, seed=seed)
        self._gaps = gaps
        self._words = sum(len(pair.source) for pair in buckets.pairs)

    @property
    def epoch(self) -> Epoch:
        """How much the sentences are; a share of their words is what the loss counts."""
        return self._epochs.epoch._replace(tokens=round(CHOSEN * self._words))

    def __len__(self) -> int:
        """The number of batches."""
        return len(self._epochs)

    def __getitem__(self, index: int) -> GapBatch:
        """The batch of one training step."""
        return self._gaps(self._epochs[index], index)


def fixed_gaps(buckets: Buckets, gaps: Gaps) -> Iterator[GapBatch]:
    """Every sentence once, with gaps that follow from its number, however it is batched."""
    for members, batch in evaluation_batches(buckets):
        inputs, chosen = batch.source.copy(), np.zeros_like(batch.source, bool)
        for row, (number, length) in enumerate(zip(members, batch.source_lengths, strict=False)):
            masked = gaps.make(batch.source[row, :length], int(number))
            inputs[row, :length], chosen[row, :length] = masked.inputs, masked.chosen
        yield GapBatch(inputs, batch.source_lengths, batch.source, chosen)
