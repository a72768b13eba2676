"""Masked language modelling: an encoder fills gaps; its vectors distinguish senses."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import Array

from attention.modules import MaskedLanguageModel, Output
from attention.primitives import masks
from experiments.analysis.collect import Example
from experiments.analysis.senses import (
    SenseVectors,
    check_senses,
    occurrences,
    sense_accuracy,
)
from experiments.config.data import SentenceBatchPart
from experiments.config.model import EncoderModel
from experiments.config.train import LabelTrainPart
from experiments.data.masking import FixedMasks, MaskedBatch, MaskedWindows, Masking
from experiments.data.rows import Batch, Encoded, EncodedPair
from experiments.data.vocabulary import EOS, SPECIALS
from experiments.data.windows import Buckets, Once
from experiments.inference.prediction import Choice, Prediction
from experiments.inference.sentence import Sentence, read_sentence
from experiments.losses import TokenLosses
from experiments.registry import TaskParts, task
from experiments.tasks.task import Measured, Task
from experiments.training.step import TrainState

SAMPLED = 3  # sentences of a sample
BEST = 5  # words that are listed for a gap


@task(
    "masked_language_model",
    TaskParts(
        reads=("text",),
        models={"transformer": EncoderModel},
        batch=SentenceBatchPart,
        train=LabelTrainPart,
    ),
)
class MaskedLanguageModeling(Task[MaskedBatch]):
    """An encoder that reads the sources of examples, with gaps in them."""

    has_targets = False
    test_splits = ("test",)

    def model(self, rngs: nnx.Rngs) -> MaskedLanguageModel:
        """As in `Task`; the last token is the gap."""
        size = len(self.tokenizers.source) + 1
        return MaskedLanguageModel.from_config(self.config.model, vocab_size=size, rngs=rngs)

    def _layout(self, *lengths: int) -> Buckets[Batch]:
        return Buckets([*lengths, self.config.model.max_length], self.config.batch.tokens)

    def _masking(self, seed: int) -> Masking:
        return Masking(len(self.tokenizers.source), seed)

    def training_batches(self) -> MaskedWindows:
        """Shuffled batches with new gaps in each epoch."""
        if self.source.has_phenomena:
            check_senses(self.examples("train"), self.examples("test"))
        layout, seed = self._layout(*self.config.batch.bucket_lengths), self.config.seed
        return MaskedWindows(self.ids("train"), layout, self._masking(seed), seed=seed)

    def batches(self, split: str) -> FixedMasks:
        """As in `Task`; the gaps are always the same."""
        return FixedMasks(self.ids(split), self._layout(), self._masking(0))

    def loss(
        self, model: MaskedLanguageModel, batch: MaskedBatch, rng: Array | None
    ) -> tuple[TokenLosses, Mapping[str, Array]]:
        """As in `Task`."""
        mask = masks.lengths(batch.lengths)
        output = model(batch.inputs, mask=mask, rng=rng, **self.on_mesh)
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
        words = slice(len(SPECIALS), len(self.tokenizers.source))

        def best(model: MaskedLanguageModel, tokens: Array, lengths: Array) -> tuple[Array, Array]:
            probabilities = nnx.softmax(model(tokens, mask=masks.lengths(lengths)).logits)
            return jax.lax.top_k(probabilities[..., words], min(BEST, words.stop - words.start))

        return self.learner.apply(best)

    def read(self, line: str) -> tuple[str, Sentence]:
        """Read a line in which each `_` marks a gap of one token."""
        if "_" not in line:
            raise ValueError("the line has no gap: type _ for each word that is to be found")
        return line, self._sentence(line)

    def _sentence(self, text: str) -> Sentence:
        """Read a text in which `_` marks a gap, whose id follows those of all tokens."""
        tokenizer, longest = self.tokenizers.source, self.config.model.max_length - 1
        return read_sentence(tokenizer, text, longest=longest, gap=len(tokenizer))

    def answers(
        self, state: TrainState, inputs: Sequence[tuple[str, Sentence]]
    ) -> Iterator[Prediction]:
        """Fill the gaps of each line."""
        rows: dict[int, list[np.ndarray]] = {}
        examples = Encoded(EncodedPair(sentence.ids) for _, sentence in inputs)
        batches = Once(examples, self._layout()) if examples else ()
        for number, batch in enumerate(batches):
            best = self._fill(state.parameters, batch.source, batch.source_lengths)
            best = zip(batches.members(number), *map(np.asarray, best), strict=False)
            rows |= {member: [*each] for member, *each in best}
        for number, (line, sentence) in enumerate(inputs):
            yield self._prediction(line, sentence, *rows[number])

    def _prediction(
        self, line: str, sentence: Sentence, probabilities: np.ndarray, words: np.ndarray
    ) -> Prediction:
        """Return the line with the most probable words; arrays `[S, BEST]`."""
        tokenizer = self.tokenizers.source
        choices = [
            Choice(
                place,
                [
                    (tokenizer.decode([word + len(SPECIALS)]).strip(), float(p))
                    for word, p in zip(words[place], probabilities[place], strict=True)
                ],
            )
            for place, number in enumerate(sentence.ids)
            if number == len(tokenizer)
        ]
        best = iter([choice.candidates[0][0] for choice in choices])
        text = re.sub("_+", lambda _: next(best), line)

        def details() -> dict[str, Any]:
            gaps = [
                [{"word": word, "probability": p} for word, p in choice.candidates]
                for choice in choices
            ]
            return {"text": text, "gaps": gaps}

        return Prediction([text], details, sentence.note(tokenizer), choices=choices)

    def example(self, state: TrainState, source: str, target: str | None = None) -> Example:
        """As in `Task`; `_` marks a gap."""
        del state, target
        tokenizer, sentence = self.tokenizers.source, self._sentence(source)
        labels = [
            "_"
            if number == len(tokenizer)
            else sentence.unknown.get(place, tokenizer.token(number))
            for place, number in enumerate(sentence.ids)
        ]
        return Example(
            {"encoder": np.array([*sentence.ids, EOS])},
            {"encoder": [*labels, SPECIALS[EOS]]},
            {"encoder": (0, 1)},
            unknown={"encoder": [*sentence.unknown]},
        )

    def encoder_predictions(
        self, state: TrainState, sources: Sequence[str]
    ) -> Iterator[Prediction]:
        """As in `Task`; a text without a gap has no choices."""
        return self.answers(state, [(source, self._sentence(source)) for source in sources])

    def attended(
        self,
        model: MaskedLanguageModel,
        inputs: Mapping[str, Array],
        lengths: Mapping[str, Array],
        returning: Sequence[str] = (),
    ) -> Mapping[str, Output]:
        """As in `Task`."""
        mask = masks.lengths(lengths["encoder"])
        return {"encoder": model(inputs["encoder"], mask=mask, returning=returning)}

    def senses(self, state: TrainState, split: str) -> SenseVectors:
        """Return the vector of each occurrence of a word that has several senses."""
        found, ids = occurrences(self.examples(split)), self.ids(split)
        wanted = sorted({one.sentence for one in found})
        vectors: dict[int, np.ndarray] = {}
        batches = Once(Encoded(ids[number] for number in wanted), self._layout())
        for number, batch in enumerate(batches):
            read = np.asarray(self._encode(state.parameters, batch.source, batch.source_lengths))
            found_here = zip(batches.members(number), read, strict=False)
            vectors |= {wanted[member]: row for member, row in found_here}
        return SenseVectors.of(found, [vectors[one.sentence][one.place] for one in found])

    def sample(self, state: TrainState) -> str:
        """Fill a gap in the middle of a few validation sentences."""
        lines = []
        for example in self.examples("validation")[:SAMPLED]:
            if not (words := example.source.split()):
                continue
            middle = len(words) // 2
            line = " ".join([*words[:middle], "_", *words[middle + 1 :]])
            (found,) = self.predict(state, [line])
            answer = "".join(found.text) or found.error
            lines += [f"  {line}", f"  → {answer} (was {words[middle]})"]
        return "\n".join(lines)
