"""Sequence to sequence: train an encoder-decoder, measure it, use it."""

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from attention.decoding import StoppingCriteria
from attention.modules import (
    EncoderDecoder,
    RecurrentConfig,
    RecurrentEncoderDecoder,
    TransformerConfig,
)
from attention.primitives.choice import one_of
from experiments.analysis.pictures import draw_cross_attention
from experiments.data.epoch import Epoch
from experiments.data.fingerprint import of_splits
from experiments.data.pairs import SentencePair
from experiments.data.rows import Batch, Encoded, EncodedPair, PackedPairs
from experiments.data.sequences.faults import tell_left_out
from experiments.data.sources import SOURCES, check_source, load_split, store_split
from experiments.data.store import IdStore, TextStore, store_ids, store_text
from experiments.data.subword_dropout import PairDropout
from experiments.data.tokenizers import Tokenizers
from experiments.data.vocabulary import EOS, PAD
from experiments.data.windows import Buckets, PackedPairRows, Windows, once, row_lengths
from experiments.errors import UsageError, as_usage_errors
from experiments.evaluation.phenomena import by_phenomenon
from experiments.evaluation.rival import Rival, load_rival
from experiments.evaluation.scores import translation_scores
from experiments.evaluation.translator import Hypothesis, Translator
from experiments.model_checks import check_model
from experiments.training.duration import settled
from experiments.training.features import packed_features, padded_features
from experiments.training.learner import Learner
from experiments.training.loss import TokenLosses, objective
from experiments.training.session import (
    Measure,
    check_training,
    evaluate_in,
    measured,
    restore,
    train_in,
)
from experiments.training.step import TrainState
from experiments.training.tiled_loss import tiled_token_losses
from experiments.translation_checks import (
    check_buckets,
    check_decoding,
    check_rows,
    check_transformer,
)
from experiments.workdir import Workdir

REDRAWN = 8_192  # examples that subword dropout segments at once, some seconds before they are used

# Architecture name -> (config class, model class)
ARCHITECTURES = {
    "transformer": (TransformerConfig, EncoderDecoder),
    "recurrent": (RecurrentConfig, RecurrentEncoderDecoder),
}


def train(config: ConfigDict, workdir: Workdir, cache: Path) -> None:
    """Trains a translator, or goes on from where its workdir stands, and measures it.

    Args:
        config: of the run, as `check` passes it.
        workdir: where all that the run makes goes.
        cache: where generated data is kept.
    """
    print(f"reading the {config.data.name} data")
    source = SOURCES[config.data.name]
    with as_usage_errors():
        splits = {split: store_split(config.data, split, cache) for split in source.splits}
    tokenizers = source.text.learn(config.data, splits["train"], cache)
    data = prepare(config, tokenizers, splits["train"], cache)
    config = settled(config, lambda now: Task(now, tokenizers).epoch(data))
    task = Task(config, tokenizers)
    encoded = {split: task.encode(split, splits[split]) for split in source.splits[1:]}
    batches = task.training_batches(data)
    workdir.claim(config)
    workdir.keep_texts({split: pairs.fingerprint for split, pairs in splits.items()})
    tokenizers.keep(workdir.path)
    print(
        f"{len(data.ids):,} sentence pairs of {len(tokenizers.source)} and "
        f"{len(tokenizers.target)} tokens, {task.learner.num_parameters:,} parameters\n"
        f"{batches.padding:.1%} of the positions in training batches are padding"
    )
    state = train_in(
        workdir,
        task.learner,
        batches,
        validation=task.evaluation_batches(encoded["validation"]),
        sample=lambda state: task.sample(state, splits["validation"][:3]),
        measure=task.measuring({name: splits[name] for name in source.tests}, workdir),
        config=config,
    )
    task.draw_attention(state, splits["test"], workdir.attention)


def evaluate(
    config: ConfigDict,
    workdir: Workdir,
    cache: Path,
    split: str | None = None,
    against: Workdir | None = None,
) -> None:
    """Measures the newest checkpoint of a run.

    Args:
        config: of the run.
        workdir: of the run; its results file is written again.
        cache: where generated data is kept.
        split: what alone is measured; all that tests by default.
        against: of another run, whose translations these are held against.

    Raises:
        UsageError: data without this split, or with another text in it than that of the run,
            or as `load_rival`.
    """
    source = SOURCES[config.data.name]
    names = measured(split, source.tests, source.splits)
    task, splits = load_task(config, workdir), load_splits(config, names, cache)
    workdir.keep_texts(of_splits(splits))
    if "train" in splits:
        texts = store_text(cache, lambda: splits["train"])
        splits["train"] = [*prepare(config, task.tokenizers, texts, cache).texts]
    rival = against and load_rival(against, workdir, splits, tokenized=task.is_tokenized)
    measure = task.measuring(splits, workdir, rival)
    state = evaluate_in(workdir, task.learner, measure, config)
    if "test" in splits:
        task.draw_attention(state, splits["test"], workdir.attention)


