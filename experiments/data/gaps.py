"""Sentences with gaps in them, in batches: what a masked language model learns from."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from experiments.data.epoch import Epoch
from experiments.data.masking import CHOSEN, Masked, mask_tokens
from experiments.data.rows import Batch
from experiments.data.vocabulary import SPECIALS
from experiments.data.windows import Buckets, Examples, Windows, once


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


class Gaps:
    """Makes gaps in sentences; in each batch others."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        """Gaps in sentences of so many tokens; `vocab_size` itself is the id of a gap."""
        self._words = range(len(SPECIALS), vocab_size)
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


class GapWindows:
    """Training batches, one epoch after the other, with new gaps in each."""

    def __init__(
        self, sentences: Examples, layout: Buckets[Batch], gaps: Gaps, *, seed: int
    ) -> None:
        """Batches of encoded sentences."""
        self._windows = Windows(sentences, layout, seed=seed)
        self._gaps = gaps
        self.padding = self._windows.padding
        words = int(np.sum(sentences.lengths[:, 0] - 1))
        self.epoch: Epoch = self._windows.epoch._replace(tokens=round(CHOSEN * words))

    def __getitem__(self, step: int) -> GapBatch:
        """The batch of one training step."""
        return self._gaps(self._windows[step], step)


def fixed_gaps(sentences: Examples, layout: Buckets[Batch], gaps: Gaps) -> Iterator[GapBatch]:
    """Every sentence once, with gaps that follow from its number, however it is batched."""
    for members, batch in once(sentences, layout):
        inputs, chosen = batch.source.copy(), np.zeros_like(batch.source, bool)
        for row, (number, length) in enumerate(zip(members, batch.source_lengths, strict=False)):
            masked = gaps.make(batch.source[row, :length], int(number))
            inputs[row, :length], chosen[row, :length] = masked.inputs, masked.chosen
        yield GapBatch(inputs, batch.source_lengths, batch.source, chosen)
