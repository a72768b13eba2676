"""Batches of running text: random windows for training, and every label once for evaluation."""

from typing import NamedTuple

import numpy as np

from experiments.data.batches import Batches, FiniteBatches, Rows
from experiments.data.epoch import Epoch


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


class RandomWindows(Batches[TextBatch]):
    """The batch of each training step, random windows: a pure function of (seed, step)."""

    padding = 0.0

    def __init__(self, ids: np.ndarray, *, context: int, size: int, seed: int) -> None:
        """Draw nothing yet.

        Args:
            ids: of the text, `[characters]`, more than T.
            context: T, the ids of a window.
            size: B, the windows of a batch.
            seed: of the places.
        """
        self._ids = ids
        self._context = context
        self._size = size
        self._seed = seed

    @property
    def epoch(self) -> Epoch:
        """As many windows as the text has room for; they begin at random places."""
        tokens = len(self._ids) - 1
        windows = -(-tokens // self._context)
        return Epoch(-(-windows // self._size), examples=windows, tokens=tokens)

    def rows(self, index: int) -> Rows[TextBatch]:
        """The rows of the batch of one training step."""
        random = np.random.default_rng((self._seed, index))
        starts = random.integers(len(self._ids) - self._context, size=self._size)
        return Rows(self._size, lambda part: _windows(self._ids, starts[part], self._context))


class FixedWindows(FiniteBatches[TextBatch]):
    """Batches of one shape that count every label of a text once: all ids but the first.

    Windows follow one another. The last one ends with the text and counts only labels that are not
    in the window before; it is repeated to fill the last batch, and counts nothing there.
    """

    def __init__(self, ids: np.ndarray, *, context: int, size: int) -> None:
        """Place the windows.

        Args:
            ids: of the text, `[characters]`, more than T.
            context: T, the ids of a window.
            size: B, the windows of a batch.
        """
        self._ids, self._context = ids, context
        begins = np.arange(0, len(ids) - 1, context)
        begins = np.append(begins, np.full(-len(begins) % size, len(ids)))
        self._begins = begins.reshape(-1, size)

    def __len__(self) -> int:
        """Number of batches."""
        return len(self._begins)

    def rows(self, number: int) -> Rows[TextBatch]:
        """The rows of a batch."""
        begins = self._begins[number]
        return Rows(len(begins), lambda part: self._windows(begins[part]))

    def _windows(self, begins: np.ndarray) -> TextBatch:
        """Return windows that count the labels from some places on."""
        starts = np.minimum(begins, len(self._ids) - 1 - self._context)
        places = starts[:, None] + np.arange(self._context)
        windows = _windows(self._ids, starts, self._context)
        return windows._replace(counted=places >= begins[:, None])


def _windows(ids: np.ndarray, starts: np.ndarray, context: int) -> TextBatch:
    places = starts[:, None] + np.arange(context)
    inputs, labels = ids[places], ids[places + 1]
    return TextBatch(inputs, labels, np.ones_like(labels, bool))
