"""What a task has to define, and what is the same for all of them."""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import compress
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np
from flax import nnx
from jax import Array

from attention.modules import Output
from experiments.analysis.collect import Collector, Example
from experiments.config import Config
from experiments.data.batches import (
    CachedBatches,
    FiniteBatches,
    TrainingBatches,
    reads_rows,
)
from experiments.data.corpora import warn_dropped
from experiments.data.pairs import SentencePair
from experiments.data.rows import Encoded, EncodedPair
from experiments.data.sources import Splits
from experiments.data.store import (
    IdStore,
    ImageStore,
    MapFunction,
    TextStore,
    store_ids,
    store_text,
)
from experiments.data.tokenizers import SIDES, Tokenizers
from experiments.errors import UsageError, as_usage_errors
from experiments.evaluation.scores import answer_scores
from experiments.inference.prediction import Prediction, predictions
from experiments.losses import Objective, TokenLosses, objective
from experiments.registry import DATASETS, EVALUATORS, LOSSES
from experiments.sharding import context_options
from experiments.training.duration import resolve_duration
from experiments.training.learner import Learner
from experiments.training.step import TrainState
from experiments.workdir import Workdir

SHOWN = 32  # tokens of a long text that are shown
LARGEST_EXPONENT = math.log(sys.float_info.max)  # of a float

Batch = TypeVar("Batch")
Examples = TextStore | ImageStore
Ids = IdStore | Encoded[EncodedPair]


class Measured(NamedTuple):
    """Scores of a split.

    Attributes:
        scores: of the split, and of parts of it, by name.
        answers: one line for each example, if the task writes text.
    """

    scores: dict[str, dict[str, Any]]
    answers: Sequence[str] | None = None


