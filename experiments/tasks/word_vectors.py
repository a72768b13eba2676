"""Word vectors: one for each word, learned from its neighbours, whatever the sentence."""

from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from attention.modules.layers import make_table, take_rows
from experiments.analysis.senses import neighbour_mean, sense_scores
from experiments.config.parts import SkipGramBatchPart, SkipGramModel, TrainPart
from experiments.data.skip_grams import SkipGramBatch, SkipGramBatches
from experiments.data.tokenizers import SPECIALS
from experiments.learner import TrainState
from experiments.losses import negative_sampling_losses
from experiments.registry import TaskParts, task
from experiments.sharding import gather_to_host
from experiments.tasks.prediction import Prediction, Sentence
from experiments.tasks.task import Losses, Scores, Task

SHOWN = ("bank", "girl", "happy", "Africa", "sees")  # a sample lists the nearest words of these
NEAREST = 5  # words that are listed
EVALUATED = 4  # batches of a split that are measured


class SkipGram(nnx.Module):
    """Score pairs of words as neighbours (Mikolov et al. 2013, "Distributed representations").

    Each word has one vector as a center, the word vector, and one as a neighbour.
    """

    def __init__(self, vocab_size: int, width: int, *, rngs: nnx.Rngs) -> None:
        """Make both tables, `[V, D]`."""
        self.centers = make_table((vocab_size, width), ("vocab", "embed"), rngs=rngs)
        self.neighbours = make_table((vocab_size, width), ("vocab", "embed"), rngs=rngs)

    def __call__(self, center: Array, others: Array) -> Array:
        """Return the logits `[..., M]` of equation 4, of ids `[...]` and `[..., M]`."""
        center = take_rows(self.centers[...], center)
        others = take_rows(self.neighbours[...], others)
        return jnp.einsum("...D,...MD->...M", center, others)


@task(
    "word_vectors",
    TaskParts(("text",), {"skip_gram": SkipGramModel}, SkipGramBatchPart, TrainPart),
)
class WordVectors(Task[SkipGramBatch]):
    """Skip-grams with negative sampling of the sources of examples."""

    only_test = True
    has_perplexity = False

    def model(self, rngs: nnx.Rngs) -> SkipGram:
        """As in `Task`."""
        return SkipGram(len(self.tokenizers.source), self.config.model.width, rngs=rngs)

    def training_batches(self) -> SkipGramBatches:
        """Skip-grams, drawn at random."""
        return self._skip_grams("train", self.config.seed)

    def batches(self, split: str) -> list[SkipGramBatch]:
        """A few batches that are always the same."""
        skip_grams = self._skip_grams(split, seed=0)
        return [skip_grams[number] for number in range(EVALUATED)]

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

    def loss(self, model: SkipGram, batch: SkipGramBatch, rng: Array | None) -> Losses:
        """As in `Task`; the model has no dropout."""
        return negative_sampling_losses(model(batch.center, batch.others), batch.counted), {}

    def vectors(self, state: TrainState) -> np.ndarray:
        """Return the vector of each word, `[V, D]`."""
        parameters = gather_to_host(state.parameters)
        return np.asarray(nnx.merge(self.learner.definition, parameters).centers[...])

    def measure(self, state: TrainState, split: str) -> tuple[Scores, Sequence[str]]:
        """Measure the loss, and on the test split of toy data the senses of words.

        A probe finds them from the vector of a word, and from those of its neighbours.
        """
        scores, _ = super().measure(state, split)
        if self.source.has_phenomena and split == "test":
            vectors, window = self.vectors(state), self.config.batch.window

            def encode(part: str, numbers: Sequence[int]) -> list[np.ndarray]:
                return [vectors[self.ids(part)[number].source] for number in numbers]

            def encode_neighbours(part: str, numbers: Sequence[int]) -> list[np.ndarray]:
                return [
                    np.stack([neighbour_mean(words, place, window) for place in range(len(words))])
                    for words in encode(part, numbers)
                ]

            scores["word"] = sense_scores(self.examples, encode)
            scores["neighbours"] = sense_scores(self.examples, encode_neighbours)
        return scores, ()

    def read(self, line: str) -> Sentence:
        """Read a word, or several words."""
        if not (ids := self.tokenizers.source.read(line)):
            raise ValueError("the line has no word")
        return Sentence(ids, text=line)

    def answers(self, state: TrainState, inputs: Sequence[Sentence]) -> Iterator[Prediction]:
        """List the nearest words by the cosine of vectors; of several words, of their mean."""
        tokenizer, vectors = self.tokenizers.source, self.vectors(state)
        vectors = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
        for ids, _, line, _ in inputs:
            mean = vectors[ids].mean(axis=0)
            cosines = vectors @ mean / np.linalg.norm(mean)
            others = [i for i in np.argsort(-cosines) if i >= len(SPECIALS) and i not in ids]
            near = {tokenizer.token(i): float(cosines[i]) for i in others[:NEAREST]}
            nearest = [{"word": word, "cosine": cosine} for word, cosine in near.items()]
            details = {"text": line, "nearest": nearest}
            yield Prediction([f"{line.strip()}: {', '.join(near)}"], lambda value=details: value)

    def sample(self, state: TrainState) -> str:
        """List the nearest words of a few."""
        return "\n".join(f"  {''.join(line.text)}" for line in self.predict(state, SHOWN))
