"""Masked language modelling: an encoder fills gaps; its vectors distinguish senses."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import Array

from attention.modules import MaskedLanguageModel
from attention.primitives import masks
from experiments.analysis.collect import Example
from experiments.analysis.senses import sense_scores
from experiments.config.parts import EncoderModel, LabelTrainPart, SentenceBatchPart
from experiments.data.masking import MaskedBatch, MaskedBatches
from experiments.data.packing import Batch
from experiments.data.pipeline import Buckets, ShuffledBatches, SortedBatches
from experiments.data.tokenizers import EOS, SPECIALS, EncodedExamples, EncodedPair
from experiments.learner import TrainState
from experiments.registry import TaskParts, task
from experiments.tasks.prediction import Prediction, Sentence, read_sentence
from experiments.tasks.task import Losses, Scores, Task

SAMPLED = 3  # sentences of a sample
BEST = 5  # words that are listed for a gap


@task(
    "masked_language_model",
    TaskParts(("text",), {"transformer": EncoderModel}, SentenceBatchPart, LabelTrainPart),
)
class MaskedLanguageModeling(Task[MaskedBatch]):
    """An encoder that reads the sources of examples, with gaps in them."""

    only_test = True

    @property
    def gap(self) -> int:
        """Id of a gap, the last token of the model."""
        return len(self.tokenizers.source)

    def model(self, rngs: nnx.Rngs) -> MaskedLanguageModel:
        """As in `Task`."""
        settings = self.config.model
        return MaskedLanguageModel.from_config(settings, vocab_size=self.gap + 1, rngs=rngs)

    def _layout(self, *lengths: int) -> Buckets[Batch]:
        return Buckets([*lengths, self.config.model.max_length], self.config.batch.tokens)

    def training_batches(self) -> MaskedBatches:
        """Shuffled batches with new gaps in each epoch."""
        lengths, seed = self.config.batch.bucket_lengths, self.config.seed
        batches = ShuffledBatches(self.ids("train"), self._layout(*lengths), seed=seed)
        return MaskedBatches(batches, self.gap, seed)

    def batches(self, split: str) -> MaskedBatches:
        """As in `Task`; the gaps are always the same."""
        return MaskedBatches(SortedBatches(self.ids(split), self._layout()), self.gap)

    def loss(self, model: MaskedLanguageModel, batch: MaskedBatch, rng: Array | None) -> Losses:
        """As in `Task`."""
        mask = masks.lengths(batch.lengths)
        output = model(batch.inputs, mask=mask, rng=rng, **self.on_mesh)
        objective = self.objective(training=rng is not None)
        return objective(output.logits, batch.labels, batch.counted), output.losses

    def measure(self, state: TrainState, split: str) -> tuple[Scores, Sequence[str]]:
        """Measure the gaps, and on the test split of toy data the senses of words."""
        scores, _ = super().measure(state, split)
        if self.source.has_phenomena and split == "test":
            program = self.learner.apply(
                lambda model, tokens, lengths: (
                    model.encode(tokens, mask=masks.lengths(lengths)).features
                )
            )

            def encode(part: str, numbers: Sequence[int]) -> list[np.ndarray]:
                return self._rows(program, state, [self.ids(part)[number] for number in numbers])

            scores["senses"] = sense_scores(self.examples, encode)
        return scores, ()

    @cached_property
    def _fill(self) -> Callable[..., Any]:
        words = slice(len(SPECIALS), self.gap)

        def best(model: MaskedLanguageModel, tokens: Array, lengths: Array) -> tuple[Array, Array]:
            probabilities = nnx.softmax(model(tokens, mask=masks.lengths(lengths)).logits)
            return jax.lax.top_k(probabilities[..., words], min(BEST, words.stop - words.start))

        return self.learner.apply(best)

    def _rows(
        self, program: Callable[..., Any], state: TrainState, sentences: Sequence[EncodedPair]
    ) -> list[Any]:
        """Return what a program of `learner.apply` computes of each sentence."""
        rows: dict[int, Any] = {}
        batches = SortedBatches(EncodedExamples(sentences), self._layout()) if sentences else ()
        for number, batch in enumerate(batches):
            results = program(state.parameters, batch.source, batch.source_lengths)
            results = jax.tree.map(np.asarray, results)
            for row, member in enumerate(batches.members(number)):
                rows[member] = jax.tree.map(lambda array, row=row: array[row], results)
        return [rows[member] for member in range(len(sentences))]

    def read(self, line: str) -> Sentence:
        """Read a line in which each `_` marks a gap of one token."""
        if "_" not in line:
            raise ValueError("the line has no gap: type _ for each word that is to be found")
        return self._sentence(line)

    def _sentence(self, text: str) -> Sentence:
        longest = self.config.model.max_length - 1
        return read_sentence(self.tokenizers.source, text, longest=longest, gap=self.gap)

    def answers(self, state: TrainState, inputs: Sequence[Sentence]) -> Iterator[Prediction]:
        """Fill the gaps of each line."""
        ranked = self._rows(self._fill, state, [EncodedPair(sentence.ids) for sentence in inputs])
        for sentence, best in zip(inputs, ranked, strict=True):
            yield self._prediction(sentence, *best)

    def _prediction(
        self, sentence: Sentence, probabilities: np.ndarray, words: np.ndarray
    ) -> Prediction:
        """Return the line with the most probable words; arrays `[S, BEST]`."""
        tokenizer, choices = self.tokenizers.source, []
        for place, number in enumerate(sentence.ids):
            if number == self.gap:
                names = [tokenizer.decode([word + len(SPECIALS)]).strip() for word in words[place]]
                ranked = zip(names, probabilities[place].tolist(), strict=True)
                choices.append((place, [*ranked]))
        best = iter([ranked[0][0] for _, ranked in choices])
        text = re.sub("_+", lambda _: next(best), sentence.text)
        gaps = [[{"word": word, "probability": p} for word, p in ranked] for _, ranked in choices]
        details = {"text": text, "gaps": gaps}
        return Prediction([text], lambda: details, sentence.note(tokenizer), choices=choices)

    def example(self, state: TrainState, source: str, target: str | None = None) -> Example:
        """As in `Task`; `_` marks a gap."""
        tokenizer, sentence = self.tokenizers.source, self._sentence(source)
        gaps = {place: "_" for place, number in enumerate(sentence.ids) if number == self.gap}
        shown = sentence._replace(unknown={**sentence.unknown, **gaps})
        return Example(
            {"encoder": np.array([*sentence.ids, EOS])},
            {"encoder": [*shown.tokens(tokenizer), SPECIALS[EOS]]},
            {"encoder": (0, 1)},
            unknown={"encoder": [*sentence.unknown]},
        )

    def sample(self, state: TrainState) -> str:
        """Fill a gap in place of the first word of a few validation sentences."""
        sources = [example.source for example in self.examples("validation")[:SAMPLED]]
        gapped = [re.sub(r"\S+", "_", source, count=1) for source in sources]
        lines = zip(sources, self.predict(state, gapped), strict=True)
        return "\n".join(f"  {source}\n  → {''.join(filled.text)}" for source, filled in lines)
