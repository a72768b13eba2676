"""Translation, and every other task from a sequence to a sequence."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from flax import nnx
from jax import Array

from attention.modules import EncoderDecoder, Output, RecurrentEncoderDecoder
from attention.modules.context import add_losses
from attention.modules.layers import split_rng
from attention.primitives import masks
from experiments.analysis.attribution import Explainer
from experiments.analysis.collect import Example
from experiments.analysis.figures import maps_figure, save
from experiments.config.data import PairBatchPart
from experiments.config.model import EncoderDecoderModel, RecurrentModel, SearchPart
from experiments.config.train import LabelTrainPart
from experiments.data.examples import EncodedExamples, EncodedPair
from experiments.data.packing import Batch, PackedPairs, row_lengths
from experiments.data.pipeline import Buckets, PackedRows, ShuffledBatches, SortedBatches
from experiments.data.subwords import PairDropout
from experiments.data.tokenizers import BOS, EOS, PAD, SPECIALS
from experiments.errors import UsageError
from experiments.evaluation.phenomena import by_phenomenon
from experiments.learner import TrainState
from experiments.losses import TokenLosses, tiled_token_losses
from experiments.registry import TaskParts, task
from experiments.tasks.prediction import Prediction, Sentence, read_sentence, word_numbers
from experiments.tasks.task import Measured, Task, perplexity
from experiments.tasks.translator import Translator
from experiments.workdir import Workdir

ARCHITECTURES = {"transformer": EncoderDecoder, "recurrent": RecurrentEncoderDecoder}
REDRAWN = 8_192  # examples that subword dropout segments at once, some seconds before they are used
DRAWN = 7  # words of the sentence with a picture of its attention


@task(
    "translation",
    TaskParts(
        reads=("pairs",),
        models={"transformer": EncoderDecoderModel, "recurrent": RecurrentModel},
        batch=PairBatchPart,
        train=LabelTrainPart,
        decoding=SearchPart,
    ),
)
class Translation(Task[Batch | PackedPairs]):
    """An encoder-decoder, Transformer or recurrent."""

    sides = (0, 1)

    @cached_property
    def translator(self) -> Translator:
        """Translates by `config.decoding`."""
        model, decoding = self.config.model, self.config.decoding
        aligns = getattr(model, "attention", "") != "none"
        definition = self.learner.definition
        return Translator(definition, self.tokenizers, decoding, model.max_length, aligns)

    @cached_property
    def explainer(self) -> Explainer:
        """Computes attributions of the translations of the model."""
        return Explainer(self)

    def model(self, rngs: nnx.Rngs) -> nnx.Module:
        """As in `Task`."""
        return ARCHITECTURES[self.config.architecture].from_config(
            self.config.model,
            source_vocab_size=len(self.tokenizers.source),
            target_vocab_size=len(self.tokenizers.target),
            rngs=rngs,
        )

    def training_batches(self) -> ShuffledBatches[Batch | PackedPairs]:
        """Shuffled batches; with `text.dropout` each epoch is segmented anew."""
        config, ids, examples = self.config, self.ids("train"), self.examples("train")
        batch, longest = config.batch, config.model.max_length
        most = longest, longest
        if batch.packed:
            length = batch.row_length
            most = (length, length) if length else row_lengths(ids.lengths, longest)
            layout = PackedRows(most, batch.tokens)
        else:
            layout = Buckets([*batch.bucket_lengths, longest], batch.tokens)
        if config.text is None or not config.text.dropout:
            return ShuffledBatches(ids, layout, seed=config.seed)
        segment = PairDropout(self.tokenizers, config.text.dropout, most)

        def redraw(places: np.ndarray, random: np.random.Generator) -> EncodedExamples[EncodedPair]:
            plain = [ids[place] for place in places]
            return segment(examples.take(places.tolist()), plain, random)

        return ShuffledBatches(ids, layout, seed=config.seed, block=REDRAWN, redraw=redraw)

    def batches(self, split: str) -> SortedBatches[Batch | PackedPairs]:
        """As in `Task`, in few shapes: compiling takes more time than a little padding."""
        batch, longest = self.config.batch, self.config.model.max_length
        layout = Buckets([max(batch.bucket_lengths), longest], batch.tokens)
        if batch.packed:
            layout = PackedRows((longest, longest), batch.tokens)
        return SortedBatches(self.ids(split), layout)

    def loss(
        self, model: EncoderDecoder, batch: Batch | PackedPairs, rng: Array | None
    ) -> tuple[TokenLosses, Mapping[str, Array]]:
        """As in `Task`."""
        output = pair_features(model, batch, rng, **self.on_mesh)
        labels = batch.target.labels if isinstance(batch, PackedPairs) else batch.target_labels
        objective = self.objective(training=rng is not None)
        sums = tiled_token_losses(model.logits, output.features, labels, labels != PAD, objective)
        return sums, output.losses

    def measure(self, state: TrainState, split: str) -> Measured:
        """Measure loss and translations, and of the toy test split the phenomena too."""
        answers, scores = self.answer_split(state, split), self.losses(state, split)
        scores |= self.answer_scores(answers, split, self.config.decoding.metrics)
        parts: dict[str, dict[str, Any]] = {}
        if split == "test" and self.source.has_phenomena:
            parts = by_phenomenon([*self.examples(split)], answers)
        return Measured({split: scores, **parts}, answers)

    def answer_split(self, state: TrainState, split: str, number: int | None = None) -> list[str]:
        """As in `Task`; an unknown word of the data has a token."""
        sources = [pair.source for pair in self.examples(split)[:number]]
        return self.translator(state.parameters, sources, batch_size=self.sentences_at_once)

    def losses(self, state: TrainState, split: str) -> dict[str, float]:
        """As in `Task`, and perplexity per word where tokens are not words.

        The fewer words a token is, the lower its perplexity: only that of words, ends included,
        compares models with different vocabularies. With subwords it is an upper bound, for a word
        has other segmentations too.
        """
        losses = super().losses(state, split)
        tokens = int(self.ids(split).lengths[:, 1].sum())
        words = sum(len(pair.target.split()) + 1 for pair in self.examples(split))
        per_word = losses["nll"] * tokens / words
        return losses if tokens == words else losses | perplexity("word_perplexity", per_word)

    def example(self, state: TrainState, source: str, target: str | None = None) -> Example:
        """As in `Task`; the target is the translation of the model if None."""
        if target is None:
            ids = [self.read(source).ids]
            (said,) = self.translator.translate_ids(state.parameters, ids, batch_size=1)
            return self.translated(source, said)
        if not target.strip():
            return self.translated(source, [EOS])
        tokenizer = self.tokenizers.target
        written = read_sentence(tokenizer, target, longest=self.config.model.max_length - 1)
        example, tokens = self.translated(source, [*written.ids, EOS]), written.tokens(tokenizer)
        return example._replace(
            labels=example.labels | {"decoder": [SPECIALS[BOS], *tokens]},
            predicted=[*tokens, tokenizer.token(EOS)],
            words=example.words | {"decoder": word_numbers(tokenizer, target)},
            unknown=example.unknown | {"decoder": [1 + place for place in written.unknown]},
        )

    def translated(self, source: str, ids: Sequence[int]) -> Example:
        """Return what the model reads of a source, and of the ids of a translation of it.

        Raises:
            UsageError: a model that does not attend.
        """
        if not self.translator.aligns:
            raise UsageError("a model with model.attention='none' has no attention to explain")
        sentence, (reading, writing) = self.read(source), self.tokenizers
        tokens = [*map(writing.token, ids)]
        return Example(
            {"encoder": np.array([*sentence.ids, EOS]), "decoder": np.array([BOS, *ids[:-1]])},
            {
                "encoder": [*sentence.tokens(reading), SPECIALS[EOS]],
                "decoder": [SPECIALS[BOS], *tokens[:-1]],
            },
            {"encoder": (0, 1), "decoder": (1, 0)},
            tokens,
            {
                "encoder": word_numbers(reading, source),
                "decoder": writing.word_numbers(ids[:-1]),
            },
            {"encoder": [*sentence.unknown]},
        )

    def artifacts(self, state: TrainState, workdir: Workdir) -> None:
        """Draw the cross-attention of a test sentence of usual length, if the model attends."""
        if not self.translator.aligns:
            return
        pair = min(self.examples("test"), key=lambda pair: abs(len(pair.source.split()) - DRAWN))
        example = self.example(state, pair.source, pair.target)
        try:
            (attended,) = self.collector(state.parameters, [example])
        except UsageError as error:  # the run is complete without it
            print(f"no picture of the attention: {error}")
            return
        links = example.token_links(pair.alignment)
        save(maps_figure(attended.maps["cross"], links=links), workdir.attention)

    def read(self, line: str) -> Sentence:
        """Read a sentence."""
        longest = self.config.model.max_length - 1
        return read_sentence(self.tokenizers.source, line, longest=longest)

    def answers(self, state: TrainState, inputs: Sequence[Sentence]) -> Iterable[Prediction]:
        """Translate sentences; unknown words are copied, if the model attends to the source."""
        # Programs for other numbers would be compiled anew, but a person waits for one sentence.
        size = 1 if len(inputs) == 1 else self.sentences_at_once
        ranked = self.translator.hypotheses(state.parameters, inputs, batch_size=size)
        return map(self._prediction, inputs, ranked)

    def _prediction(self, sentence: Sentence, ranked: Sequence[dict[str, Any]]) -> Prediction:
        tokenizer = self.tokenizers.source
        details = {
            "source": [*sentence.tokens(tokenizer), tokenizer.token(EOS)],
            "unknown": [*sentence.unknown.values()],
            "translations": ranked,
        }
        note = sentence.note(tokenizer, is_copied=self.translator.aligns)
        return Prediction([best["text"] for best in ranked[:1]], lambda: details, note)

    @property
    def sentences_at_once(self) -> int:
        """Number of sentences that are translated together."""
        return max(1, self.config.decoding.hypotheses // self.config.decoding.num_beams)


def pair_features(
    model: EncoderDecoder,
    batch: Batch | PackedPairs,
    rng: Array | None,
    **options: Callable[..., Any],
) -> Output:
    """Return the output of the decoder, whose features `logits` maps to scores, with all losses.

    Pairs of a packed row do not attend to each other; `options` are those of `Context`.
    """
    encoder_rng, decoder_rng = split_rng(rng, 2)
    if isinstance(batch, PackedPairs):
        source, target = batch
        read, written = source.labels, target.inputs
        across = masks.segments(target.segments, source.segments)
        reading, writing = (
            {"mask": masks.segments(side.segments), "embedding_positions": side.positions}
            for side in batch
        )
    else:
        read, written = batch.source, batch.target_inputs
        across = masks.lengths(batch.source_lengths)
        reading, writing = {"mask": across}, {}
    encoded = model.encode(read, rng=encoder_rng, **reading, **options)
    writing |= {"encoder_mask": across, "rng": decoder_rng}
    decoded = model.decode(written, encoded.features, **writing, **options)
    return decoded._replace(losses=add_losses(encoded.losses, decoded.losses))
