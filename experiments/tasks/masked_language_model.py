"""Masked language modelling: an encoder fills gaps; its vectors distinguish senses."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from flax import nnx
from jax import Array

from attention.modules import MaskedLanguageModel
from attention.primitives import masks
from experiments.data.gaps import GapBatch, Gaps, GapWindows, fixed_gaps
from experiments.data.rows import Batch, Encoded
from experiments.data.windows import Buckets, once
from experiments.evaluation.word_senses import (
    SenseVectors,
    check_senses,
    occurrences,
    sense_accuracy,
)
from experiments.tasks.task import Measured, Task
from experiments.training.loss import TokenLosses
from experiments.training.step import TrainState

SAMPLED = 3  # sentences of a sample


class MaskedLanguageModeling(Task[GapBatch]):
    """An encoder that reads the sources of examples, with gaps in them."""

    tests = ("test",)

    def model(self, rngs: nnx.Rngs) -> MaskedLanguageModel:
        """As in `Task`; the last token is the gap."""
        size = len(self.tokenizers.source) + 1
        return MaskedLanguageModel.from_config(
            self.config.model.library(), vocab_size=size, rngs=rngs
        )

    def _layout(self, *lengths: int) -> Buckets[Batch]:
        return Buckets([*lengths, self.config.model.max_length], self.config.batch.tokens)

    def _gaps(self, seed: int) -> Gaps:
        return Gaps(len(self.tokenizers.source), seed)

    def training_batches(self) -> GapWindows:
        """Shuffled batches with new gaps in each epoch."""
        if self.source.has_phenomena:
            check_senses(self.examples("train"), self.examples("test"))
        layout, seed = self._layout(*self.config.batch.bucket_lengths), self.config.seed
        return GapWindows(self.ids("train"), layout, self._gaps(seed), seed=seed)

    def batches(self, split: str) -> list[GapBatch]:
        """As in `Task`; the gaps are always the same."""
        return [*fixed_gaps(self.ids(split), self._layout(), self._gaps(0))]

    def loss(
        self, model: MaskedLanguageModel, batch: GapBatch, rng: Array | None
    ) -> tuple[TokenLosses, Mapping[str, Array]]:
        """As in `Task`."""
        output = model(batch.inputs, mask=masks.lengths(batch.lengths), rng=rng)
        objective = self.objective(training=rng is not None)
        return objective(output.logits, batch.labels, batch.counted), output.losses

    def measure(self, state: TrainState, split: str) -> Measured:
        """Measure the gaps, and on the test split of toy data the senses of words."""
        scores = {split: self.losses(state, split)}
        if self.source.has_phenomena and split == "test":
            learned, asked = (self.senses(state, each) for each in ("train", "test"))
            scores["senses"] = sense_accuracy(learned, asked)
        return Measured(scores)

    @cached_property
    def _encode(self) -> Any:  # noqa: ANN401 - a jitted function
        return self.learner.apply(
            lambda model, tokens, lengths: (
                model.encode(tokens, mask=masks.lengths(lengths)).features
            )
        )

    @cached_property
    def _fill(self) -> Any:  # noqa: ANN401 - a jitted function
        return self.learner.apply(
            lambda model, tokens, lengths: model(tokens, mask=masks.lengths(lengths)).logits.argmax(
                -1
            )
        )

    def senses(self, state: TrainState, split: str) -> SenseVectors:
        """Return the vector of each occurrence of a word that has several senses."""
        found, ids = occurrences(self.examples(split)), self.ids(split)
        wanted = sorted({one.sentence for one in found})
        vectors: dict[int, np.ndarray] = {}
        for members, batch in once(Encoded(ids[number] for number in wanted), self._layout()):
            read = np.asarray(self._encode(state.parameters, batch.source, batch.source_lengths))
            vectors |= {wanted[i]: row for i, row in zip(members, read, strict=False)}
        return SenseVectors.of(found, [vectors[one.sentence][one.place] for one in found])

    def sample(self, state: TrainState) -> str:
        """Fill the gaps of a few validation sentences."""
        batch = self.batches("validation")[0]
        filled = np.asarray(self._fill(state.parameters, batch.inputs, batch.lengths))
        lines = []
        for row in range(min(SAMPLED, len(batch.inputs))):
            places = range(batch.lengths[row] - 1)  # without the end
            answers = [
                f"{self._word(filled[row][place])} (was {self._word(batch.labels[row][place])})"
                for place in places
                if batch.counted[row][place]
            ]
            lines.append("  " + " ".join(map(self._word, batch.inputs[row][: len(places)])))
            lines.append(f"  → {', '.join(answers)}")
        return "\n".join(lines)

    def _word(self, number: int) -> str:
        tokenizer = self.tokenizers.source
        return "___" if number == len(tokenizer) else tokenizer.token(number)
