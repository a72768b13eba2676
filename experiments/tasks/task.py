"""What a task has to define, and what is the same for all of them."""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from itertools import compress
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import jax
import numpy as np
from flax import nnx
from jax import Array

from attention.modules import Output
from attention.primitives import masks
from experiments.analysis.collect import Collector, Example
from experiments.config import Config
from experiments.config.parts import MONITORED, with_steps
from experiments.data.corpora import warn_dropped
from experiments.data.pipeline import Batches, TrainingBatches
from experiments.data.source import (
    IdStore,
    ImageStore,
    MapFunction,
    Splits,
    TextStore,
    store_ids,
    store_text,
)
from experiments.data.tokenizers import EncodedExamples, EncodedPair, SentencePair, Tokenizers
from experiments.errors import UsageError, as_usage_errors, one_of
from experiments.learner import Learner, TrainState
from experiments.losses import Objective, TokenLosses, objective
from experiments.metrics import answer_scores
from experiments.registry import DATASETS, EVALUATORS, LOSSES, TaskParts
from experiments.sharding import context_options
from experiments.tasks.prediction import Prediction, predictions, read_sentence
from experiments.workdir import Workdir, saved_steps

SAMPLED = 3  # examples of a sample
SHOWN = 32  # tokens of a long text that are shown
TRIED = 8  # references that metrics compare with themselves before the first step
TEXTS = {"text", "characters"}  # kinds of examples without a target

Batch = TypeVar("Batch")
Examples = TextStore | ImageStore
Ids = IdStore | EncodedExamples[EncodedPair]
Arrays = Mapping[str, Array]
Losses = tuple[TokenLosses, Arrays]
Scores = dict[str, dict[str, Any]]  # by the name of a split, or of a part of it


