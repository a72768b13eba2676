"""Classification: train an encoder to name the class of what it reads, words or images."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from flax import nnx
from jax import Array

from attention.modules import Classifier, Embedding, PatchEmbedding, TransformerConfig
from experiments.config import Config
from experiments.data.batching import evaluation_batches, resumable
from experiments.data.labelled import (
    Examples,
    Labelled,
    LabelledBatch,
    load_labelled,
)
from experiments.training.duration import settled
from experiments.training.learner import Learner
from experiments.training.loss import TokenLosses, objective, token_losses
from experiments.training.session import evaluate_in, measured, train_in
from experiments.training.step import TrainState
from experiments.workdir import Workdir


def train(config: Config, workdir: Workdir, cache: Path) -> None:
    """Trains a classifier, or goes on from where its workdir stands, and measures it.

    Args:
        config: of the run.
        workdir: where all that the run makes goes.
        cache: unused: the data is generated anew, or comes with a library.
    """
    del cache
    config = settled(config, lambda now: Task(now).data.splits["train"].epoch)
    task = Task(config)
    train_data = task.data.splits["train"]
    batches = resumable(train_data.epochs(num_batches=config.train.steps, seed=config.seed))
    task.learner.trace(batches)
    workdir.claim(config)
    keep_words(task, workdir)
    print(
        f"{len(train_data.labels):,} examples of {len(task.data.classes)} classes, "
        f"{task.learner.num_parameters:,} parameters"
    )
    train_in(
        workdir,
        task.learner,
        batches,
        validation=all_batches(task.data.splits["validation"]),
        sample=task.sample,
        measure=partial(task.measure, names=task.tests),
        config=config,
    )


def evaluate(config: Config, workdir: Workdir, cache: Path, split: str | None = None) -> None:
    """Measures the newest checkpoint of a run; its results file is written again.

    Args:
        config: of the run.
        workdir: of the run.
        cache: unused, as in `train`.
        split: what alone is measured; all that it was not trained on by default.

    Raises:
        UsageError: data without this split.
    """
    del cache
    task = Task(config)
    keep_words(task, workdir)  # or they are others now
    names = measured(split, task.tests, tuple(task.data.splits))
    measure = partial(task.measure, names=names)
    evaluate_in(workdir, task.learner, measure, config)


def keep_words(task: "Task", workdir: Workdir) -> None:
    """Writes the words of a model that reads words, or finds that they are those of the run."""
    if task.data.vocabulary is not None:
        workdir.keep_vocabulary(task.data.vocabulary.as_text())


def all_batches(examples: Examples) -> Sequence[LabelledBatch]:
    """A whole split, in order."""
    return [batch for _, batch in evaluation_batches(examples)]


class Task:
    """A configuration brought to life: the data, and the model that tells its classes apart."""

    def __init__(self, config: Config) -> None:
        """Builds everything but numbers: no parameter is allocated yet."""
        self.config = config
        self.data: Labelled = load_labelled(config.data, config.batch.size)
        self.learner = Learner(self._make_model, self._sum_losses, config)
        self._classify = self.learner.apply(
            lambda model, inputs, lengths: model(inputs, lengths=lengths).logits.argmax(axis=-1)
        )

    def _make_model(self, rngs: nnx.Rngs) -> Classifier:
        config = self.config.model.library()
        return Classifier.from_config(
            config,
            self._make_embedding(config, rngs),
            num_classes=len(self.data.classes),
            pooling=self.config.model.pooling,
            rngs=rngs,
        )

    def _make_embedding(
        self, config: TransformerConfig, rngs: nnx.Rngs
    ) -> Embedding | PatchEmbedding:
        if self.data.vocabulary is not None:
            return Embedding.from_config(len(self.data.vocabulary), config, rngs=rngs)
        image_shape = self.data.splits["train"].inputs.shape[1:]
        patch_size = self.config.data.patch_size
        return PatchEmbedding.from_config(
            config, image_shape=image_shape, patch_size=patch_size, rngs=rngs
        )

    def _sum_losses(
        self, model: Classifier, batch: LabelledBatch, rng: Array | None
    ) -> tuple[TokenLosses, Mapping[str, Array]]:
        output = model(batch.inputs, lengths=batch.lengths, rng=rng)
        loss = objective(self.config.train, training=rng is not None)
        return token_losses(output.logits, batch.labels, batch.counted, loss), output.losses

    @property
    def tests(self) -> tuple[str, ...]:
        """The splits that it is not trained on."""
        return tuple(split for split in self.data.splits if split != "train")

    def measure(self, state: TrainState, names: Sequence[str]) -> dict[str, dict[str, float]]:
        """Loss and accuracy on these splits."""
        return {
            split: self.learner.losses(state.parameters, all_batches(self.data.splits[split]))
            for split in names
        }

    def sample(self, state: TrainState) -> str:
        """A few inputs, the classes that the model gives them, and what they should be."""
        batch = all_batches(self.data.splits["validation"])[0]
        said = np.asarray(self._classify(state.parameters, batch.inputs, batch.lengths))
        lines = []
        for shown, ours, gold in zip(batch.inputs[:3], said, batch.labels, strict=False):
            mark = "=" if ours == gold else "≠"
            lines += [f"  {self.data.show(shown)}"]
            lines += [f"  → {self.data.classes[ours]} {mark} {self.data.classes[gold]}"]
        return "\n".join(lines)