class Task(ABC, Generic[Batch]):
    """Model, batches, loss and scores of a config.

    Nothing is read and no parameter is allocated before it is used.

    Attributes:
        config: of the run.
        source: the dataset.
        tokenizers: of the sides of an example.
        splits: the data as it was read.
        objective: `(*, training) -> (logits, labels, counts) -> TokenLosses`, for the loss that
            `train.loss` names; see `experiments.losses.objective`.
    """

    sides: ClassVar[tuple[int, ...]] = (0,)  # of an example that have tokens
    has_targets: ClassVar[bool] = True  # whether examples need a target
    has_end: ClassVar[bool] = True  # whether a token ends each text that the model reads
    has_perplexity: ClassVar[bool] = True  # whether the loss is that of tokens
    reads_blank: bool = False  # whether the model writes from nothing, for a blank line

    def __init__(
        self, config: Config, tokenizers: Tokenizers, splits: Splits | None = None
    ) -> None:
        """Create a task; `prepare` and `load` are what is usually called."""
        self.config = config
        self.source = DATASETS[config.data.name].source
        self.tokenizers = tokenizers
        self.splits = splits
        loss = LOSSES[getattr(config.train, "loss", "cross_entropy")]
        self.objective: Callable[..., Objective] = partial(objective, loss, config.train)
        self._prepared: dict[str, tuple[Examples, Ids]] = {}

    @classmethod
    def prepare(
        cls,
        config: Config,
        cache: Path,
        workdir: Workdir | None = None,
        map_function: MapFunction = map,
    ) -> Self:
        """Read the training data, learn its tokens, and count the steps of `train.duration`.

        Args:
            config: of the run.
            cache: folder of generated data.
            workdir: of the run; one that was started from another run, and has a checkpoint, keeps
                its tokens.
            map_function: as in `store_ids`.

        Raises:
            UsageError: data that cannot be read or learned from.
        """
        splits = Splits(config.data, cache, has_targets=cls.has_targets, map_function=map_function)
        if config.train.start_from and workdir and workdir.newest_step():
            tokenizers = cls.load_tokenizers(config, workdir.path)
        else:
            tokenizers = cls.learn_tokenizers(config, splits["train"], cache)
        task = cls(config, tokenizers, splits)
        task.config = resolve_duration(config, lambda _: task.training_batches().epoch)
        return task

    @classmethod
    def load(cls, config: Config, workdir: Workdir, cache: Path) -> Self:
        """Load the tokenizers of a run; no data is read.

        Raises:
            UsageError: a tokenizer that is missing or damaged.
        """
        splits = Splits(config.data, cache, has_targets=cls.has_targets)
        return cls(config, cls.load_tokenizers(config, workdir.path), splits)

    @classmethod
    def learn_tokenizers(cls, config: Config, train: Examples, cache: Path) -> Tokenizers:
        """Learn the tokens of the training data, or load those of the run in `train.start_from`.

        Raises:
            UsageError: that run has tokens of another kind.
        """
        text, folder = DATASETS[config.data.name].source.text, config.train.start_from
        if folder and Workdir(folder).checkpoints.is_dir():
            files = [text.FILE.format(side=SIDES[side]) for side in cls.sides]
            if missing := [name for name in files if not (Path(folder) / name).is_file()]:
                other = Workdir(folder).load_config()
                raise UsageError(
                    f"train.start_from={folder} has vocabularies of another kind: it is a run of "
                    f"task={other.task!r} with data.name={other.data.name!r}, without {missing[0]}"
                )
            return text.load(Path(folder), cls.sides)
        return text.learn(config.text, train, cache, cls.sides)

    @classmethod
    def load_tokenizers(cls, config: Config, folder: Path) -> Tokenizers:
        """Load what `Tokenizers.keep` wrote."""
        return DATASETS[config.data.name].source.text.load(folder, cls.sides)

    @abstractmethod
    def model(self, rngs: nnx.Rngs) -> nnx.Module:
        """Build the model with its initial parameters."""

    @abstractmethod
    def training_batches(self) -> TrainingBatches:
        """Return the batch of each training step.

        Raises:
            UsageError: an example that has no room.
        """

    @abstractmethod
    def batches(self, split: str) -> FiniteBatches[Batch] | Iterable[Batch]:
        """Return batches that contain every example of a split once, in a fixed order.

        Of `FiniteBatches`, each process reads its rows alone; others are read whole.
        """

    @abstractmethod
    def loss(
        self, model: nnx.Module, batch: Batch, rng: Array | None
    ) -> tuple[TokenLosses, Mapping[str, Array]]:
        """Sum the losses of a batch.

        Args:
            model: with parameters.
            batch: of `training_batches` or `batches`.
            rng: random key of dropout; None turns dropout off and measures plain cross-entropy.

        Returns:
            The sums, and the auxiliary losses of the model by name.
        """

    @abstractmethod
    def sample(self, state: TrainState) -> str:
        """Show in a few lines what the model can do."""

    @cached_property
    def collector(self) -> Collector:
        """Collects the attention of the model."""
        return Collector(self)

    def answer_split(self, state: TrainState, split: str) -> Sequence[str]:
        """Return the answer to each example of a split, for tasks with `decoding.metrics`."""
        raise NotImplementedError

    def answer_scores(
        self, answers: Sequence[str], split: str, metrics: Sequence[str]
    ) -> dict[str, Any]:
        """Compare answers to a split with its references, by the names of metrics."""
        references = [example.target for example in self.examples(split)]
        tokenized = getattr(self.config.data, "tokenized", False)
        return answer_scores(metrics, answers, references, tokenized=tokenized)

    def validate(self, state: TrainState) -> dict[str, float]:
        """Measure the validation split in training: losses, and the numbers of the evaluators."""
        found = self.learner.losses(state.parameters, self._validation)
        names = self.config.train.evaluators
        if metrics := [name for name in names if name not in EVALUATORS]:
            answers = self.answer_split(state, "validation")
            found |= self.answer_scores(answers, "validation", metrics)
        for name in names:
            if name in EVALUATORS:
                for key, value in EVALUATORS[name](self, state).items():
                    found[key] = value if isinstance(value, str) else float(value)
        return {name: value for name, value in found.items() if not isinstance(value, str)}

    @cached_property
    def _validation(self) -> Iterable[Batch]:
        batches = self.batches("validation")
        return CachedBatches(batches) if reads_rows(batches) else [*batches]

    def predict(self, state: TrainState, lines: Sequence[str]) -> Iterator[Prediction]:
        """Answer each line in the terms of the task, in order."""
        answer = partial(self.answers, state)
        return predictions(lines, self.read, answer, reads_blank=self.reads_blank)

    def read(self, line: str) -> Any:  # noqa: ANN401 - an input of `answers`
        """Convert a line, as a person types it, to an input of `answers`.

        Raises:
            ValueError: a line that the model cannot read.
            UsageError: a task without predictions.
        """
        raise UsageError(f"--mode=predict needs methods read and answers of {type(self).__name__}")

    def answers(self, state: TrainState, inputs: Sequence[Any]) -> Iterable[Prediction]:
        """Return the prediction of each input."""
        raise NotImplementedError

    def example(self, state: TrainState, source: Any, target: str | None = None) -> Example:  # noqa: ANN401 - a text or an image
        """Return what the model reads of a text as a person types it, or of an image.

        Args:
            state: of the model.
            source: what is read.
            target: what is predicted; generated if None, where the task generates.

        Raises:
            ValueError: a text that the model cannot read.
            UsageError: a model that does not attend.
        """
        del state, source, target
        raise UsageError(f"{self.config.task} has no attention to explain")

    def encoder_predictions(
        self, state: TrainState, sources: Sequence[Any]
    ) -> Iterable[Prediction]:
        """Return the predictions of an encoder for sources of `example`, with their choices."""
        del state
        return [Prediction() for _ in sources]

    def attended(
        self,
        model: nnx.Module,
        inputs: Mapping[str, Array],
        lengths: Mapping[str, Array],
        returning: Sequence[str] = (),
    ) -> Mapping[str, Output]:
        """Return the output of each stack, without dropout.

        Args:
            model: with parameters.
            inputs: of `example`, `[B, T]` by stack, padded.
            lengths: `[B]` by stack, number of valid tokens per row.
            returning: as in `Context`.
        """
        raise NotImplementedError

    def first_examples(self, split: str, number: int) -> list[SentencePair]:
        """Return the first examples of a split, as they are shown to people.

        A text that is longer than the model reads is cut to its first tokens.
        """
        examples = self.examples(split)[:number]
        longest = getattr(self.config.model, "max_length", None)
        if longest is None or not self.source.may_split:
            return examples
        tokenizer = self.tokenizers.source

        def cut(source: str) -> str:
            ids = tokenizer.encode(source)
            if len(ids) < longest:
                return source
            # The decoded part may be encoded as more tokens: half of the positions are for them.
            return tokenizer.decode(ids[: min(SHOWN, longest // 2)])

        return [SentencePair(cut(each.source)) for each in examples]

    def measure(self, state: TrainState, split: str) -> Measured:
        """Measure a model on a split."""
        return Measured({split: self.losses(state, split)})

    def artifacts(self, state: TrainState, workdir: Workdir) -> None:
        """Write more about a trained model, such as pictures, after the test split was measured."""

    @property
    def test_splits(self) -> tuple[str, ...]:
        """Splits that a trained model is measured on."""
        return self.source.tests

    @property
    def known_splits(self) -> tuple[str, ...]:
        """Splits that are read."""
        return ("train", "validation", *self.test_splits)

    @cached_property
    def learner(self) -> Learner:
        """Model, loss and optimizer, without parameters."""
        return Learner(self.model, self.loss, self.config)

    @cached_property
    def on_mesh(self) -> dict[str, Callable[..., Any]]:
        """Options of a model that shard its activations over the mesh, as in `Context`."""
        return context_options(self.learner.mesh)

    def losses(self, state: TrainState, split: str) -> dict[str, float]:
        """Return loss, accuracy and perplexity of a split.

        A perplexity that is more than a float holds is left out.
        """
        losses = self.learner.losses(state.parameters, self.batches(split))
        if not self.has_perplexity or losses["nll"] > LARGEST_EXPONENT:
            return losses
        return losses | {"perplexity": math.exp(losses["nll"])}

    def examples(self, split: str) -> Examples:
        """Return the examples of a split; in training with `data.faults="drop"` those that fit."""
        return self._prepare(split)[0]

    def ids(self, split: str) -> Ids:
        """Return the ids of `examples`.

        Raises:
            UsageError: an example that the model has no room for, or no example.
        """
        return self._prepare(split)[1]

    def _prepare(self, split: str) -> tuple[Examples, Ids]:
        if split not in self._prepared:
            with as_usage_errors(f"the {split} split: "):  # an unknown word
                self._prepared[split] = self._fitting(split)
        return self._prepared[split]

    def _fitting(self, split: str) -> tuple[Examples, Ids]:
        examples = self.splits[split]
        if self.source.has_images:
            return examples, Encoded(map(self.tokenizers.encode, examples))
        longest = getattr(self.config.model, "max_length", None)
        room = getattr(self.config.batch, "row_length", 0) or longest
        if longest is None or self.source.is_running:
            return examples, self._stored(examples)
        if self.source.may_split:
            return examples, self._stored(examples, room - self.has_end)
        ids = self._stored(examples)
        may_drop = split == "train" and hasattr(self.config.data, "faults")
        if may_drop and self.config.data.faults == "drop":
            fits = self._positions(ids) <= room
            if not fits.all():
                what = f"more than {room} subwords"
                warn_dropped("train", int(np.sum(~fits)), len(fits), what)
                if not fits.any():
                    raise UsageError(f"no pair of the train split is left: all have {what}")
                name = f"{ids.path.name} without {what}"
                examples = store_text(self.splits.cache, partial(compress, examples, fits), name)
                ids = self._stored(examples)
        if (needed := ids.lengths.max() - (not self.has_end)) > longest:
            text = examples[int(ids.lengths.max(axis=1).argmax())].source
            text = text if len(text) <= 40 else f"{text[:40]}…"
            raise UsageError(
                f"the {split} split needs {needed} positions, for {text!r}: raise "
                f"model.max_length={longest}"
                + (", or leave such pairs out by data.faults=drop" if may_drop else "")
            )
        return examples, ids

    def _stored(self, examples: TextStore, max_ids: int | None = None) -> IdStore:
        """Return the ids of texts, as `store_ids`."""
        splits = self.splits
        return store_ids(splits.cache, examples, self.tokenizers, max_ids, splits.map_function)

    def _positions(self, ids: IdStore) -> np.ndarray:
        """Return the number of positions that each example needs."""
        return ids.lengths.max(axis=1) - (not self.has_end)
