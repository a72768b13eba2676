"""Batches of sentences with gaps, for a masked language model (Devlin et al. 2019, section 3.1)."""

from typing import NamedTuple

import numpy as np

from experiments.data.packing import Batch
from experiments.data.pipeline import Batches, Rows, ShuffledBatches, SortedBatches
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


def make_gaps(
    tokens: np.ndarray,
    vocab_size: int,
    seed: tuple[int, int],
    num_rows: int,
    part: slice = slice(None),
) -> tuple[np.ndarray, np.ndarray]:
    """Return ids with gaps, and whether each is predicted (bool), both like `tokens`.

    Of 15 % of the words, which are predicted, 80 % are replaced by the mask token, 10 % by a random
    word, which may be the same, and 10 % are not changed. Each word is chosen independently, so a
    short sentence may have no gap. Special tokens are never chosen.

    Args:
        tokens: `[B, ...]` ids.
        vocab_size: number of tokens, which is the id of a gap.
        seed: equal seeds make equal gaps in equal tokens.
        num_rows: of the whole batch, whose gaps a part of it has.
        part: the rows of the batch that `tokens` are.
    """
    random, shape = np.random.default_rng(seed), (num_rows, *tokens.shape[1:])
    is_word = (len(SPECIALS) <= tokens) & (tokens < vocab_size)
    chosen = is_word & (random.random(shape)[part] < CHOSEN)
    fate = random.random(shape)[part]
    others = random.integers(len(SPECIALS), vocab_size, shape, dtype=tokens.dtype)[part]
    replaced = np.where(fate < TO_MASK, tokens.dtype.type(vocab_size), others)
    return np.where(chosen & (fate < TO_MASK + TO_RANDOM), replaced, tokens), chosen


class MaskedBatches(Batches[MaskedBatch]):
    """Batches with gaps: new ones in each step of training, always the same for evaluation."""

    def __init__(
        self, batches: ShuffledBatches[Batch] | SortedBatches[Batch], vocab_size: int, seed: int = 0
    ) -> None:
        """Take batches without gaps, the number of tokens, and the seed of the gaps."""
        self._batches, self._vocab_size, self._seed = batches, vocab_size, seed
        if isinstance(batches, ShuffledBatches):
            self.padding, epoch = batches.padding, batches.epoch
            words = epoch.tokens - epoch.examples  # without the ends
            self.epoch = epoch._replace(tokens=round(CHOSEN * words))

    def __len__(self) -> int:
        return len(self._batches)

    def rows(self, number: int) -> Rows[MaskedBatch]:
        """The rows of a batch; in evaluation the gaps depend on the sentence alone."""
        num_rows, read = self._batches.rows(number)

        def masked(part: slice) -> MaskedBatch:
            batch = read(part)
            if isinstance(self._batches, ShuffledBatches):
                seed = self._seed, number
                gaps = make_gaps(batch.source, self._vocab_size, seed, num_rows, part)
            else:
                gaps = self._fixed_gaps(batch, self._batches.members(number)[part])
            inputs, chosen = gaps
            return MaskedBatch(inputs, batch.source_lengths, batch.source, chosen)

        return Rows(num_rows, masked)

    def _fixed_gaps(self, batch: Batch, members: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        inputs, chosen = batch.source.copy(), np.zeros_like(batch.source, bool)
        rows = zip(members.tolist(), batch.source_lengths, strict=False)
        for row, (member, length) in enumerate(rows):
            words, seed = batch.source[row, :length], (self._seed, member)
            gaps = make_gaps(words, self._vocab_size, seed, length)
            inputs[row, :length], chosen[row, :length] = gaps
        return inputs, chosen
