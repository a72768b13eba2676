"""Word vectors: one for each word, learned from its neighbours, whatever the sentence."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from attention.modules.skip_gram import SkipGram
from experiments.data.pairs import SentencePair
from experiments.data.sequences import toy
from experiments.data.skip_grams import (
    SkipGramBatch,
    SkipGramBatches,
    keep_probabilities,
    noise,
    skip_grams,
    subsample,
)
from experiments.data.vocabulary import SPECIALS, Vocabulary
from experiments.data.words import tokenize
from experiments.errors import UsageError, as_usage_errors, check_at_least
from experiments.evaluation.word_senses import (
    SenseVectors,
    check_senses,
    neighbour_mean,
    occurrences,
    sense_accuracy,
)
from experiments.training.duration import settled
from experiments.training.learner import Learner
from experiments.training.loss import TokenLosses, negative_sampling_losses
from experiments.training.session import check_training, evaluate_in, measured, train_in
from experiments.training.step import TrainState
from experiments.workdir import Workdir

SHOWN = ("bank", "girl", "happy", "Africa", "sees")  # whose nearest words are a sample


def train(config: ConfigDict, workdir: Workdir, cache: Path) -> None:
    """Trains word vectors, or goes on with them, and measures what they know of senses.

    Args:
        config: of the run, as `check` passes it.
        workdir: where all that the run makes goes.
        cache: where generated data is kept.
    """
    splits = toy.load_splits(config.data, cache)
    check_senses(splits["train"], splits["test"])
    words = Vocabulary.of(tokenize(pair.source) for pair in splits["train"])
    config = settled(config, lambda now: Task(now, words).batches(splits["train"], 0).epoch)
    task = Task(config, words)
    batches = task.batches(splits["train"], config.seed)
    workdir.claim(config)
    workdir.keep_vocabulary(words.as_text())
    train_in(
        workdir,
        task.learner,
        batches,
        validation=task.fixed_batches(splits["validation"]),
        sample=task.sample,
        measure=lambda state: task.measure(state, splits),
        config=config,
    )


def evaluate(config: ConfigDict, workdir: Workdir, cache: Path, split: str | None = None) -> None:
    """Measures the newest checkpoint of a run; its results file is written again.

    Raises:
        UsageError: another split than the one it is measured on.
    """
    measured(split, tests=("test",))
    task = Task(config, workdir.load_vocabulary(Vocabulary.from_text))
    splits = toy.load_splits(config.data, cache)
    measure = partial(task.measure, splits=splits)
    evaluate_in(workdir, task.learner, measure, config)


def check(config: ConfigDict) -> None:
    """Refuses, before anything is written, a configuration that cannot run.

    Raises:
        UsageError: in one sentence.
    """
    check_training(config)
    with as_usage_errors():
        toy.check(config.data)
        for name, value in (
            ("data.window", config.data.window),
            ("data.negatives", config.data.negatives),
            ("model.width", config.model.width),
            ("train.batch_size", config.train.batch_size),
        ):
            check_at_least(name, value, 1)
    if not 0 < config.data.threshold <= 1:
        raise UsageError(f"data.threshold must lie in (0, 1], got {config.data.threshold}")


class Task:
    """A configuration brought to life: the vectors, and what they know of words."""

    def __init__(self, config: ConfigDict, words: Vocabulary) -> None:
        """Builds everything but numbers: no parameter is allocated yet."""
        self.config = config
        self._words = words
        self.window = config.data.window
        self.learner = Learner(self._make_model, self._sum_losses, config)

    def _make_model(self, rngs: nnx.Rngs) -> SkipGram:
        return SkipGram(len(self._words), self.config.model.width, rngs=rngs)

    def _sum_losses(
        self, model: SkipGram, batch: SkipGramBatch, rng: Array | None
    ) -> tuple[TokenLosses, Mapping[str, Array]]:
        del rng  # the model has no dropout
        return negative_sampling_losses(model(batch.center, batch.others), batch.counted), {}

    def batches(self, pairs: list[SentencePair], seed: int) -> SkipGramBatches:
        """Skip-grams of the English sentences, drawn at random."""
        data = self.config.data
        sentences = [self._words.encode(tokenize(pair.source)) for pair in pairs]
        counts = np.bincount(np.concatenate(sentences), minlength=len(self._words))
        kept = subsample(sentences, keep_probabilities(counts, data.threshold), seed=data.seed)
        neighbours = skip_grams(kept, self.window)
        if not len(neighbours):
            raise UsageError(
                f"data.threshold={data.threshold} leaves no two words of a sentence: raise it"
            )
        return SkipGramBatches(
            neighbours,
            noise(counts),
            size=self.config.train.batch_size,
            negatives=data.negatives,
            seed=seed,
        )

    def fixed_batches(self, pairs: list[SentencePair]) -> list[SkipGramBatch]:
        """A few batches that are always the same."""
        batches = self.batches(pairs, self.config.data.seed)
        return [batches[number] for number in range(4)]

    def vectors(self, state: TrainState) -> np.ndarray:
        """The vector of each word, `[V, D]`."""
        return np.asarray(nnx.merge(self.learner.definition, state.parameters).centers[...])

    def measure(
        self, state: TrainState, splits: Mapping[str, list[SentencePair]]
    ) -> dict[str, dict[str, float]]:
        """What vectors of words, and those of their neighbours, know of senses."""
        vectors = self.vectors(state)
        return {
            name: sense_accuracy(
                *(self.senses(vectors, splits[split], window) for split in ("train", "test"))
            )
            for name, window in (("word", 0), ("neighbours", self.window))
        }

    def senses(self, vectors: np.ndarray, pairs: list[SentencePair], window: int) -> SenseVectors:
        """What stands for each occurrence of a word that has several senses.

        Args:
            vectors: of the words, `[V, D]`.
            pairs: sentences.
            window: 0 for the vector of the word, else the mean of those around it.
        """
        found = occurrences(pairs)
        rows = []
        for one in found:
            read = vectors[self._words.encode(tokenize(pairs[one.sentence].source))]
            rows.append(neighbour_mean(read, one.place, window) if window else read[one.place])
        return SenseVectors.of(found, rows)

    def sample(self, state: TrainState) -> str:
        """The nearest words, by the cosine, of a few."""
        vectors = self.vectors(state)
        vectors = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
        lines = []
        for word in (word for word in SHOWN if word in self._words.ids):
            near = np.argsort(-vectors @ vectors[self._words.ids[word]])
            names = [self._words.words[i] for i in near if i >= len(SPECIALS)]
            lines.append(f"  {word}: {', '.join(names[1:6])}")
        return "\n".join(lines)
