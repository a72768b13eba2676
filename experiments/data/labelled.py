"""Things to classify, by name: sentences with a verdict, images of digits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from attention.primitives.choice import one_of
from experiments.data import digits, sentiment
from experiments.data.vocabulary import PAD, Vocabulary
from experiments.data.windows import Buckets, Windows
from experiments.errors import check_at_least


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
    """All inputs and classes of a split, as `Windows` batches them.

    Attributes:
        inputs: as in `LabelledBatch`.
        num_tokens: `[B]`, how many ids are not padding; None for images.
        labels: as there.
        size: examples of a batch.
    """

    inputs: np.ndarray
    num_tokens: np.ndarray | None
    labels: np.ndarray
    size: int

    @property
    def lengths(self) -> np.ndarray:
        """One position for each example, as a batch is counted in examples."""
        return np.ones((len(self.labels), 1), int)

    def __getitem__(self, number: int) -> int:
        """The number itself, of which `batch` makes arrays."""
        return number

    @property
    def layout(self) -> Buckets[LabelledBatch]:
        """Batches of `size` examples."""
        return Buckets([1], self.size, self._batch)

    def windows(self, seed: int) -> Windows[LabelledBatch]:
        """Shuffled batches."""
        return Windows(self, self.layout, seed=seed)

    def _batch(self, members: Sequence[int], size: int, length: int) -> LabelledBatch:
        del length  # every input has the same
        places = np.array([*members, *[0] * (size - len(members))])
        lengths = None if self.num_tokens is None else self.num_tokens[places]
        counted = np.arange(size) < len(members)
        return LabelledBatch(self.inputs[places], lengths, self.labels[places], counted)


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


def check_labelled(config: ConfigDict) -> None:
    """Checks that `config.data` asks for data that exists.

    Raises:
        ValueError: in one sentence.
    """
    one_of("data.name", config.name, tuple(LABELLED))
    check_at_least("data.seed", config.seed, 0)
    if config.name == "sentiment":
        sentiment.Sizes(**config.sizes)


def load_labelled(config: ConfigDict, batch_size: int) -> Labelled:
    """The data that `config.data` names, in batches of so many examples."""
    return LABELLED[config.name](config, batch_size)


def _sentiment(config: ConfigDict, batch_size: int) -> Labelled:
    corpus = sentiment.corpus(config.seed, sentiment.Sizes(**config.sizes))
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


def _digits(config: ConfigDict, batch_size: int) -> Labelled:
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
