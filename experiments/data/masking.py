"""Batches of sentences with gaps, for a masked language model (Devlin et al. 2019, section 3.1)."""

from typing import NamedTuple

import numpy as np

from experiments.data.batches import Batches, FiniteBatches, Rows
from experiments.data.epoch import Epoch
from experiments.data.rows import Batch
from experiments.data.vocabulary import SPECIALS
from experiments.data.windows import Buckets, Examples, Once, Windows

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


class Masked(NamedTuple):
    """A text with gaps.

    Attributes:
        inputs: `[...]` ids that the model reads.
        chosen: `[...]` bool, the positions that are predicted.
    """

    inputs: np.ndarray
    chosen: np.ndarray


def mask_tokens(
    tokens: np.ndarray,
    *,
    words: range,
    mask_token: int,
    seed: int,
    index: int,
    part: tuple[int, slice] | None = None,
) -> Masked:
    """Choose 15 % of the words to be predicted.

    Of these, 80 % are replaced by the mask token, 10 % by a random word, which may be the same, and
    10 % are not changed. Each word is chosen independently, so a short sentence may have no gap.

    Args:
        tokens: `[...]` ids.
        words: ids that may be chosen; padding and other special tokens are not.
        mask_token: id of a gap.
        seed: of the training.
        index: of the batch: equal (seed, index) make equal gaps in equal tokens.
        part: B of the whole batch and the rows of it that `tokens` are, which have the same gaps
            as in the whole batch, since its random numbers are drawn; None for all rows.

    Raises:
        ValueError: a mask token that is a word.
    """
    if mask_token in words:
        raise ValueError(
            f"mask_token={mask_token} is one of the words {words.start} to {words.stop - 1}"
        )
    random = np.random.default_rng((seed, index))
    num_rows, rows = part or (len(tokens), slice(None))
    shape = num_rows, *tokens.shape[1:]
    is_word = (words.start <= tokens) & (tokens < words.stop)
    chosen = is_word & (random.random(shape)[rows] < CHOSEN)
    fate = random.random(shape)[rows]
    others = random.integers(words.start, words.stop, shape, dtype=tokens.dtype)[rows]
    replaced = np.where(fate < TO_MASK, tokens.dtype.type(mask_token), others)
    changed = chosen & (fate < TO_MASK + TO_RANDOM)
    return Masked(np.where(changed, replaced, tokens), chosen)


class Masking:
    """Makes gaps in sentences, others in each batch."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        """Prepare gaps of a vocabulary; `vocab_size` itself is the id of a gap."""
        self._words = range(len(SPECIALS), vocab_size)
        self._seed = seed

    def __call__(self, batch: Batch, index: int, part: tuple[int, slice]) -> MaskedBatch:
        """Return some rows of batch number `index` with their gaps; `part` as in `mask_tokens`."""
        masked = self.make(batch.source, index, part)
        return MaskedBatch(masked.inputs, batch.source_lengths, batch.source, masked.chosen)

    def make(self, tokens: np.ndarray, index: int, part: tuple[int, slice] | None = None) -> Masked:
        """Make gaps in ids `[...]`, as in `mask_tokens`."""
        return mask_tokens(
            tokens,
            words=self._words,
            mask_token=self._words.stop,
            seed=self._seed,
            index=index,
            part=part,
        )


class MaskedWindows(Batches[MaskedBatch]):
    """The batch of each training step, with new gaps in each epoch."""

    def __init__(
        self, sentences: Examples, layout: Buckets[Batch], masking: Masking, *, seed: int
    ) -> None:
        """Arrange encoded sentences."""
        self._windows = Windows(sentences, layout, seed=seed)
        self._masking = masking
        self.padding = self._windows.padding
        words = int(np.sum(sentences.lengths[:, 0] - 1))
        self.epoch: Epoch = self._windows.epoch._replace(tokens=round(CHOSEN * words))

    def rows(self, step: int) -> Rows[MaskedBatch]:
        """The rows of the batch of one training step."""
        number, read = self._windows.rows(step)
        return Rows(number, lambda part: self._masking(read(part), step, (number, part)))

    def members(self, step: int) -> np.ndarray:
        """Numbers of the training examples in the batch of a step."""
        return self._windows.members(step)


class FixedMasks(FiniteBatches[MaskedBatch]):
    """Every sentence once, with gaps that depend on its number and not on its batch."""

    def __init__(self, sentences: Examples, layout: Buckets[Batch], masking: Masking) -> None:
        """Arrange encoded sentences."""
        self._batches = Once(sentences, layout)
        self._masking = masking

    def __len__(self) -> int:
        """Number of batches."""
        return len(self._batches)

    def rows(self, number: int) -> Rows[MaskedBatch]:
        """The rows of a batch."""
        rows, members = self._batches.rows(number), self._batches.members(number)
        return Rows(rows.number, lambda part: self._masked(rows.read(part), members[part]))

    def _masked(self, batch: Batch, members: np.ndarray) -> MaskedBatch:
        inputs, chosen = batch.source.copy(), np.zeros_like(batch.source, bool)
        for row, (number, length) in enumerate(zip(members, batch.source_lengths, strict=False)):
            masked = self._masking.make(batch.source[row, :length], int(number))
            inputs[row, :length], chosen[row, :length] = masked.inputs, masked.chosen
        return MaskedBatch(inputs, batch.source_lengths, batch.source, chosen)
