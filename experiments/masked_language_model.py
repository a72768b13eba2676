"""Masked language modelling: train an encoder to fill gaps, and ask what its vectors know."""

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from attention.modules import MaskedLanguageModel, TransformerConfig
from attention.primitives import masks
from experiments.data.gaps import GapBatch, Gaps, GapWindows, encoded_sentences, fixed_gaps
from experiments.data.pairs import SentencePair
from experiments.data.rows import Batch
from experiments.data.sequences import toy
from experiments.data.vocabulary import Vocabulary
from experiments.data.windows import Buckets, once
from experiments.data.words import tokenize
from experiments.errors import as_usage_errors, check_at_least
from experiments.evaluation.word_senses import (
    SenseVectors,
    check_senses,
    occurrences,
    sense_accuracy,
)
from experiments.model_checks import check_model
from experiments.training.duration import settled
from experiments.training.learner import Learner
from experiments.training.loss import TokenLosses, objective, token_losses
from experiments.training.session import check_training, evaluate_in, measured, train_in
from experiments.training.step import TrainState
from experiments.translation_checks import check_buckets
from experiments.workdir import Workdir


def train(config: ConfigDict, workdir: Workdir, cache: Path) -> None:
    """Trains a masked language model, or goes on with it, and measures it.

    Args:
        config: of the run, as `check` passes it.
        workdir: where all that the run makes goes.
        cache: where generated data is kept.
    """
    splits = toy.load_splits(config.data, cache)
    check_senses(splits["train"], splits["test"])
    words = Vocabulary.of(tokenize(pair.source) for pair in splits["train"])
    config = settled(config, lambda now: Task(now, words).training_batches(splits["train"]).epoch)
    task = Task(config, words)
    workdir.claim(config)
    workdir.keep_vocabulary(words.as_text())
    print(
        f"{len(splits['train']):,} sentences of {len(words)} words, "
        f"{task.learner.num_parameters:,} parameters"
    )
    train_in(
        workdir,
        task.learner,
        task.training_batches(splits["train"]),
        validation=task.fixed_batches(splits["validation"]),
        sample=lambda state: task.sample(state, splits["validation"]),
        measure=lambda state: task.measure(state, splits),
        config=config,
    )


def evaluate(config: ConfigDict, workdir: Workdir, cache: Path, split: str | None = None) -> None:
    """Measures the newest checkpoint of a run; its results file is written again.

    Raises:
        UsageError: another split than the one it is measured on.
    """
    measured(split, tests=("test",))
    task = load_task(config, workdir)
    splits = toy.load_splits(config.data, cache)
    measure = partial(task.measure, splits=splits)
    evaluate_in(workdir, task.learner, measure, config)


def check(config: ConfigDict) -> None:
    """Refuses, before anything is written, a configuration that cannot run.

    Raises:
        UsageError: in one sentence.
    """
    check_training(config)
    check_model(config)
    with as_usage_errors():
        toy.check(config.data)
        check_at_least("model.encoder_layers", config.model.encoder_layers, 1)
    check_buckets(config)


def abstract_model(config: ConfigDict, cache: Path) -> nnx.Module:
    """The model of a configuration that was checked, with shapes for parameters.

    Args:
        config: of a run.
        cache: where generated data is kept, whose words decide the size of the model.
    """
    pairs = toy.load(config.data, "train", cache)
    words = Vocabulary.of(tokenize(pair.source) for pair in pairs)
    return Task(config, words).learner.abstract_model


def load_task(config: ConfigDict, workdir: Workdir) -> "Task":
    """What a run was trained to do."""
    return Task(config, workdir.load_vocabulary(Vocabulary.from_text))


