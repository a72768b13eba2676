"""Batches of running text: random windows for training, and every label once for evaluation."""

from typing import NamedTuple

import numpy as np

from experiments.data.pipeline import Batches, Epoch, FiniteBatches, Rows


class TextBatch(NamedTuple):
    """Windows of a text, all `[B, T]`.

    Attributes:
        inputs: ids.
        labels: ids of the next tokens.
        counted: bool, the labels that a loss counts.
    """

    inputs: np.ndarray
    labels: np.ndarray
    counted: np.ndarray

    @classmethod
    def at(cls, ids: np.ndarray, begins: np.ndarray, context: int) -> "TextBatch":
        """Return windows of `context` ids that begin at `[B]` indices, or end with the text.

        Labels before `begins` are not counted.
        """
        starts = np.minimum(begins, len(ids) - 1 - context)
        index = starts[:, None] + np.arange(context)
        return cls(ids[index], ids[index + 1], index >= begins[:, None])


class RandomWindows(Batches[TextBatch]):
    """The batch of each training step, random windows: a pure function of (seed, step)."""

    padding = 0.0

    def __init__(self, ids: np.ndarray, *, context: int, size: int, seed: int) -> None:
        """Take more than T ids of a text, `context` T, and `size` B."""
        self._ids, self._context, self._size, self._seed = ids, context, size, seed
        windows = -(-(len(ids) - 1) // context)
        self.epoch = Epoch(-(-windows // size), examples=windows, tokens=len(ids) - 1)

    def rows(self, step: int) -> Rows[TextBatch]:
        """The rows of the batch of one training step."""
        random = np.random.default_rng((self._seed, step))
        starts = random.integers(len(self._ids) - self._context, size=self._size)
        return Rows(self._size, lambda part: TextBatch.at(self._ids, starts[part], self._context))


class FixedWindows(FiniteBatches[TextBatch]):
    """Batches of one shape that count every label of a text once: all ids but the first.

    Windows follow one another. The last one ends with the text and counts only labels that are not
    in the window before; it is repeated to fill the last batch, and counts nothing there.
    """

    def __init__(self, ids: np.ndarray, *, context: int, size: int) -> None:
        """Choose the windows; arguments as of `RandomWindows`."""
        self._ids, self._context = ids, context
        begins = np.arange(0, len(ids) - 1, context)
        begins = np.append(begins, np.full(-len(begins) % size, len(ids)))
        self._begins = begins.reshape(-1, size)

    def __len__(self) -> int:
        return len(self._begins)

    def rows(self, number: int) -> Rows[TextBatch]:
        """The rows of a batch."""
        begins = self._begins[number]
        return Rows(len(begins), lambda part: TextBatch.at(self._ids, begins[part], self._context))
