"""Classification: train an encoder to name the class of what it reads, words or images."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from attention.modules import Classifier, Embedding, PatchEmbedding, TransformerConfig
from experiments.data.labelled import (
    Examples,
    Labelled,
    LabelledBatch,
    check_labelled,
    load_labelled,
)
from experiments.data.windows import once
from experiments.errors import UsageError, as_usage_errors, check_at_least
from experiments.training.duration import settled
from experiments.training.learner import Learner
from experiments.training.loss import TokenLosses, objective, token_losses
from experiments.training.session import check_training, evaluate_in, measured, train_in
from experiments.training.step import TrainState
from experiments.workdir import Workdir


def train(config: ConfigDict, workdir: Workdir, cache: Path) -> None:
    """Trains a classifier, or goes on from where its workdir stands, and measures it.

    Args:
        config: of the run, as `check` passes it.
        workdir: where all that the run makes goes.
        cache: unused: the data is generated anew, or comes with a library.
    """
    del cache
    config = settled(config, lambda now: Task(now).data.splits["train"].windows(0).epoch)
    task = Task(config)
    workdir.claim(config)
    keep_words(task, workdir)
    print(
        f"{len(task.data.splits['train'].labels):,} examples of {len(task.data.classes)} classes, "
        f"{task.learner.num_parameters:,} parameters"
    )
    train_in(
        workdir,
        task.learner,
        task.data.splits["train"].windows(config.seed),
        validation=batches(task.data.splits["validation"]),
        sample=task.sample,
        measure=partial(task.measure, names=task.tests),
        config=config,
    )


def evaluate(config: ConfigDict, workdir: Workdir, cache: Path, split: str | None = None) -> None:
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


def check(config: ConfigDict) -> None:
    """Refuses, before anything is written, a configuration that cannot run.

    Raises:
        UsageError: in one sentence.
    """
    check_training(config)
    with as_usage_errors():
        check_at_least("train.batch_size", config.train.batch_size, 1)
        check_at_least("model.encoder_layers", config.model.encoder_layers, 1)
        check_labelled(config.data)
        task = Task(config)  # patches and pooling are the modules' to refuse
    needed = task.data.splits["train"].inputs.shape[1]
    if task.data.vocabulary is not None and needed > config.model.max_length:
        raise UsageError(
            f"the sentences need {needed} positions: raise model.max_length="
            f"{config.model.max_length}"
        )


def batches(examples: Examples) -> Sequence[LabelledBatch]:
    """A whole split, in order."""
    return [batch for _, batch in once(examples, examples.layout)]


class Task:
    """A configuration brought to life: the data, and the model that tells its classes apart."""

    def __init__(self, config: ConfigDict) -> None:
        """Builds everything but numbers: no parameter is allocated yet."""
        self.config = config
        self.data: Labelled = load_labelled(config.data, config.train.batch_size)
        self.learner = Learner(self._make_model, self._sum_losses, config)
        self._classify = self.learner.apply(
            lambda model, inputs, lengths: model(inputs, lengths=lengths).logits.argmax(axis=-1)
        )

    def _make_model(self, rngs: nnx.Rngs) -> Classifier:
        config = TransformerConfig(**self.config.model)
        return Classifier.from_config(
            config,
            self._make_embedding(config, rngs),
            num_classes=len(self.data.classes),
            pooling=self.config.pooling,
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
            split: self.learner.losses(state.parameters, batches(self.data.splits[split]))
            for split in names
        }

    def sample(self, state: TrainState) -> str:
        """A few inputs, the classes that the model gives them, and what they should be."""
        batch = batches(self.data.splits["validation"])[0]
        said = np.asarray(self._classify(state.parameters, batch.inputs, batch.lengths))
        lines = []
        for shown, ours, gold in zip(batch.inputs[:3], said, batch.labels, strict=False):
            mark = "=" if ours == gold else "≠"
            lines += [f"  {self.data.show(shown)}"]
            lines += [f"  → {self.data.classes[ours]} {mark} {self.data.classes[gold]}"]
        return "\n".join(lines)
