"""Things to classify, by name: sentences with a verdict, images of digits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from experiments.config.data import DigitsData, SentimentData
from experiments.data import digits, sentiment
from experiments.data.batching import Epochs
from experiments.data.epoch import Epoch
from experiments.data.vocabulary import PAD, Vocabulary


class LabelledBatch(NamedTuple):
    """Inputs and their classes; a batch with too few is filled up with what does not count.

    Attributes:
        inputs: ids `[B, S]`, padded; or images `[B, height, width, channels]`.
        lengths: `[B]`, how many ids are not padding; None for images.
        labels: `[B]`, the classes.
        counted: `[B]` bool.
    """

    inputs: np.ndarray
    lengths: np.ndarray | None
    labels: np.ndarray
    counted: np.ndarray


@dataclass(frozen=True)
class Examples:
    """All inputs and classes of a split, whose batches are shuffled: `Batches` for `Epochs`.

    Attributes:
        inputs: as in `LabelledBatch`.
        lengths: as there.
        labels: as there.
        size: examples of a batch.
    """

    inputs: np.ndarray
    lengths: np.ndarray | None
    labels: np.ndarray
    size: int

    @property
    def epoch(self) -> Epoch:
        """How much it is; each example has one label."""
        number = len(self.labels)
        return Epoch(len(self.plan()), examples=number, tokens=number)

    def plan(self, random: np.random.Generator | None = None) -> list[tuple[int, np.ndarray]]:
        """Every example once, as batches of (size, places); shuffled if `random`."""
        number = len(self.labels)
        order = np.arange(number) if random is None else random.permutation(number)
        return [(self.size, order[i : i + self.size]) for i in range(0, number, self.size)]

    def batch(self, size: int, members: np.ndarray) -> LabelledBatch:
        """The batch of an entry of the plan."""
        places = np.concatenate([members, np.zeros(size - len(members), members.dtype)])
        lengths = None if self.lengths is None else self.lengths[places]
        counted = np.arange(size) < len(members)
        return LabelledBatch(self.inputs[places], lengths, self.labels[places], counted)

    def epochs(self, *, num_batches: int, seed: int) -> Epochs[LabelledBatch]:
        """Shuffled batches, one epoch after the other."""
        return Epochs(self, num_batches=num_batches, seed=seed)


class Labelled(NamedTuple):
    """A task of classification.

    Attributes:
        splits: examples by the name of their split, in batches.
        classes: their names.
        vocabulary: the words of the inputs; None for images.
        show: an input, as a line that a person can read.
    """

    splits: dict[str, Examples]
    classes: Sequence[str]
    vocabulary: Vocabulary | None
    show: Callable[[np.ndarray], str]


def load_labelled(config: SentimentData | DigitsData, batch_size: int) -> Labelled:
    """The data that `config.data` names, in batches of so many examples."""
    return LABELLED[config.name](config, batch_size)


def _sentiment(config: SentimentData, batch_size: int) -> Labelled:
    corpus = sentiment.corpus(config.seed, config.sizes)
    words = Vocabulary.of(judgement.text.split() for judgement in corpus["train"])
    splits = {}
    for split, judgements in corpus.items():
        inputs = np.full((len(judgements), sentiment.LONGEST), PAD, np.int32)
        lengths = np.array([len(judgement.text.split()) for judgement in judgements], np.int32)
        for row, length, judgement in zip(inputs, lengths, judgements, strict=True):
            row[:length] = words.encode(judgement.text.split())
        labels = np.array([judgement.positive for judgement in judgements], np.int32)
        splits[split] = Examples(inputs, lengths, labels, batch_size)

    def show(ids: np.ndarray) -> str:
        return " ".join(words.decode(ids.tolist()))

    return Labelled(splits, ("blame", "praise"), words, show)


def _digits(config: DigitsData, batch_size: int) -> Labelled:
    splits = {
        split: Examples(part.images, None, part.labels, batch_size)
        for split, part in digits.digits(config.seed).items()
    }

    def show(image: np.ndarray) -> str:
        shades = " .:-=+*#%@"
        lines = (image[..., 0] * (len(shades) - 1)).round().astype(int)
        return "\n  ".join("".join(shades[shade] for shade in line) for line in lines)

    return Labelled(splits, tuple(map(str, range(digits.NUM_CLASSES))), None, show)


LABELLED = {"sentiment": _sentiment, "digits": _digits}
