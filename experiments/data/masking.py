"""Batches of sentences with gaps, for a masked language model (Devlin et al. 2019, section 3.1)."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from experiments.data.packing import Batch
from experiments.data.pipeline import (
    Batches,
    Buckets,
    Epoch,
    Examples,
    FiniteBatches,
    Rows,
    ShuffledBatches,
    SortedBatches,
)
from experiments.data.tokenizers import SPECIALS

CHOSEN, TO_MASK, TO_RANDOM = 0.15, 0.8, 0.1  # shares


class MaskedBatch(NamedTuple):
    """Padded sentences with gaps.

    Attributes:
        inputs: `[B, S]` ids that the model reads.
        lengths: `[B]`, number of valid ids.
        labels: `[B, S]` ids before the gaps were made.
        counted: `[B, S]` bool, the positions that are predicted.
    """

    inputs: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray
    counted: np.ndarray


@dataclass(frozen=True)
class Masking:
    """Makes gaps in sentences, others in each batch.

    Of 15 % of the words, which are predicted, 80 % are replaced by the mask token, 10 % by a random
    word, which may be the same, and 10 % are not changed. Each word is chosen independently, so a
    short sentence may have no gap. Special tokens are never chosen.

    Attributes:
        vocab_size: number of tokens, which is the id of a gap.
        seed: of the training.
    """

    vocab_size: int
    seed: int

    def __call__(
        self, tokens: np.ndarray, index: int, part: tuple[int, slice] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return ids with gaps, and whether each is predicted (bool), both like `tokens`.

        Args:
            tokens: `[...]` ids.
            index: of the batch: equal (seed, index) make equal gaps in equal tokens.
            part: B of the whole batch and the rows of it that `tokens` are, which have the same
                gaps as in the whole batch; None for all rows.
        """
        random = np.random.default_rng((self.seed, index))
        num_rows, rows = part or (len(tokens), slice(None))
        shape = num_rows, *tokens.shape[1:]
        is_word = (len(SPECIALS) <= tokens) & (tokens < self.vocab_size)
        chosen = is_word & (random.random(shape)[rows] < CHOSEN)
        fate = random.random(shape)[rows]
        others = random.integers(len(SPECIALS), self.vocab_size, shape, dtype=tokens.dtype)[rows]
        replaced = np.where(fate < TO_MASK, tokens.dtype.type(self.vocab_size), others)
        return np.where(chosen & (fate < TO_MASK + TO_RANDOM), replaced, tokens), chosen


class MaskedBatches(Batches[MaskedBatch]):
    """The batch of each training step, with new gaps in each epoch."""

    def __init__(
        self, sentences: Examples, layout: Buckets[Batch], masking: Masking, *, seed: int
    ) -> None:
        """Arrange encoded sentences."""
        self._batches = ShuffledBatches(sentences, layout, seed=seed)
        self._masking = masking
        self.padding, self.members = self._batches.padding, self._batches.members
        words = int(np.sum(sentences.lengths[:, 0] - 1))
        self.epoch: Epoch = self._batches.epoch._replace(tokens=round(CHOSEN * words))

    def rows(self, step: int) -> Rows[MaskedBatch]:
        """The rows of the batch of one training step."""
        number, read = self._batches.rows(step)

        def masked(part: slice) -> MaskedBatch:
            batch = read(part)
            inputs, chosen = self._masking(batch.source, step, (number, part))
            return MaskedBatch(inputs, batch.source_lengths, batch.source, chosen)

        return Rows(number, masked)


class FixedMasks(FiniteBatches[MaskedBatch]):
    """Every sentence once, with gaps that depend on its number and not on its batch."""

    def __init__(self, sentences: Examples, layout: Buckets[Batch], masking: Masking) -> None:
        """Arrange encoded sentences."""
        self._batches = SortedBatches(sentences, layout)
        self._masking = masking

    def __len__(self) -> int:
        return len(self._batches)

    def rows(self, number: int) -> Rows[MaskedBatch]:
        """The rows of a batch."""
        rows, members = self._batches.rows(number), self._batches.members(number)

        def masked(part: slice) -> MaskedBatch:
            batch = rows.read(part)
            inputs, chosen = batch.source.copy(), np.zeros_like(batch.source, bool)
            sentences = zip(members[part].tolist(), batch.source_lengths, strict=False)
            for row, (member, length) in enumerate(sentences):
                gaps = self._masking(batch.source[row, :length], member)
                inputs[row, :length], chosen[row, :length] = gaps
            return MaskedBatch(inputs, batch.source_lengths, batch.source, chosen)

        return Rows(rows.number, masked)
