"""Sequence to sequence: train an encoder-decoder, measure it, use it."""

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from flax import nnx
from jax import Array

from attention.decoding import StoppingCriteria
from attention.modules import (
    EncoderDecoder,
    RecurrentEncoderDecoder,
)
from experiments.analysis.pictures import draw_cross_attention
from experiments.config import Config
from experiments.data.batching import Batch
from experiments.data.fingerprint import of_splits
from experiments.data.packing import PackedPairs
from experiments.data.pair_batches import PairBatches
from experiments.data.pairs import SentencePair
from experiments.data.sources import SOURCES, load_split
from experiments.data.tokenizers import Tokenizers
from experiments.data.vocabulary import EOS, PAD
from experiments.errors import UsageError, as_usage_errors
from experiments.evaluation.phenomena import by_phenomenon
from experiments.evaluation.rival import Rival, load_rival
from experiments.evaluation.scores import translation_scores
from experiments.evaluation.translator import Hypothesis, Translator
from experiments.training.duration import settled
from experiments.training.features import packed_features, padded_features
from experiments.training.learner import Learner
from experiments.training.loss import TokenLosses, objective
from experiments.training.session import (
    Measure,
    evaluate_in,
    measured,
    restore,
    train_in,
)
from experiments.training.step import TrainState
from experiments.training.tiled_loss import tiled_token_losses
from experiments.workdir import Workdir

ARCHITECTURES = {"transformer": EncoderDecoder, "recurrent": RecurrentEncoderDecoder}


def train(config: Config, workdir: Workdir, cache: Path) -> None:
    """Trains a translator, or goes on from where its workdir stands, and measures it.

    Args:
        config: of the run.
        workdir: where all that the run makes goes.
        cache: where generated data is kept.
    """
    print(f"reading the {config.data.name} data")
    source = SOURCES[config.data.name]
    splits = load_splits(config, source.splits, cache)
    texts = of_splits(splits)
    tokenizers = source.text.learn(config.text, splits["train"], cache)
    splits["train"] = PairBatches(config, tokenizers).fitting(splits["train"])
    config = settled(config, lambda now: PairBatches(now, tokenizers).epoch(splits["train"]))
    task = Task(config, tokenizers)
    encoded = {split: task.batches.encode(split, pairs) for split, pairs in splits.items()}
    batches = task.batches.training(splits["train"], encoded["train"])
    task.learner.trace(batches)
    workdir.claim(config)
    workdir.keep_texts(texts)
    tokenizers.keep(workdir.path)
    print(
        f"{len(encoded['train']):,} sentence pairs of {len(tokenizers.source)} and "
        f"{len(tokenizers.target)} tokens, {task.learner.num_parameters:,} parameters"
    )
    state = train_in(
        workdir,
        task.learner,
        batches,
        validation=task.batches.evaluation(encoded["validation"]),
        sample=lambda state: task.sample(state, splits["validation"][:3]),
        measure=task.measuring({name: splits[name] for name in source.tests}, workdir),
        config=config,
    )
    task.draw_attention(state, splits["test"], workdir.attention)


def evaluate(
    config: Config,
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
        splits["train"] = task.batches.fitting(splits["train"])
    rival = against and load_rival(against, workdir, splits, tokenized=task.is_tokenized)
    measure = task.measuring(splits, workdir, rival)
    state = evaluate_in(workdir, task.learner, measure, config)
    if "test" in splits:
        task.draw_attention(state, splits["test"], workdir.attention)


def translate(config: Config, workdir: Workdir, groups: Iterable[list[str]]) -> int:
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


def abstract_model(config: Config, cache: Path) -> nnx.Module:
    """The model of a configuration that was checked, with shapes for parameters.

    Args:
        config: of a run.
        cache: where data is kept, whose words decide the size of the model.
    """
    source = SOURCES[config.data.name]
    pairs = load_splits(config, ["train"], cache)["train"]
    tokenizers = source.text.learn(config.text, pairs, cache)
    return Task(config, tokenizers).learner.abstract_model


def load_task(config: Config, workdir: Workdir) -> "Task":
    """What a run was trained to do."""
    return Task(config, SOURCES[config.data.name].text.load(workdir.path))


def load_splits(config: Config, names: Sequence[str], cache: Path) -> dict[str, list[SentencePair]]:
    """Splits of the data of a run, by name.

    Raises:
        UsageError: one that is not there.
    """
    with as_usage_errors():
        return {name: load_split(config.data, name, cache) for name in names}


class Task:
    """A configuration brought to life: the model, and what it does with sentences."""

    def __init__(self, config: Config, tokenizers: Tokenizers) -> None:
        """Builds everything but numbers: no parameter is allocated yet."""
        self.config = config
        self.source = SOURCES[config.data.name]
        self._tokenizers = tokenizers
        if config.decoding.num_beams > len(tokenizers.target):
            raise UsageError(
                f"decoding.num_beams must be at most the {len(tokenizers.target)} words of the "
                f"target vocabulary, got {config.decoding.num_beams}"
            )
        self.batches = PairBatches(config, tokenizers)
        self.learner = Learner(self._make_model, self._sum_losses, config)
        self.stopping = StoppingCriteria(config.model.max_length, stop=EOS, pad=PAD)
        self.translator = self.make_translator(self.stopping)

    def make_translator(self, stopping: StoppingCriteria) -> Translator:
        """Return a translator whose translations end as these criteria say."""
        decoding = self.config.decoding
        return Translator(
            self.learner.definition,
            self._tokenizers,
            max_length=self.config.model.max_length,
            stopping=stopping,
            num_beams=decoding.num_beams,
            length_penalty=decoding.length_penalty,
            n_best=decoding.n_best,
            aligns=getattr(self.config.model, "attention", "") != "none",
        )

    def _make_model(self, rngs: nnx.Rngs) -> nnx.Module:
        return ARCHITECTURES[self.config.architecture].from_config(
            self.config.model.library(),
            source_vocab_size=len(self._tokenizers.source),
            target_vocab_size=len(self._tokenizers.target),
            rngs=rngs,
        )

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
        encoded = self.batches.encode(split, pairs)
        losses = self.learner.losses(state.parameters, self.batches.evaluation(encoded))
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
        return getattr(self.config.data, "tokenized", False)

    @property
    def sentences_at_once(self) -> int:
        """How many sentences are translated together."""
        return max(1, self.config.decoding.hypotheses // self.config.decoding.num_beams)


def _as_json(source: list[str], found: list[Hypothesis]) -> str:
    """A sentence and its translations on one line."""
    told = {"source": source, "translations": [one._asdict() for one in found]}
    return json.dumps(told, ensure_ascii=False)