def translate(config: ConfigDict, workdir: Workdir, groups: Iterable[list[str]]) -> int:
    """Translates sentences as they come, line for line; an empty one has an empty translation.

    With `decoding.details`, a line is JSON: the source tokens, and the n best, each a `Hypothesis`.

    Args:
        config: of the run.
        workdir: of the run.
        groups: source sentences; those of a group are translated together.

    Returns:
        How many could not be translated; for each, a sentence on standard error says why, and its
        line is that of an empty one.
    """
    task = load_task(config, workdir)
    state = restore(workdir, task.learner, config)
    number = failed = 0
    for group in groups:
        answers, refused = task.answers(state, group)
        print(*answers, sep="\n", flush=True)
        for place, error in refused.items():
            print(f"line {number + place + 1}: {error}", file=sys.stderr, flush=True)
        number += len(group)
        failed += len(refused)
    return failed


def check(config: ConfigDict) -> None:
    """Refuses, before anything is written, a configuration that cannot run.

    Raises:
        UsageError: in one sentence.
    """
    check_use(config)
    with as_usage_errors():
        check_source(config.data)
        if config.architecture == "transformer":
            check_transformer(config)


def check_use(config: ConfigDict) -> None:
    """Refuses a configuration that cannot be used, whether its data is there or not.

    Raises:
        UsageError: in one sentence.
    """
    check_training(config)
    check_buckets(config)
    with as_usage_errors():
        one_of("data.name", config.data.name, tuple(SOURCES))
        check_decoding(config.decoding)
        one_of("architecture", config.architecture, tuple(ARCHITECTURES))
        check_rows(config)
    settings, _ = ARCHITECTURES[config.architecture]
    check_model(config, settings)


def abstract_model(config: ConfigDict, cache: Path) -> nnx.Module:
    """The model of a configuration that was checked, with shapes for parameters.

    Args:
        config: of a run.
        cache: where data is kept, whose words decide the size of the model.
    """
    source = SOURCES[config.data.name]
    pairs = load_split(config.data, "train", cache)
    tokenizers = source.text.learn(config.data, pairs, cache)
    return Task(config, tokenizers).learner.abstract_model


def load_task(config: ConfigDict, workdir: Workdir) -> "Task":
    """What a run was trained to do."""
    return Task(config, SOURCES[config.data.name].text.load(workdir.path))


def load_splits(
    config: ConfigDict, names: Sequence[str], cache: Path
) -> dict[str, list[SentencePair]]:
    """Splits of the data of a run, by name.

    Raises:
        UsageError: one that is not there.
    """
    with as_usage_errors():
        return {name: load_split(config.data, name, cache) for name in names}


class TrainingData(NamedTuple):
    """Training pairs on disk: their text, and the ids of the same pairs."""

    texts: TextStore
    ids: IdStore


def prepare(
    config: ConfigDict, tokenizers: Tokenizers, texts: TextStore, cache: Path
) -> TrainingData:
    """Store the ids of the training pairs; with `data.faults="drop"`, of those that have room.

    Raises:
        UsageError: a sentence that the model has no room for; no pair is left.
    """
    ids = store_ids(cache, texts, tokenizers)
    longest = (config.data.get("packed") and config.data.row_length) or config.model.max_length
    fits = ids.lengths.max(axis=1) <= longest
    if config.data.get("faults") == "drop" and not fits.all():
        told = f"more than {longest} subwords"
        tell_left_out("train", int(np.sum(~fits)), len(fits), told)
        if not fits.any():
            raise UsageError(f"no pair of the train split is left: all have {told}")
        texts = store_text(cache, partial(compress, texts, fits))
        ids = store_ids(cache, texts, tokenizers)
    _check_room(config, "train", texts, ids.lengths)
    return TrainingData(texts, ids)


def _check_room(
    config: ConfigDict, split: str, pairs: Sequence[SentencePair], lengths: np.ndarray
) -> None:
    needed = lengths.max(axis=1)
    if needed.max() <= config.model.max_length:
        return
    longest = int(needed.argmax())
    source = pairs[longest].source
    sentence = source if len(source) <= 40 else f"{source[:40]}…"
    may_drop = split == "train" and "faults" in config.data
    raise UsageError(
        f"the {split} split needs {needed[longest]} positions, for {sentence!r}: "
        f"raise model.max_length={config.model.max_length}"
        + (", or leave such pairs out by data.faults=drop" if may_drop else "")
    )