class Task:
    """A configuration brought to life: the model, and what it knows of words."""

    def __init__(self, config: ConfigDict, words: Vocabulary) -> None:
        """Builds everything but numbers: no parameter is allocated yet."""
        self.config = config
        self._words = words
        self.learner = Learner(self._make_model, self._sum_losses, config)
        self._encode = self.learner.apply(
            lambda model, tokens, lengths: (
                model.encode(tokens, mask=masks.lengths(lengths)).features
            )
        )
        self._fill = self.learner.apply(
            lambda model, tokens, lengths: model(tokens, mask=masks.lengths(lengths)).logits.argmax(
                -1
            )
        )

    def _make_model(self, rngs: nnx.Rngs) -> MaskedLanguageModel:
        config = TransformerConfig(**self.config.model)
        return MaskedLanguageModel.from_config(config, vocab_size=len(self._words) + 1, rngs=rngs)

    def _sum_losses(
        self, model: MaskedLanguageModel, batch: GapBatch, rng: Array | None
    ) -> tuple[TokenLosses, Mapping[str, Array]]:
        output = model(batch.inputs, mask=masks.lengths(batch.lengths), rng=rng)
        loss = objective(self.config.train, training=rng is not None)
        return token_losses(output.logits, batch.labels, batch.counted, loss), output.losses

    def _buckets(self, *lengths: int) -> Buckets[Batch]:
        return Buckets([*lengths, self.config.model.max_length], self.config.train.batch_tokens)

    def training_batches(self, pairs: list[SentencePair]) -> GapWindows:
        """Shuffled batches with new gaps in each epoch."""
        sentences, seed = encoded_sentences(self._words, pairs), self.config.seed
        layout = self._buckets(*self.config.data.bucket_lengths)
        return GapWindows(sentences, layout, Gaps(self._words, seed), seed=seed)

    def fixed_batches(self, pairs: list[SentencePair]) -> list[GapBatch]:
        """All sentences, whose gaps are always the same."""
        sentences = encoded_sentences(self._words, pairs)
        gaps = Gaps(self._words, self.config.data.seed)
        return list(fixed_gaps(sentences, self._buckets(), gaps))

    def measure(
        self, state: TrainState, splits: Mapping[str, list[SentencePair]]
    ) -> dict[str, dict[str, float]]:
        """What it puts into gaps, and what its vectors know of the senses of words."""
        losses = self.learner.losses(state.parameters, self.fixed_batches(splits["test"]))
        learned, asked = (self.senses(state, splits[split]) for split in ("train", "test"))
        return {
            "gaps": losses | {"perplexity": math.exp(losses["nll"])},
            "senses": sense_accuracy(learned, asked),
        }

    def senses(self, state: TrainState, pairs: list[SentencePair]) -> SenseVectors:
        """The vector of each occurrence of a word that has several senses."""
        found = occurrences(pairs)
        wanted = sorted({one.sentence for one in found})
        vectors: dict[int, np.ndarray] = {}
        sentences = encoded_sentences(self._words, [pairs[i] for i in wanted])
        for members, batch in once(sentences, self._buckets()):
            read = np.asarray(self._encode(state.parameters, batch.source, batch.source_lengths))
            vectors |= {wanted[i]: row for i, row in zip(members, read, strict=False)}
        return SenseVectors.of(found, [vectors[one.sentence][one.place] for one in found])

    def sample(self, state: TrainState, pairs: list[SentencePair]) -> str:
        """A few sentences, and what the model puts into their gaps."""
        batch = self.fixed_batches(pairs)[0]
        said = np.asarray(self._fill(state.parameters, batch.inputs, batch.lengths))
        names = [*self._words.words, "___"]
        lines = []
        for row in range(min(3, len(batch.inputs))):
            places = range(batch.lengths[row] - 1)  # without the end
            gap, filled = batch.inputs[row], np.where(batch.counted[row], said[row], 0)
            lines.append("  " + " ".join(names[gap[place]] for place in places))
            lines.append(
                "  → "
                + ", ".join(
                    f"{names[filled[place]]} (was {names[batch.labels[row][place]]})"
                    for place in places
                    if batch.counted[row][place]
                )
            )
        return "\n".join(lines)