class Task(ABC, Generic[Batch]):
    """Data, model, loss, metrics and answers of a config.

    Nothing is read and no parameter is allocated before it is used.

    Attributes:
        config, tokenizers, splits: of the run; the splits as they were read.
        source: the dataset.
        test_splits: splits that a trained model is measured on.
        known_splits: all splits that are read.
        objective: `(*, training) -> (logits, labels, counts) -> TokenLosses`, for the loss that
            `train.loss` names; see `experiments.losses.objective`.
    """

    parts: ClassVar[TaskParts]  # types of the config, as it was registered
    sides: ClassVar[tuple[int, ...]] = (0,)  # that have tokens: 0 is the source, 1 the target
    ends: ClassVar[int] = 1  # number of tokens that the model reads after each text
    only_test: ClassVar[bool] = False  # whether other test splits than "test" are not measured
    has_perplexity: ClassVar[bool] = True  # whether the loss is of a distribution over tokens

    def __init__(
        self, config: Config, tokenizers: Tokenizers, splits: Splits | None = None
    ) -> None:
        """Take the config of a run, tokenizers, and data that need not be read yet."""
        self.config, self.tokenizers, self.splits = config, tokenizers, splits
        self.source = DATASETS[config.data.name].source
        self.test_splits = ("test",) if self.only_test else self.source.tests
        self.known_splits = ("train", "validation", *self.test_splits)
        loss = LOSSES[getattr(config.train, "loss", "cross_entropy")]
        self.objective: Callable[..., Objective] = partial(objective, loss, config.train)
        self._examples_and_ids = cache(self._read)

    @classmethod
    def prepare(
        cls,
        config: Config,
        cache: Path,
        workdir: Workdir | None = None,
        map_function: MapFunction = map,
    ) -> Self:
        """Read the training data, learn its tokens, and count the steps of `train.duration`.

        A run in `workdir` that was started from another, and has a checkpoint, keeps its tokens.
        """
        has_targets = not TEXTS.issuperset(cls.parts.reads)
        splits = Splits(config.data, cache, has_targets=has_targets, map_function=map_function)
        if config.train.start_from and workdir and saved_steps(workdir.checkpoints):
            tokenizers = cls.load_tokenizers(config, workdir.path)
        else:
            tokenizers = cls.learn_tokenizers(config, splits["train"], cache)
        task = cls(config, tokenizers, splits)
        train = with_steps(config.train, lambda: task.training_batches().epoch)
        task.config = replace(config, train=train)
        return task

    @classmethod
    def load(cls, config: Config, workdir: Workdir, cache: Path) -> Self:
        """Load the tokenizers of a run; raise a UsageError if one is damaged. No data is read."""
        splits = Splits(config.data, cache, has_targets=not TEXTS.issuperset(cls.parts.reads))
        return cls(config, cls.load_tokenizers(config, workdir.path), splits)

    @classmethod
    def learn_tokenizers(cls, config: Config, train: Examples, cache: Path) -> Tokenizers:
        """Learn the tokens of the training data, or load those of the run in `train.start_from`."""
        text, folder = DATASETS[config.data.name].source.text, config.train.start_from
        if not folder or not Workdir(folder).checkpoints.is_dir():
            return text.learn(config.text, train, cache, cls.sides)
        try:
            return text.load(Path(folder), cls.sides)
        except UsageError as error:
            other = Workdir(folder).load_config()
            raise UsageError(
                f"train.start_from={folder} has vocabularies of another kind: it is a run of "
                f"task={other.task!r} with data.name={other.data.name!r}; {error}"
            ) from error

    @classmethod
    def load_tokenizers(cls, config: Config, folder: Path) -> Tokenizers:
        """Load what `Tokenizers.keep` wrote."""
        return DATASETS[config.data.name].source.text.load(folder, cls.sides)

    @abstractmethod
    def model(self, rngs: nnx.Rngs) -> nnx.Module:
        """Build the model with its initial parameters."""

    @abstractmethod
    def training_batches(self) -> TrainingBatches:
        """Return the batch of each training step."""

    @abstractmethod
    def batches(self, split: str) -> Batches[Batch] | Iterable[Batch]:
        """Return batches of every example of a split once, in a fixed order.

        Of `Batches`, each process reads its rows alone; others are read whole.
        """

    @abstractmethod
    def loss(self, model: nnx.Module, batch: Batch, rng: Array | None) -> Losses:
        """Return the sums of the losses of a batch, and auxiliary losses of the model by name.

        Without a random key, dropout is off and plain cross-entropy is measured.
        """

    def read(self, line: str) -> Any:  # noqa: ANN401 - an input of `answers`
        """Convert a line, as a person types it, to an input of `answers`, or raise a ValueError."""
        longest = self.config.model.max_length - self.ends
        return read_sentence(self.tokenizers.source, line, longest=longest)

    def answers(self, state: TrainState, inputs: Sequence[Any]) -> Iterable[Prediction]:
        """Return the prediction of each input."""
        raise UsageError(f"--mode=predict needs the method answers of {type(self).__name__}")

    def predict(self, state: TrainState, lines: Sequence[Any]) -> Iterator[Prediction]:
        """Answer each line in the terms of the task, in order; lines may be images."""
        return predictions(lines, self.read, partial(self.answers, state))

    def example(self, state: TrainState, source: Any, target: str | None = None) -> Example:  # noqa: ANN401 - a text or an image
        """Return what the model reads of a text as a person types it, or of an image.

        A target is generated if it is None, where the task generates. A text that the model cannot
        read is a ValueError, and a model that does not attend a UsageError.
        """
        raise UsageError(f"{self.config.task} has no attention to explain")

    def attended(
        self, model: nnx.Module, inputs: Arrays, lengths: Arrays, returning: Sequence[str] = ()
    ) -> Mapping[str, Output]:
        """Return the output of each stack, without dropout; `returning` as in `Context`.

        By stack, `inputs` of `example` are `[B, T]`, padded, and `lengths` the valid tokens `[B]`.
        """
        read, valid = inputs.get("encoder"), lengths.get("encoder")
        written = inputs.get("decoder")
        if read is None:  # padding follows the tokens, so no token attends to it
            return {"decoder": model(written, returning=returning)}
        if written is None:
            valid = valid if read.ndim == 2 else None  # images have no padding
            return {"encoder": model(read, lengths=valid, returning=returning)}
        mask = masks.lengths(valid)
        encoded = model.encode(read, mask=mask, returning=returning)
        options = {"encoder_mask": mask, "returning": returning}
        decoded = model.decode(written, encoded.features, **options)
        decoded = decoded._replace(logits=model.logits(decoded.features))
        return {"encoder": encoded, "decoder": decoded}

    @cached_property
    def collector(self) -> Collector:
        """Collects the attention of the model."""
        return Collector(self)

    @cached_property
    def learner(self) -> Learner:
        """Model, loss and optimizer, without parameters."""
        return Learner(self.model, self.loss, self.config)

    @cached_property
    def on_mesh(self) -> dict[str, Callable[..., Any]]:
        """Options of a model that shard its activations over the mesh, as in `Context`."""
        return context_options(self.learner.mesh)

    def check(self) -> None:
        """Check before the first step what would fail after it; nothing is written.

        An example that has no room, or an unknown `train.monitor`, is a UsageError.
        """
        for split in self.known_splits:
            self.ids(split)
            if split != "train":
                self.batches(split)
        train, learner = self.config.train, self.learner
        _, references, _ = zip(*self.examples("validation")[:TRIED], strict=True)
        self.answer_scores(references, "validation", getattr(self.config.decoding, "metrics", ()))
        state = learner.initial_state() if {*train.evaluators} & {*EVALUATORS} else None
        values = self.evaluated(state, references)
        if train.monitor not in (*MONITORED, *values):
            batch, shapes = next(iter(self.batches("validation"))), learner.abstract_state
            losses = jax.eval_shape(learner.evaluate_step, shapes.parameters, batch)
            with as_usage_errors():
                one_of("train.monitor", train.monitor, (*MONITORED, *losses.auxiliary, *values))

    def validate(self, state: TrainState) -> dict[str, float]:
        """Measure the validation split in training: losses, and the numbers of the evaluators."""
        losses = self.learner.losses(state.parameters, self.batches("validation"))
        return losses | self.evaluated(state)

    def evaluated(
        self, state: TrainState | None, answers: Sequence[str] | None = None
    ) -> dict[str, float]:
        """Return the numbers of `train.evaluators`; the answers are generated if they are None."""
        values: dict[str, Any] = {}
        for name in self.config.train.evaluators:
            if name in EVALUATORS:
                values |= EVALUATORS[name](self, state)
                continue
            answers = self.answer_split(state, "validation") if answers is None else answers
            values |= self.answer_scores(answers, "validation", [name])
        return {name: float(value) for name, value in values.items() if not isinstance(value, str)}

    def answer_split(
        self, state: TrainState, split: str, number: int | None = None
    ) -> Sequence[str]:
        """Return the answer to each example of a split, or to the first ones."""
        sources = [example.source for example in self.examples(split)[:number]]
        return ["".join(prediction.text) for prediction in self.predict(state, sources)]

    def sample(self, state: TrainState) -> str:
        """Show in a few lines what the model can do: its answers beside the references."""
        lines, examples = [], self.examples("validation")[:SAMPLED]
        answers = self.answer_split(state, "validation", SAMPLED)
        for (source, target, _), answer in zip(examples, answers, strict=True):
            lines += [] if self.source.has_images else [f"  {source}"]
            lines += [f"  → {answer}", f"  {'=' if answer == target else '≠'} {target}"]
        return "\n".join(lines)

    def answer_scores(
        self, answers: Sequence[str], split: str, metrics: Sequence[str]
    ) -> dict[str, Any]:
        """Compare answers to the first examples of a split with their references, by metrics."""
        _, references, _ = zip(*self.examples(split)[: len(answers)], strict=True)
        tokenized = getattr(self.config.data, "tokenized", False)
        return answer_scores(metrics, answers, references, tokenized=tokenized)

    def measure(self, state: TrainState, split: str) -> tuple[Scores, Sequence[str]]:
        """Return the scores of a split, and of parts of it, by name; and its answers, if any."""
        losses = self.learner.losses(state.parameters, self.batches(split))
        losses |= perplexity("perplexity", losses["nll"]) if self.has_perplexity else {}
        return {split: losses}, ()

    def artifacts(self, state: TrainState, workdir: Workdir) -> None:
        """Write more about a trained model, such as pictures, after the test split was measured."""

    def first_examples(self, split: str, number: int) -> list[SentencePair]:
        """Return the first examples of a split, as people read them: of long texts the begins."""
        if not (self.source.is_running or self.source.may_split):
            return self.examples(split)[:number]
        ids, tokenizer = self.ids(split), self.tokenizers.source
        # The decoded text may be encoded as more tokens: half of the positions are for them.
        size = min(SHOWN, getattr(self.config.model, "max_length", 2 * SHOWN) // 2)
        if self.source.is_running:
            pieces = [ids.ids[start : start + size] for start in range(0, number * size, size)]
        else:
            pieces = [ids[place].source[:size] for place in range(min(number, len(ids)))]
        return [SentencePair(tokenizer.decode(piece.tolist())) for piece in pieces if len(piece)]

    def examples(self, split: str) -> Examples:
        """Return the examples of a split; in training with `data.faults="drop"` those that fit."""
        return self._examples_and_ids(split)[0]

    def ids(self, split: str) -> Ids:
        """Return the ids of `examples`; raise a UsageError for one that has no room."""
        return self._examples_and_ids(split)[1]

    def _read(self, split: str) -> tuple[Examples, Ids]:
        source, splits, may_split = self.source, self.splits, self.source.may_split
        longest = getattr(self.config.model, "max_length", 0)
        room = min(getattr(self.config.batch, "row_length", 0) or longest, longest)
        is_whole = not longest or source.is_running
        options = {"tokenizers": self.tokenizers, "map_function": splits.map_function}
        options["max_ids"] = room - self.ends if may_split and not is_whole else None
        store = partial(store_ids, splits.cache, **options)
        with as_usage_errors(f"the {split} split: "):  # an unknown word
            examples = splits[split]
            if source.has_images:
                return examples, EncodedExamples(map(self.tokenizers.encode, examples))
            ids = store(examples)
        if is_whole or may_split:
            return examples, ids
        lengths = ids.lengths.max(axis=1) - 1 + self.ends
        may_drop = split == "train" and hasattr(self.config.data, "faults")
        if may_drop and self.config.data.faults == "drop" and lengths.max() > room:
            fits, what = lengths <= room, f"more than {room} subwords"
            warn_dropped("train", int(np.sum(~fits)), len(fits), what)
            if not fits.any():
                raise UsageError(f"no pair of the train split is left: all have {what}")
            name = f"{ids.path.name} without {what}"
            examples = store_text(splits.cache, partial(compress, examples, fits), name)
            return examples, store(examples)
        if lengths.max() > longest:
            text = examples[int(lengths.argmax())].source
            hint = ", or leave such pairs out by data.faults=drop" if may_drop else ""
            raise UsageError(
                f"the {split} split needs {lengths.max()} positions, for {text[:40]!r}: raise "
                f"model.max_length={longest}{hint}"
            )
        return examples, ids


def perplexity(name: str, nll: float) -> dict[str, float]:
    """Return a perplexity by its name, {} if it is more than a float holds."""
    return {name: math.exp(nll)} if nll < math.log(sys.float_info.max) else {}
