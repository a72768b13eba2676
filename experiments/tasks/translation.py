"""Translation, and every other task from a sequence to a sequence."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from attention.decoding import GNMT, Beam, GenerationOutput, Greedy, generate
from attention.modules import EncoderDecoder, Output, RecurrentEncoderDecoder
from attention.modules.context import add_losses
from attention.modules.layers import split_rng
from attention.primitives import masks
from experiments.analysis.collect import Example
from experiments.analysis.figures import maps_figure, save
from experiments.config import parts
from experiments.data.packing import Batch, PackedPairs, row_lengths
from experiments.data.pipeline import Buckets, PackedRows, ShuffledBatches, SortedBatches
from experiments.data.subwords import subword_dropout
from experiments.data.tokenizers import (
    BOS,
    EOS,
    PAD,
    SPECIALS,
    EncodedExamples,
    EncodedPair,
    segment_pairs,
)
from experiments.data.toy_language.phenomena import by_phenomenon
from experiments.errors import UsageError
from experiments.files import split_lines
from experiments.learner import TrainState
from experiments.losses import tiled_token_losses
from experiments.registry import TaskParts, task
from experiments.sharding import by_rows
from experiments.tasks.prediction import Prediction, Sentence, read_sentence
from experiments.tasks.task import Losses, Scores, Task, perplexity
from experiments.workdir import Workdir

Sources = Sequence[Sequence[int]]
ARCHITECTURES = {"transformer": EncoderDecoder, "recurrent": RecurrentEncoderDecoder}
REDRAWN = 8_192  # examples that subword dropout segments at once, some seconds before they are used
LOW_CONFIDENCE = 0.5  # a translation below it is marked
SHORTEST = 32  # tokens: shorter sources are padded rather than compiled for
DRAWN = 7  # words of the sentence with a picture of its attention


@task(
    "translation",
    TaskParts(
        reads=("pairs",),
        models={"transformer": parts.EncoderDecoderModel, "recurrent": parts.RecurrentModel},
        batch=parts.PairBatchPart,
        train=parts.LabelTrainPart,
        decoding=parts.SearchPart,
    ),
)
class Translation(Task[Batch | PackedPairs]):
    """An encoder-decoder, Transformer or recurrent."""

    sides = (0, 1)

    @property
    def aligns(self) -> bool:
        """Whether the model attends to the source; some recurrent ones do not."""
        return getattr(self.config.model, "attention", "") != "none"

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
            row = batch.row_length
            most = (row, row) if row else row_lengths(ids.lengths, longest)
            layout = PackedRows(most, batch.tokens)
        else:
            layout = Buckets([*batch.bucket_lengths, longest], batch.tokens)
        if config.text is None or not config.text.dropout:
            return ShuffledBatches(ids, layout, seed=config.seed)
        segments = [subword_dropout(each, config.text.dropout) for each in self.tokenizers]

        def redraw(places: np.ndarray, random: np.random.Generator) -> EncodedExamples[EncodedPair]:
            plain = [ids[place] for place in places]
            return segment_pairs(segments, examples.take(places.tolist()), plain, most, random)

        return ShuffledBatches(ids, layout, seed=config.seed, block=REDRAWN, redraw=redraw)

    def batches(self, split: str) -> SortedBatches[Batch | PackedPairs]:
        """As in `Task`, in few shapes: compiling takes more time than a little padding."""
        batch, longest = self.config.batch, self.config.model.max_length
        layout = Buckets([max(batch.bucket_lengths), longest], batch.tokens)
        if batch.packed:
            layout = PackedRows((longest, longest), batch.tokens)
        return SortedBatches(self.ids(split), layout)

    def loss(self, model: EncoderDecoder, batch: Batch | PackedPairs, rng: Array | None) -> Losses:
        """As in `Task`."""
        output = pair_features(model, batch, rng, **self.on_mesh)
        labels = batch.target.labels if isinstance(batch, PackedPairs) else batch.target_labels
        objective = self.objective(training=rng is not None)
        sums = tiled_token_losses(model.logits, output.features, labels, labels != PAD, objective)
        return sums, output.losses

    def measure(self, state: TrainState, split: str) -> tuple[Scores, list[str]]:
        """Measure loss and translations, and of the toy test split the phenomena too.

        Perplexity per word, ends included, compares models whose tokens differ. With subwords it is
        an upper bound, for a word has other segmentations too.
        """
        answers, (scores, _) = self.answer_split(state, split), super().measure(state, split)
        _, targets, _ = zip(*self.examples(split), strict=True)
        tokens = int(self.ids(split).lengths[:, 1].sum())
        words = len(" ".join(targets).split()) + len(targets)
        if tokens != words:
            scores[split] |= perplexity("word_perplexity", scores[split]["nll"] * tokens / words)
        scores[split] |= self.answer_scores(answers, split, self.config.decoding.metrics)
        if split == "test" and self.source.has_phenomena:
            scores |= by_phenomenon([*self.examples(split)], answers)
        return scores, answers

    def answer_split(self, state: TrainState, split: str, number: int | None = None) -> list[str]:
        """As in `Task`; an unknown word of the data is a ValueError."""
        encode = self.tokenizers.source.encode
        sources = [encode(pair.source) for pair in self.examples(split)[:number]]
        return [self._text(ids.tolist()) for ids in self.translate_ids(state.parameters, sources)]

    def example(self, state: TrainState, source: str, target: str | None = None) -> Example:
        """As in `Task`; the target is the translation of the model if None."""
        if target is None:
            (ids,) = self.translate_ids(state.parameters, [self.read(source).ids])
            return self.translated(source, ids)
        if not target.strip():
            return self.translated(source, [EOS])
        longest = self.config.model.max_length - 1
        written = read_sentence(self.tokenizers.target, target, longest=longest)
        example = self.translated(source, [*written.ids, EOS], written)
        unknown = {"decoder": [1 + place for place in written.unknown]}
        return example._replace(unknown=example.unknown | unknown)

    def translated(
        self, source: str, ids: Sequence[int], written: Sentence | None = None
    ) -> Example:
        """Return what the model reads of a source, and of the ids of a translation of it.

        `written` is what a person typed, whose ids these are. Without attention, it raises a
        UsageError.
        """
        if not self.aligns:
            raise UsageError("a model with model.attention='none' has no attention to explain")
        sentence, (reading, writing) = self.read(source), self.tokenizers
        written = Sentence(ids) if written is None else written._replace(ids=ids)
        tokens = written.tokens(writing)
        return Example(
            {"encoder": np.array([*sentence.ids, EOS]), "decoder": np.array([BOS, *ids[:-1]])},
            {
                "encoder": [*sentence.tokens(reading), SPECIALS[EOS]],
                "decoder": [SPECIALS[BOS], *tokens[:-1]],
            },
            {"encoder": (0, 1), "decoder": (1, 0)},
            tokens,
            {
                "encoder": sentence.words or reading.word_numbers(sentence.ids),
                "decoder": written.words or writing.word_numbers(ids[:-1]),
            },
            {"encoder": [*sentence.unknown]},
        )

    def artifacts(self, state: TrainState, workdir: Workdir) -> None:
        """Draw the cross-attention of a test sentence of usual length, if the model attends."""
        if not self.aligns:
            return
        pair = min(self.examples("test"), key=lambda pair: abs(len(pair.source.split()) - DRAWN))
        example = self.translated(pair.source, [*self.tokenizers.target.encode(pair.target), EOS])
        try:
            (attended,) = self.collector(state.parameters, [example])
        except UsageError as error:  # the run is complete without it
            print(f"no picture of the attention: {error}")
            return
        links = example.token_links(pair.alignment)
        save(maps_figure(attended.maps["cross"], links=links), workdir.attention)

    def answers(self, state: TrainState, inputs: Sequence[Sentence]) -> Iterator[Prediction]:
        """Translate sentences; unknown words are copied, if the model attends to the source."""
        tokenizer, decoding = self.tokenizers.source, self.config.decoding
        every = self.hypotheses(state.parameters, inputs, decoding)
        for sentence, ranked in zip(inputs, every, strict=True):
            details = {
                "source": [*sentence.tokens(tokenizer), tokenizer.token(EOS)],
                "unknown": [*sentence.unknown.values()],
                "translations": ranked,
            }
            note = sentence.note(tokenizer, is_copied=self.aligns)
            yield Prediction(
                [best["text"] for best in ranked[:1]], lambda value=details: value, note
            )

    def translate_ids(self, parameters: nnx.State, sources: Sources) -> list[np.ndarray]:
        """Translate lists of ids without their ends; translations that have an end contain it."""
        output = self._generate(parameters, sources, self.config.decoding, aligns=False)
        return [ids[0, : n[0]] for ids, n in zip(output.tokens, output.lengths, strict=True)]

    def hypotheses(
        self, parameters: nnx.State, sentences: Sequence[Sentence], decoding: parts.SearchPart
    ) -> list[list[dict[str, Any]]]:
        """Return the best translations of each sentence, best first.

        Unknown words are copied to the token that attends to them most. A model without attention
        translates their placeholder.

        Of each, the score is its log-probability, in beam search divided by the length penalty; the
        confidence is the geometric mean of the probabilities of its tokens; the alignment is for
        each token the index of the source token with the largest weight, [] without attention.
        """
        sources = [sentence.ids for sentence in sentences]
        output = self._generate(parameters, sources, decoding, aligns=self.aligns)
        return [
            [self._hypothesis(sentence, output, (row, n)) for n in np.flatnonzero(lengths)]
            for row, (sentence, lengths) in enumerate(zip(sentences, output.lengths, strict=True))
        ]

    def _generate(
        self, parameters: nnx.State, sources: Sources, decoding: parts.SearchPart, *, aligns: bool
    ) -> GenerationOutput:
        """Return translations `[B, n_best, T]`, with weights of source tokens if `aligns`."""
        longest, options = self.config.model.max_length, {}
        lengths = [longest]  # to compile for: its half, and so on
        while lengths[0] >= 2 * SHORTEST:
            lengths.insert(0, -(-lengths[0] // 2))
        if aligns:  # all weights have one shape
            needed = 1 + max(map(len, sources), default=0)
            lengths = [min(length for length in lengths if length >= needed)]
            options = {"returning": ("weights",), "observe": source_weights}
        # Programs for other numbers would be compiled anew, but a person waits for one sentence.
        slots = 1 if len(sources) == 1 else max(1, decoding.hypotheses // decoding.num_beams)
        beam = Beam(decoding.num_beams, decoding.n_best, GNMT(decoding.length_penalty))
        is_greedy = decoding.num_beams == 1
        output = generate(
            nnx.merge(self.learner.definition, parameters),
            [[*source, EOS] for source in sources],
            strategy=Greedy() if is_greedy else beam,
            max_tokens=longest,
            stop=EOS,
            start=BOS,
            slots=slots,
            buckets=lengths,
            compile=by_rows,
            **options,
        )
        return jax.tree.map(partial(np.expand_dims, axis=1), output) if is_greedy else output

    def _text(self, ids: list[int]) -> str:
        """Return a translation in one line; a model of bytes may generate line feeds."""
        return " ".join(split_lines(self.tokenizers.target.decode(ids)))

    def with_copies(
        self, ids: Sequence[int], weights: np.ndarray, unknown: Mapping[int, str]
    ) -> tuple[list[str], str]:
        """Return the tokens and the text of a translation, with copies of unknown words.

        Weights of cross-attention are `[T, S]`; unknown words are by source place.
        """
        tokenizer, text = self.tokenizers.target, self._text(ids)
        tokens = [tokenizer.token(number) for number in ids]
        if unknown:
            written = len(ids) - (ids[-1] == EOS)
            copies, rest = copy_words(weights[:written, :-1], unknown)
            tokens = [copies.get(place, token) for place, token in enumerate(tokens)]
            text = tokenizer.tokens.detokenize([*tokens[:written], *rest])
        return tokens, text

    def _hypothesis(
        self, sentence: Sentence, output: GenerationOutput, at: tuple[int, int]
    ) -> dict[str, Any]:
        valid = (*at, slice(output.lengths[at]))
        ids, log_probs = output.tokens[valid].tolist(), output.log_probs[valid]
        weights, unknown = np.zeros((0, 0)), {}
        if self.aligns:  # without the padding of the source
            weights, unknown = output.observed[valid][:, : len(sentence.ids) + 1], sentence.unknown
        tokens, text = self.with_copies(ids, weights, unknown)
        confidence = float(np.exp(np.mean(log_probs)))
        return {
            "text": text,
            "score": float(output.scores[at]),
            "confidence": confidence,
            "is_uncertain": confidence < LOW_CONFIDENCE,
            "ids": ids,
            "tokens": tokens,
            "log_probs": log_probs.tolist(),
            "alignment": weights.argmax(axis=-1).tolist() if self.aligns else [],
        }


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
        reading = {"mask": masks.segments(source.segments), "embedding_positions": source.positions}
        writing = {"mask": masks.segments(target.segments), "embedding_positions": target.positions}
    else:
        read, written = batch.source, batch.target_inputs
        across = masks.lengths(batch.source_lengths)
        reading, writing = {"mask": across}, {}
    encoded = model.encode(read, rng=encoder_rng, **reading, **options)
    writing |= {"encoder_mask": across, "rng": decoder_rng}
    decoded = model.decode(written, encoded.features, **writing, **options)
    return decoded._replace(losses=add_losses(encoded.losses, decoded.losses))


def source_weights(output: Output) -> Array:
    """Return the mean weight of each source token, `[B, S]`, for one target token per row."""
    means = [
        layer["cross_attention"]["weights"].mean(axis=(-3, -2))  # over heads and the one query
        for layer in output.attention
        if layer.get("cross_attention") is not None
    ]
    return jnp.mean(jnp.stack(means), axis=0)


def copy_words(weights: np.ndarray, words: Mapping[int, str]) -> tuple[dict[int, str], list[str]]:
    """Align source words with target tokens, one to one, the largest weight `[T, S]` first.

    A target token whose largest weight is on another word translates that one, and is kept. Returns
    the word of each aligned target place, and the words for which no target token is left.
    """
    copies: dict[int, str] = {}
    rest = dict(words)
    free = [t for t, place in enumerate(weights.argmax(axis=-1)) if place in words]
    pairs = [(weights[t, s], t, s) for t in free for s in words]
    for _, target, source in sorted(pairs, key=lambda pair: -pair[0]):
        if target not in copies and source in rest:
            copies[target] = rest.pop(source)
    return copies, [*rest.values()]
