"""Classification: an encoder predicts the class of a text or an image."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax import nnx
from jax import Array

from attention.modules import Classifier, Embedding, Output, PatchEmbedding
from experiments.analysis.collect import Example
from experiments.config import Config
from experiments.config.data import ExampleBatchPart
from experiments.config.model import ClassifierModel
from experiments.config.train import LabelTrainPart
from experiments.data.rows import EncodedPair
from experiments.data.tokenizers import Tokenizers, Words
from experiments.data.vocabulary import PAD, SPECIALS
from experiments.data.windows import Buckets, Once, Windows
from experiments.data.words import WHOLE
from experiments.inference.images import read_image
from experiments.inference.prediction import Choice, Prediction
from experiments.inference.sentence import Sentence, read_sentence
from experiments.losses import TokenLosses
from experiments.registry import DATASETS, TaskParts, task
from experiments.tasks.task import Examples, Ids, Task
from experiments.training.step import TrainState

CLASSES = Words(WHOLE)  # each target is one class
SAMPLED = 3  # examples of a sample
SHADES = " .:-=+*#%@"


class LabelledBatch(NamedTuple):
    """Inputs and their classes; missing rows do not count.

    Attributes:
        inputs: ids `[B, S]`, padded; or images `[B, height, width, channels]`.
        lengths: `[B]`, number of valid ids; None for images.
        labels: `[B]`, the classes.
        counted: `[B]` bool.
    """

    inputs: np.ndarray
    lengths: np.ndarray | None
    labels: np.ndarray
    counted: np.ndarray


@task(
    "classification",
    TaskParts(
        reads=("classes", "images"),
        models={"transformer": ClassifierModel},
        batch=ExampleBatchPart,
        train=LabelTrainPart,
    ),
)
class Classification(Task[LabelledBatch]):
    """An encoder that reads the source of an example and predicts its target, a class."""

    has_end = False
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

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.tokenizers.target) - len(SPECIALS)

    def model(self, rngs: nnx.Rngs) -> Classifier:
        """As in `Task`."""
        config, tokenizer = self.config.model, self.tokenizers.source
        if tokenizer is None:
            shape, patch = self._blank.shape, self.config.model.patch_size
            embedding = PatchEmbedding.from_config(
                config, image_shape=shape, patch_size=patch, rngs=rngs
            )
        else:
            embedding = Embedding.from_config(len(tokenizer), config, rngs=rngs)
        pooling = self.config.model.pooling
        return Classifier.from_config(
            config, embedding, num_classes=self.num_classes, pooling=pooling, rngs=rngs
        )

    def training_batches(self) -> Windows[LabelledBatch]:
        """Shuffled batches of `batch.size` examples."""
        ids = self.ids("train")
        windows = Windows(_Counted(ids), self._layout, seed=self.config.seed)
        if not self.source.has_images:  # each row has `max_length` positions
            filled = self._positions(ids).mean() / self.config.model.max_length
            windows.padding = 1 - (1 - windows.padding) * filled
        return windows

    def batches(self, split: str) -> Once[LabelledBatch]:
        """As in `Task`."""
        return Once(_Counted(self.ids(split)), self._layout)

    @cached_property
    def _blank(self) -> np.ndarray:
        """An image of zeros, `[height, width, channels]`; all images have its shape."""
        return np.zeros_like(self.splits["train"][0].source)

    @property
    def _layout(self) -> Buckets[LabelledBatch]:
        return Buckets([1], self.config.batch.size, self._batch)

    def _batch(self, members: Sequence[EncodedPair], size: int, length: int) -> LabelledBatch:
        del length  # all inputs have the same
        missing = size - len(members)
        labels = np.array([target[0] - len(SPECIALS) for _, target in members] + [0] * missing)
        counted, lengths = np.arange(size) < len(members), None
        if self.source.has_images:
            inputs = np.repeat(self._blank[None], size, axis=0)
            for row, (image, _) in enumerate(members):
                inputs[row] = image
        else:
            inputs = np.full((size, self.config.model.max_length), PAD, np.int32)
            lengths = np.ones(size, np.int32)
            for row, (ids, _) in enumerate(members):
                inputs[row, : len(ids)], lengths[row] = ids, len(ids)
        return LabelledBatch(inputs, lengths, labels.astype(np.int32), counted)

    def loss(
        self, model: Classifier, batch: LabelledBatch, rng: Array | None
    ) -> tuple[TokenLosses, Mapping[str, Array]]:
        """As in `Task`."""
        output = model(batch.inputs, lengths=batch.lengths, rng=rng, **self.on_mesh)
        objective = self.objective(training=rng is not None)
        return objective(output.logits, batch.labels, batch.counted), output.losses

    @cached_property
    def _probabilities(self) -> Any:  # noqa: ANN401 - a jitted function
        return self.learner.apply(
            lambda model, inputs, lengths: nnx.softmax(model(inputs, lengths=lengths).logits)
        )

    def read(self, line: str) -> Sentence | np.ndarray:
        """Read a sentence, or the image in the file that a line names."""
        if self.source.has_images:
            return read_image(line, self.splits["train"][0].source.shape)
        longest = self.config.model.max_length
        return read_sentence(self.tokenizers.source, line, longest=longest)

    def answers(
        self, state: TrainState, inputs: Sequence[Sentence | np.ndarray]
    ) -> Iterator[Prediction]:
        """Name the class of each input."""
        sources = [each.ids if isinstance(each, Sentence) else each for each in inputs]
        examples = [EncodedPair(source, (len(SPECIALS),)) for source in sources]  # of any class
        for start in range(0, len(inputs), self.config.batch.size):
            part = slice(start, start + self.config.batch.size)
            batch = self._batch(examples[part], self.config.batch.size, 1)
            found = self._probabilities(state.parameters, batch.inputs, batch.lengths)
            yield from map(self._prediction, inputs[part], np.asarray(found))

    def _prediction(self, given: Sentence | np.ndarray, probabilities: np.ndarray) -> Prediction:
        tokenizer, order = self.tokenizers.target, np.argsort(-probabilities)
        names = [tokenizer.token(number + len(SPECIALS)) for number in order]
        ranked = [*zip(names, probabilities[order].tolist(), strict=True)]
        note = given.note(self.tokenizers.source) if isinstance(given, Sentence) else ""
        place = 0 if self.config.model.pooling == "class_token" else None
        return Prediction(
            names[:1],
            lambda: {"class": names[0], "probabilities": dict(ranked)},
            note,
            choices=[Choice(place, ranked)],
        )

    def example(
        self, state: TrainState, source: str | np.ndarray, target: str | None = None
    ) -> Example:
        """As in `Task`; a text for a model of images is the name of a file."""
        del state, target
        read = self._read(source)
        if isinstance(read, Sentence):
            ids, labels = np.array(read.ids), read.tokens(self.tokenizers.source)
        else:
            sides = (side // self.config.model.patch_size for side in read.shape[:2])
            ids, labels = read, [f"{row + 1},{column + 1}" for row, column in np.ndindex(*sides)]
        begin = ["<class>"] if self.config.model.pooling == "class_token" else []
        return Example(
            {"encoder": ids},
            {"encoder": [*begin, *labels]},
            {"encoder": (len(begin), 0)},
            unknown={"encoder": [len(begin) + place for place in getattr(read, "unknown", ())]},
        )

    def encoder_predictions(
        self, state: TrainState, sources: Sequence[str | np.ndarray]
    ) -> Iterator[Prediction]:
        """As in `Task`."""
        return self.answers(state, [*map(self._read, sources)])

    def _read(self, source: str | np.ndarray) -> Sentence | np.ndarray:
        return self.read(source) if isinstance(source, str) else source

    def attended(
        self,
        model: Classifier,
        inputs: Mapping[str, Array],
        lengths: Mapping[str, Array],
        returning: Sequence[str] = (),
    ) -> Mapping[str, Output]:
        """As in `Task`."""
        valid = None if self.source.has_images else lengths["encoder"]
        return {"encoder": model(inputs["encoder"], lengths=valid, returning=returning)}

    def sample(self, state: TrainState) -> str:
        """Classify a few validation examples."""
        examples = self.examples("validation")[:SAMPLED]
        sources = [example.source for example in examples]
        answer = self.answers if self.source.has_images else self.predict
        lines = []
        for example, found in zip(examples, answer(state, sources), strict=True):
            text = "".join(found.text)
            mark = "=" if text == example.target else "≠"
            lines += [f"  {_shown(example.source)}", f"  → {text} {mark} {example.target}"]
        return "\n".join(lines)


class _Counted:
    """Examples as `Windows` takes them, each of one position: a batch is counted in examples."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self.lengths = np.ones((len(ids), 1), int)

    def __getitem__(self, number: int) -> EncodedPair:
        return self._ids[number]


def _shown(source: str | np.ndarray) -> str:
    """Return a text, or an image as lines of characters."""
    if isinstance(source, str):
        return source
    lines = (source[..., 0] * (len(SHADES) - 1)).round().astype(int)
    return "\n  ".join("".join(SHADES[shade] for shade in line) for line in lines)