class Task:
    """A configuration brought to life: the model, and what it does with sentences."""

    def __init__(self, config: ConfigDict, tokenizers: Tokenizers) -> None:
        """Builds everything but numbers: no parameter is allocated yet."""
        self.config = config
        self.source = SOURCES[config.data.name]
        self.tokenizers = tokenizers
        if config.decoding.num_beams > len(tokenizers.target):
            raise UsageError(
                f"decoding.num_beams must be at most the {len(tokenizers.target)} words of the "
                f"target vocabulary, got {config.decoding.num_beams}"
            )
        self.learner = Learner(self._make_model, self._sum_losses, config)
        self.stopping = StoppingCriteria(config.model.max_length, stop=EOS, pad=PAD)
        self.translator = self.make_translator(self.stopping)

    def make_translator(self, stopping: StoppingCriteria) -> Translator:
        """Return a translator whose translations end as these criteria say."""
        decoding = self.config.decoding
        return Translator(
            self.learner.definition,
            self.tokenizers,
            max_length=self.config.model.max_length,
            stopping=stopping,
            num_beams=decoding.num_beams,
            length_penalty=decoding.length_penalty,
            n_best=decoding.n_best,
            aligns=self.config.model.get("attention") != "none",
        )

    def _make_model(self, rngs: nnx.Rngs) -> nnx.Module:
        settings, model = ARCHITECTURES[self.config.architecture]
        return model.from_config(
            settings(**self.config.model),
            source_vocab_size=len(self.tokenizers.source),
            target_vocab_size=len(self.tokenizers.target),
            rngs=rngs,
        )

    def epoch(self, data: "TrainingData") -> Epoch:
        """Number of steps, examples and target tokens of all training pairs once."""
        return self.training_batches(data).epoch

    def training_batches(self, data: "TrainingData") -> Windows[Batch | PackedPairs]:
        """Shuffled batches: of packed rows if `data.packed`, else of pairs of similar length.

        With `data.subwords.dropout` each epoch is segmented anew.

        Raises:
            UsageError: a pair that is longer than a row.
        """
        fields, tokens = self.config.data, self.config.train.batch_tokens
        longest = self.config.model.max_length
        most = longest, longest
        if fields.get("packed"):
            length = fields.row_length
            most = (length, length) if length else row_lengths(data.ids.lengths, longest)
            layout = PackedPairRows(most, tokens)
        else:
            layout = Buckets([*fields.bucket_lengths, longest], tokens)
        seed, dropout = self.config.seed, fields.subwords.dropout if "subwords" in fields else 0.0
        if not dropout:
            return Windows(data.ids, layout, seed=seed)
        segment = PairDropout(self.tokenizers, dropout, most)

        def redraw(places: np.ndarray, random: np.random.Generator) -> Encoded[EncodedPair]:
            plain = [data.ids[place] for place in places]
            return segment(data.texts.take(places.tolist()), plain, random)

        return Windows(data.ids, layout, seed=seed, size=REDRAWN, redraw=redraw)

    def evaluation_batches(self, pairs: Encoded[EncodedPair]) -> list[Batch | PackedPairs]:
        """Every pair once, in few shapes: compiling takes more time than a little padding."""
        longest, tokens = self.config.model.max_length, self.config.train.batch_tokens
        layout = Buckets([max(self.config.data.bucket_lengths), longest], tokens)
        if self.config.data.get("packed"):
            layout = PackedPairRows((longest, longest), tokens)
        return [batch for _, batch in once(pairs, layout)]

    def encode(self, split: str, pairs: Sequence[SentencePair]) -> Encoded[EncodedPair]:
        """Ids of the pairs of a split, in memory.

        Raises:
            UsageError: a sentence that the model has no room for; the longest is named.
        """
        encoded = Encoded(map(self.tokenizers.encode, pairs))
        _check_room(self.config, split, pairs, encoded.lengths)
        return encoded

    def _sum_losses(
        self, model: EncoderDecoder, batch: Batch | PackedPairs, rng: Array | None
    ) -> tuple[TokenLosses, Mapping[str, Array]]:
        if isinstance(batch, PackedPairs):
            output, labels = packed_features(model, batch, rng), batch.target.labels
        else:
            output, labels = padded_features(model, batch, rng), batch.target_labels
        loss = objective(self.config.train, training=rng is not None)
        sums = tiled_token_losses(model.logits, output.features, labels, labels != PAD, loss)
        return sums, output.losses

    def measuring(
        self,
        splits: dict[str, list[SentencePair]],
        workdir: Workdir,
        rival: Rival | None = None,
    ) -> Measure:
        """`measure` of what is said of these splits, which stays in the workdir."""

        def measure(state: TrainState) -> dict[str, dict[str, object]]:
            said = {
                split: self.translations(state, [pair.source for pair in pairs])
                for split, pairs in splits.items()
            }
            scores = self.measure(state, splits, said, rival)
            for split, translations in said.items():  # beside their scores, or not at all
                workdir.keep_hypotheses(split, translations)
            return scores

        return measure

    def measure(
        self,
        state: TrainState,
        splits: dict[str, list[SentencePair]],
        said: dict[str, list[str]],
        rival: Rival | None,
    ) -> dict[str, dict[str, object]]:
        """What it achieves on these splits, and by phenomenon where that is known."""
        scores: dict[str, dict[str, object]] = {}
        for split, translations in said.items():
            targets = [pair.target for pair in splits[split]]
            losses = self.losses(state, split, splits[split])
            told = translation_scores(translations, targets, tokenized=self.is_tokenized)
            scores[split] = losses | told
            if rival is not None:
                scores[split]["against"] = rival.against(split, translations, targets)
        if self.source.has_phenomena and "test" in said:
            scores |= by_phenomenon(splits["test"], said["test"])
        return scores

    def draw_attention(self, state: TrainState, pairs: list[SentencePair], path: Path) -> None:
        """Draws what the decoder looks at in one of the sentences, if it looks at anything."""
        if not self.translator.aligns:
            return
        # Neither a short sentence nor one that fills the screen.
        shown = min(pairs, key=lambda pair: abs(len(pair.source.split()) - 7))
        weights, source, target = self.translator.cross_attention(state.parameters, *shown[:2])
        draw_cross_attention(weights, source, target, shown.alignment, path)

    def losses(self, state: TrainState, split: str, pairs: list[SentencePair]) -> dict[str, float]:
        """Loss, accuracy and perplexity per token of a split, and per word where that is another.

        The fewer words a token is, the lower its perplexity: only that of words, ends included,
        compares models whose vocabularies differ. With subwords it is an upper bound, for a word
        may be spelled in other ways than the one that is asked for.
        """
        encoded = self.encode(split, pairs)
        losses = self.learner.losses(state.parameters, self.evaluation_batches(encoded))
        tokens = sum(len(pair.target) + 1 for pair in encoded)
        words = sum(len(pair.target.split()) + 1 for pair in pairs)
        losses |= {"perplexity": math.exp(losses["nll"])}
        if tokens == words:
            return losses
        return losses | {"word_perplexity": math.exp(losses["nll"] * tokens / words)}

    def sample(self, state: TrainState, pairs: list[SentencePair]) -> str:
        """A few sentences, their translations, and what they should be."""
        lines, said = [], self.translations(state, [pair.source for pair in pairs])
        for pair, translation in zip(pairs, said, strict=True):
            mark = "=" if translation == pair.target else "≠"
            lines += [f"  {pair.source}", f"  → {translation}", f"  {mark} {pair.target}"]
        return "\n".join(lines)

    def answers(
        self, state: TrainState, lines: Sequence[str]
    ) -> tuple[list[str], dict[int, ValueError]]:
        """What a person who typed some sentences reads, and why some places have no translation."""
        sound, refused = [], dict[int, ValueError]()
        for place, line in enumerate(lines):
            try:
                if line.strip():
                    self.translator.encode(line)
                    sound.append(place)
            except ValueError as error:
                refused[place] = error
        details = self.config.decoding.details
        say = self._detailed if details else self.translations
        said = say(state, [lines[place] for place in sound])
        answers = dict.fromkeys(range(len(lines)), _as_json([], []) if details else "")
        answers |= zip(sound, said, strict=True)
        return [*answers.values()], refused

    def translations(self, state: TrainState, sentences: Sequence[str]) -> list[str]:
        """What the model says for each sentence."""
        # One alone is what a person waits for; programs for other numbers would be compiled anew.
        at_once = 1 if len(sentences) == 1 else self.sentences_at_once
        return self.translator(state.parameters, sentences, batch_size=at_once)

    def _detailed(self, state: TrainState, sentences: Sequence[str]) -> list[str]:
        return [_as_json(*self.translator.details(state.parameters, each)) for each in sentences]

    @property
    def is_tokenized(self) -> bool:
        """Whether the text stands in tokens already."""
        return self.config.data.get("tokenized", False)

    @property
    def sentences_at_once(self) -> int:
        """How many sentences are translated together."""
        return self.config.decoding.hypotheses // self.config.decoding.num_beams


def _as_json(source: list[str], found: list[Hypothesis]) -> str:
    """A sentence and its translations on one line."""
    told = {"source": source, "translations": [one._asdict() for one in found]}
    return json.dumps(told, ensure_ascii=False)
