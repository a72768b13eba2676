"""Classification: an encoder predicts the class of a text or an image."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax import nnx
from jax import Array

from attention.modules import Classifier, Embedding, PatchEmbedding
from experiments.analysis.collect import Example
from experiments.config import Config
from experiments.config.parts import ClassifierModel, ExampleBatchPart, LabelTrainPart
from experiments.data.pipeline import Buckets, ShuffledBatches, SortedBatches
from experiments.data.tokenizers import PAD, SPECIALS, WHOLE, EncodedPair, Tokenizers, Words
from experiments.learner import TrainState
from experiments.registry import DATASETS, TaskParts, task
from experiments.tasks.prediction import Prediction, Sentence, read_image
from experiments.tasks.task import Examples, Ids, Losses, Task

CLASSES = Words(WHOLE)  # each target is one class


class LabelledBatch(NamedTuple):
    """Inputs and their classes; missing rows do not count."""

    inputs: np.ndarray  # ids `[B, S]`, padded; or images `[B, height, width, channels]`
    lengths: np.ndarray | None  # `[B]`, number of valid ids; None for images
    labels: np.ndarray  # `[B]`, the classes
    counted: np.ndarray  # `[B]` bool


@task(
    "classification",
    TaskParts(
        ("classes", "images"), {"transformer": ClassifierModel}, ExampleBatchPart, LabelTrainPart
    ),
)
class Classification(Task[LabelledBatch]):
    """An encoder that reads the source of an example and predicts its target, a class."""

    ends = 0
    has_perplexity = False

    @classmethod
    def learn_tokenizers(cls, config: Config, train: Examples, cache: Path) -> Tokenizers:
        """Learn the words of the sources, unless they are images, and the classes."""
        classes = CLASSES.learn(None, train, cache, (1,))
        if DATASETS[config.data.name].source.has_images:
            return classes
        return super().learn_tokenizers(config, train, cache)._replace(target=classes.target)

    @classmethod
    def load_tokenizers(cls, config: Config, folder: Path) -> Tokenizers:
        """As in `Task`."""
        classes = CLASSES.load(folder, (1,))
        if DATASETS[config.data.name].source.has_images:
            return classes
        return super().load_tokenizers(config, folder)._replace(target=classes.target)

    def model(self, rngs: nnx.Rngs) -> Classifier:
        """As in `Task`."""
        config, num_classes = self.config.model, len(self.tokenizers.target) - len(SPECIALS)
        if self.source.has_images:
            embedding = PatchEmbedding.from_config(
                config, image_shape=self._blank.shape, patch_size=config.patch_size, rngs=rngs
            )
        else:
            embedding = Embedding.from_config(len(self.tokenizers.source), config, rngs=rngs)
        return Classifier.from_config(
            config, embedding, num_classes=num_classes, pooling=config.pooling, rngs=rngs
        )

    def training_batches(self) -> ShuffledBatches[LabelledBatch]:
        """Shuffled batches of `batch.size` examples."""
        config, ids = self.config, self.ids("train")
        layout = Buckets([1], config.batch.size, self._batch)
        windows = ShuffledBatches(_Counted(ids), layout, seed=config.seed)
        if not self.source.has_images:  # each row has `max_length` positions
            filled = (ids.lengths[:, 0] - 1).mean() / config.model.max_length
            windows.padding = 1 - (1 - windows.padding) * filled
        return windows

    def batches(self, split: str) -> SortedBatches[LabelledBatch]:
        """As in `Task`."""
        layout = Buckets([1], self.config.batch.size, self._batch)
        return SortedBatches(_Counted(self.ids(split)), layout)

    @cached_property
    def _blank(self) -> np.ndarray:
        """Input of a row of padding: ids `[S]`, or an image `[height, width, channels]`."""
        if self.source.has_images:
            return np.zeros_like(self.splits["train"][0].source)
        return np.full(self.config.model.max_length, PAD, np.int32)

    def _batch(self, members: Sequence[EncodedPair], size: int, length: int) -> LabelledBatch:
        inputs, lengths = np.stack([self._blank] * size), np.ones(size, np.int32)
        labels, counted = np.zeros(size, np.int32), np.arange(size) < len(members)
        for row, (source, target) in enumerate(members):
            inputs[row, : len(source)], lengths[row] = source, len(source)
            labels[row] = target[0] - len(SPECIALS)
        return LabelledBatch(inputs, None if self.source.has_images else lengths, labels, counted)

    def loss(self, model: Classifier, batch: LabelledBatch, rng: Array | None) -> Losses:
        """As in `Task`."""
        output = model(batch.inputs, lengths=batch.lengths, rng=rng, **self.on_mesh)
        objective = self.objective(training=rng is not None)
        return objective(output.logits, batch.labels, batch.counted), output.losses

    @cached_property
    def _probabilities(self) -> Callable[..., Any]:
        return self.learner.apply(
            lambda model, inputs, lengths: nnx.softmax(model(inputs, lengths=lengths).logits)
        )

    def read(self, line: str | np.ndarray) -> Sentence:
        """Read a sentence, an image, or the image in the file that a line names."""
        if not self.source.has_images:
            return super().read(line)
        return Sentence(read_image(line, self._blank.shape) if isinstance(line, str) else line)

    def answers(self, state: TrainState, inputs: Sequence[Sentence]) -> Iterator[Prediction]:
        """Name the class of each input."""
        size, tokenizer = self.config.batch.size, self.tokenizers.target
        place = 0 if self.config.model.pooling == "class_token" else None
        for start in range(0, len(inputs), size):
            part = inputs[start : start + size]
            members = [EncodedPair(read.ids, (len(SPECIALS),)) for read in part]  # of any class
            batch = self._batch(members, size, 1)
            rows = self._probabilities(state.parameters, batch.inputs, batch.lengths)
            for read, probabilities in zip(part, np.asarray(rows), strict=False):
                order = np.argsort(-probabilities)
                names = [tokenizer.token(number + len(SPECIALS)) for number in order]
                ranked = [*zip(names, probabilities[order].tolist(), strict=True)]
                details = {"class": names[0], "probabilities": dict(ranked)}
                note = read.note(self.tokenizers.source)
                choices = [(place, ranked)]
                yield Prediction(names[:1], lambda value=details: value, note, choices=choices)

    def example(
        self, state: TrainState, source: str | np.ndarray, target: str | None = None
    ) -> Example:
        """As in `Task`; a text for a model of images is the name of a file."""
        read = self.read(source)
        if self.source.has_images:
            sides = (side // self.config.model.patch_size for side in read.ids.shape[:2])
            labels = [f"{row + 1},{column + 1}" for row, column in np.ndindex(*sides)]
        else:
            labels = read.tokens(self.tokenizers.source)
        begin = ["<class>"] if self.config.model.pooling == "class_token" else []
        return Example(
            {"encoder": np.array(read.ids)},
            {"encoder": [*begin, *labels]},
            {"encoder": (len(begin), 0)},
            unknown={"encoder": [len(begin) + place for place in read.unknown]},
        )


class _Counted:
    """Examples for batches, each of one position: a batch is counted in examples."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self.lengths = np.ones((len(ids), 1), int)

    def __getitem__(self, number: int) -> EncodedPair:
        return self._ids[number]
