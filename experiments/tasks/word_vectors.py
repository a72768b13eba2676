"""Word vectors: one for each word, learned from its neighbours, whatever the sentence."""

from collections.abc import Iterator, Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from attention.modules.layers import rows, table
from experiments.analysis.senses import (
    SenseVectors,
    check_senses,
    neighbour_mean,
    occurrences,
    sense_accuracy,
)
from experiments.config.data import SkipGramBatchPart
from experiments.config.model import SkipGramModel
from experiments.config.train import TrainPart
from experiments.data.skip_grams import SkipGramBatch, SkipGramBatches
from experiments.data.vocabulary import SPECIALS
from experiments.inference.prediction import Prediction
from experiments.losses import TokenLosses, negative_sampling_losses
from experiments.processes import gather_to_host
from experiments.registry import TaskParts, task
from experiments.tasks.task import Measured, Task
from experiments.training.step import TrainState

SHOWN = ("bank", "girl", "happy", "Africa", "sees")  # a sample lists the nearest words of these
NEAREST = 5  # words that are listed
EVALUATED = 4  # batches of a split that are measured


class SkipGram(nnx.Module):
    """Score pairs of words as neighbours (Mikolov et al. 2013, "Distributed representations").

    Each word has one vector as a center and one as a neighbour. The vectors of centers are the word
    vectors.
    """

    def __init__(self, vocab_size: int, width: int, *, rngs: nnx.Rngs) -> None:
        """Make both tables, `[V, D]`."""
        self.centers = table((vocab_size, width), ("vocab", "embed"), rngs=rngs)
        self.neighbours = table((vocab_size, width), ("vocab", "embed"), rngs=rngs)

    def __call__(self, center: Array, others: Array) -> Array:
        """Return the logits `[..., M]` of equation 4, of ids `[...]` and `[..., M]`."""
        center, others = rows(self.centers[...], center), rows(self.neighbours[...], others)
        return jnp.einsum("...D,...MD->...M", center, others)


@task(
    "word_vectors",
    TaskParts(
        reads=("text",),
        models={"skip_gram": SkipGramModel},
        batch=SkipGramBatchPart,
        train=TrainPart,
    ),
)
class WordVectors(Task[SkipGramBatch]):
    """Skip-grams with negative sampling of the sources of examples."""

    has_perplexity = False

    has_targets = False
    test_splits = ("test",)

    def model(self, rngs: nnx.Rngs) -> SkipGram:
        """As in `Task`."""
        return SkipGram(len(self.tokenizers.source), self.config.model.width, rngs=rngs)

    def training_batches(self) -> SkipGramBatches:
        """Skip-grams, drawn at random."""
        if self.source.has_phenomena:
            check_senses(self.examples("train"), self.examples("test"))
        return self._skip_grams("train", self.config.seed)

    def batches(self, split: str) -> list[SkipGramBatch]:
        """A few batches that are always the same."""
        found = self._skip_grams(split, seed=0)
        return [found[number] for number in range(EVALUATED)]

    def _skip_grams(self, split: str, seed: int) -> SkipGramBatches:
        batch, ids = self.config.batch, self.ids(split)
        return SkipGramBatches(
            ids.ids,
            ids.ends[:, 0],
            vocab_size=len(self.tokenizers.source),
            window=batch.window,
            threshold=batch.threshold,
            size=batch.size,
            negatives=batch.negatives,
            seed=seed,
        )

    def loss(
        self, model: SkipGram, batch: SkipGramBatch, rng: Array | None
    ) -> tuple[TokenLosses, Mapping[str, Array]]:
        """As in `Task`; the model has no dropout."""
        del rng
        return negative_sampling_losses(model(batch.center, batch.others), batch.counted), {}

    def vectors(self, state: TrainState) -> np.ndarray:
        """Return the vector of each word, `[V, D]`."""
        parameters = gather_to_host(state.parameters)
        return np.asarray(nnx.merge(self.learner.definition, parameters).centers[...])

    def measure(self, state: TrainState, split: str) -> Measured:
        """Measure the loss, and on the test split of toy data the senses of words.

        A probe finds them from the vector of a word, and from those of its neighbours.
        """
        scores = {split: self.losses(state, split)}
        if self.source.has_phenomena and split == "test":
            for name, window in (("word", 0), ("neighbours", self.config.batch.window)):
                learned, asked = (self.senses(state, each, window) for each in ("train", "test"))
                scores[name] = sense_accuracy(learned, asked)
        return Measured(scores)

    def senses(self, state: TrainState, split: str, window: int) -> SenseVectors:
        """Return a vector for each occurrence of a word that has several senses.

        Args:
            state: of the model.
            split: of the data.
            window: 0 for the vector of the word, else the mean of those around it.
        """
        found, ids, vectors = (
            occurrences(self.examples(split)),
            self.ids(split),
            self.vectors(state),
        )
        rows = []
        for one in found:
            read = vectors[ids[one.sentence].source]
            rows.append(neighbour_mean(read, one.place, window) if window else read[one.place])
        return SenseVectors.of(found, rows)

    def read(self, line: str) -> tuple[str, list[int]]:
        """Read a word, or several words."""
        if not (ids := self.tokenizers.source.read(line)):
            raise ValueError("the line has no word")
        return line, ids

    def answers(
        self, state: TrainState, inputs: Sequence[tuple[str, list[int]]]
    ) -> Iterator[Prediction]:
        """List the nearest words by the cosine of vectors; of several words, of their mean."""
        tokenizer, vectors = self.tokenizers.source, self.vectors(state)
        vectors = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)

        def answer(line: str, ids: list[int]) -> Prediction:
            mean = vectors[ids].mean(axis=0)
            cosines = vectors @ mean / np.linalg.norm(mean)
            others = [i for i in np.argsort(-cosines) if i >= len(SPECIALS) and i not in ids]
            near = [
                {"word": tokenizer.token(i), "cosine": float(cosines[i])} for i in others[:NEAREST]
            ]
            text = f"{line.strip()}: {', '.join(each['word'] for each in near)}"
            return Prediction([text], lambda: {"text": line, "nearest": near})

        return (answer(*each) for each in inputs)

    def sample(self, state: TrainState) -> str:
        """List the nearest words of a few."""
        found = self.predict(state, SHOWN)
        return "\n".join(f"  {piece}" for one in found for piece in one.text)
