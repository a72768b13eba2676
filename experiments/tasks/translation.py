"""Translation, and every other task from a sequence to a sequence."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from flax import nnx
from jax import Array

from attention.decoding import StoppingCriteria
from attention.modules import EncoderDecoder, Output, RecurrentEncoderDecoder
from attention.modules.context import add_losses
from attention.modules.layers import split_rng
from attention.primitives import masks
from experiments.analysis.agreement import Explainer
from experiments.analysis.collect import Example
from experiments.analysis.figures import maps_figure, save
from experiments.config import Config
from experiments.config.data import PairBatchPart
from experiments.config.model import EncoderDecoderModel, RecurrentModel, SearchPart
from experiments.config.train import LabelTrainPart
from experiments.data.packing import row_lengths
from experiments.data.rows import Batch, Encoded, EncodedPair, PackedPairs
from experiments.data.sources import Splits
from experiments.data.subword_dropout import PairDropout
from experiments.data.tokenizers import Tokenizers
from experiments.data.vocabulary import BOS, EOS, PAD, SPECIALS
from experiments.data.windows import Buckets, Once, PackedPairRows, Windows
from experiments.errors import UsageError
from experiments.evaluation.phenomena import by_phenomenon
from experiments.inference.prediction import Prediction
from experiments.inference.sentence import Sentence, read_sentence, word_numbers
from experiments.inference.translator import Hypothesis, Translator
from experiments.losses import TokenLosses
from experiments.registry import TaskParts, task
from experiments.tasks.task import LARGEST_EXPONENT, Measured, Task
from experiments.tiled_loss import tiled_token_losses
from experiments.training.step import TrainState
from experiments.workdir import Workdir

ARCHITECTURES = {"transformer": EncoderDecoder, "recurrent": RecurrentEncoderDecoder}
REDRAWN = 8_192  # examples that subword dropout segments at once, some seconds before they are used
SAMPLED = 3  # sentences of a sample
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

    def __init__(
        self, config: Config, tokenizers: Tokenizers, splits: Splits | None = None
    ) -> None:
        """As in `Task`.

        Raises:
            UsageError: more beams than target tokens.
        """
        super().__init__(config, tokenizers, splits)
        if config.decoding.num_beams > len(tokenizers.target):
            raise UsageError(
                f"decoding.num_beams must be at most the {len(tokenizers.target)} words of the "
                f"target vocabulary, got {config.decoding.num_beams}"
            )
        self.stopping = StoppingCriteria(config.model.max_length, stop=EOS, pad=PAD)

    @cached_property
    def translator(self) -> Translator:
        """Translates by `config.decoding`."""
        return self.make_translator(self.stopping)

    @cached_property
    def explainer(self) -> Explainer:
        """Computes attributions of the translations of the model."""
        return Explainer(self)

    def make_translator(
        self, stopping: StoppingCriteria, decoding: SearchPart | None = None
    ) -> Translator:
        """Return a translator with these stopping criteria; `config.decoding` if none is given."""
        decoding = decoding or self.config.decoding
        return Translator(
            self.learner.definition,
            self.tokenizers,
            max_length=self.config.model.max_length,
            stopping=stopping,
            num_beams=decoding.num_beams,
            length_penalty=decoding.length_penalty,
            n_best=decoding.n_best,
            aligns=getattr(self.config.model, "attention", "") != "none",
        )

    def model(self, rngs: nnx.Rngs) -> nnx.Module:
        """As in `Task`."""
        return ARCHITECTURES[self.config.architecture].from_config(
            self.config.model,
            source_vocab_size=len(self.tokenizers.source),
            target_vocab_size=len(self.tokenizers.target),
            rngs=rngs,
        )

    def training_batches(self) -> Windows[Batch | PackedPairs]:
        """Shuffled batches; with `text.dropout` each epoch is segmented anew."""
        config, ids, examples = self.config, self.ids("train"), self.examples("train")
        batch, longest = config.batch, config.model.max_length
        most = longest, longest
        if batch.packed:
            length = batch.row_length
            most = (length, length) if length else row_lengths(ids.lengths, longest)
            layout = PackedPairRows(most, batch.tokens)
        else:
            layout = Buckets([*batch.bucket_lengths, longest], batch.tokens)
        if config.text is None or not config.text.dropout:
            return Windows(ids, layout, seed=config.seed)
        segment = PairDropout(self.tokenizers, config.text.dropout, most)

        def redraw(places: np.ndarray, random: np.random.Generator) -> Encoded[EncodedPair]:
            plain = [ids[place] for place in places]
            return segment(examples.take(places.tolist()), plain, random)

        return Windows(ids, layout, seed=config.seed, size=REDRAWN, redraw=redraw)

    def batches(self, split: str) -> Once[Batch | PackedPairs]:
        """As in `Task`, in few shapes: compiling takes more time than a little padding."""
        batch, longest = self.config.batch, self.config.model.max_length
        layout = Buckets([max(batch.bucket_lengths), longest], batch.tokens)
        if batch.packed:
            layout = PackedPairRows((longest, longest), batch.tokens)
        return Once(self.ids(split), layout)

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
        examples, answers = [*self.examples(split)], self.answer_split(state, split)
        scores = self.losses(state, split)
        scores |= self.answer_scores(answers, split, self.config.decoding.metrics)
        parts: dict[str, dict[str, Any]] = {}
        if split == "test" and self.source.has_phenomena:
            parts = by_phenomenon(examples, answers)
        return Measured({split: scores, **parts}, answers)

    def answer_split(self, state: TrainState, split: str) -> list[str]:
        """As in `Task`: translate the sources of a split."""
        return self.translations(state, [pair.source for pair in self.examples(split)])

    def losses(self, state: TrainState, split: str) -> dict[str, float]:
        """As in `Task`, and perplexity per word where tokens are not words.

        The fewer words a token is, the lower its perplexity: only that of words, ends included,
        compares models with different vocabularies. With subwords it is an upper bound, for a word
        has other segmentations too. It is left out if it is more than a float holds, as it can be
        for long targets without blanks.
        """
        losses = super().losses(state, split)
        tokens = int(self.ids(split).lengths[:, 1].sum())
        words = sum(len(pair.target.split()) + 1 for pair in self.examples(split))
        nll = losses["nll"] * tokens / words
        if tokens == words or nll > LARGEST_EXPONENT:
            return losses
        return losses | {"word_perplexity": math.exp(nll)}

    def example(self, state: TrainState, source: str, target: str | None = None) -> Example:
        """As in `Task`; the target is the translation of the model if None."""
        if target is None:
            ids = [self.read(source).ids]
            (said,) = self.translator.translate_ids(state.parameters, ids, batch_size=1)
            return self.translated(source, said)
        if not target.strip():
            return self.translated(source, [EOS])
        longest, tokenizer = self.config.model.max_length - 1, self.tokenizers.target
        sentence = read_sentence(tokenizer, target, longest=longest)
        example, tokens = self.translated(source, [*sentence.ids, EOS]), sentence.tokens(tokenizer)
        unknown = {"decoder": [1 + place for place in sentence.unknown]}
        return example._replace(
            labels=example.labels | {"decoder": [SPECIALS[BOS], *tokens]},
            predicted=[*tokens, tokenizer.token(EOS)],
            words=example.words | {"decoder": word_numbers(tokenizer, target)},
            unknown=example.unknown | unknown,
        )

    def translated(self, source: str, ids: Sequence[int]) -> Example:
        """Return what the model reads of a source, and of the ids of a translation of it.

        Raises:
            UsageError: a model that does not attend.
        """
        if not self.translator.aligns:
            raise UsageError("a model with model.attention='none' has no attention to explain")
        sentence, (reading, writing) = self.read(source), self.tokenizers
        tokens = [writing.token(number) for number in ids]
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

    def attended(
        self,
        model: EncoderDecoder,
        inputs: Mapping[str, Array],
        lengths: Mapping[str, Array],
        returning: Sequence[str] = (),
    ) -> Mapping[str, Output]:
        """As in `Task`."""
        mask = masks.lengths(lengths["encoder"])
        encoded = model.encode(inputs["encoder"], mask=mask, returning=returning)
        decoded = model.decode(
            inputs["decoder"], encoded.features, encoder_mask=mask, returning=returning
        )
        logits = model.logits(decoded.features)
        return {"encoder": encoded, "decoder": decoded._replace(logits=logits)}

    def sample(self, state: TrainState) -> str:
        """Translate a few validation sentences, beside their references."""
        pairs = self.examples("validation")[:SAMPLED]
        lines, found = [], self.translations(state, [pair.source for pair in pairs])
        for pair, translation in zip(pairs, found, strict=True):
            mark = "=" if translation == pair.target else "≠"
            lines += [f"  {pair.source}", f"  → {translation}", f"  {mark} {pair.target}"]
        return "\n".join(lines)

    def artifacts(self, state: TrainState, workdir: Workdir) -> None:
        """Draw the cross-attention of a test sentence of usual length, if the model attends."""
        if not self.translator.aligns:
            return
        shown = min(self.examples("test"), key=lambda pair: abs(len(pair.source.split()) - DRAWN))
        example = self.example(state, shown.source, shown.target)
        try:
            (found,) = self.collector(state.parameters, [example])
        except UsageError as error:  # the run is complete without it
            print(f"no picture of the attention: {error}")
            return
        links = example.token_links(shown.alignment)
        save(maps_figure(found.maps["cross"], links=links), workdir.attention)

    def read(self, line: str) -> Sentence:
        """Read a sentence."""
        return self.translator.read(line)

    def answers(self, state: TrainState, inputs: Sequence[Sentence]) -> Iterable[Prediction]:
        """Translate sentences; unknown words are copied, if the model attends to the source."""
        size = self._batch_size(len(inputs))
        found = self.translator.hypotheses(state.parameters, inputs, batch_size=size)
        return map(self._prediction, inputs, found)

    def _prediction(self, sentence: Sentence, found: Sequence[Hypothesis]) -> Prediction:
        tokenizer = self.tokenizers.source
        details = {
            "source": [*sentence.tokens(tokenizer), tokenizer.token(EOS)],
            "unknown": [*sentence.unknown.values()],
            "translations": [one.details() for one in found],
        }
        note = sentence.note(tokenizer, is_copied=self.translator.aligns)
        return Prediction([one.text for one in found[:1]], lambda: details, note)

    def translations(self, state: TrainState, sentences: Sequence[str]) -> list[str]:
        """Translate sentences of the data."""
        return self.translator(
            state.parameters, sentences, batch_size=self._batch_size(len(sentences))
        )

    def _batch_size(self, number: int) -> int:
        """Return how many sentences are decoded at once.

        Programs for other numbers would be compiled anew, but a person waits for one sentence.
        """
        return 1 if number == 1 else self.sentences_at_once

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
    """Compute the features that `logits` maps to scores.

    Args:
        model: an encoder-decoder; a Transformer if rows contain several pairs, which do not attend
            to each other.
        batch: the rows.
        rng: random key of dropout; None turns dropout off.
        options: `constrain` and `attend`, as in `Context`.

    Returns:
        The output of the decoder, with the losses of encoder and decoder.
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
