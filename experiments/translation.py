"""Translation: train an encoder-decoder, measure it, use it."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import jax
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from attention.modules.config import TransformerConfig
from attention.modules.transformer import EncoderDecoder
from attention.primitives import masks
from experiments.analysis.pictures import draw_cross_attention, draw_learning_curve
from experiments.compilation import compiled
from experiments.data.batching import (
    Batch,
    Buckets,
    EncodedPair,
    evaluation_batches,
    training_batches,
)
from experiments.data.translation import SentencePair, Vocabularies, check_source, load_split
from experiments.data.vocabulary import PAD
from experiments.errors import UsageError
from experiments.evaluation.scores import translation_scores
from experiments.evaluation.translator import Translator
from experiments.files import write_whole
from experiments.training.checkpoint import Checkpoints
from experiments.training.loop import fit
from experiments.training.loss import TokenLosses, per_token, token_losses
from experiments.training.metrics import Metrics
from experiments.training.optimizer import optimizer
from experiments.training.step import TrainState, make_steps
from experiments.workdir import Workdir

TESTS = ("test", "compositional", "longer")


def train(config: ConfigDict, workdir: Workdir, cache: Path) -> None:
    """Trains a translator, or goes on from where its workdir stands, and measures it.

    Args:
        config: of the run.
        workdir: where all that the run makes goes.
        cache: where generated data is kept.
    """
    check(config)
    workdir.claim(config)
    print(f"reading the {config.data.name} data, which is generated the first time")
    splits = load_splits(config, ("train", "validation", *TESTS), cache)
    vocabularies = Vocabularies.of(splits["train"])
    vocabularies.keep(workdir.path)

    task = Task(config, vocabularies)
    encoded = {split: task.encode(split, pairs) for split, pairs in splits.items()}
    print(
        f"{len(encoded['train']):,} sentence pairs of {len(vocabularies.source)} and "
        f"{len(vocabularies.target)} words, {task.num_parameters:,} parameters"
    )
    batches = training_batches(
        task.buckets(encoded["train"], config.data.bucket_lengths),
        num_batches=config.train.steps,
        seed=config.seed,
    )
    validation_buckets = task.evaluation_buckets(encoded["validation"])
    with Checkpoints(workdir.checkpoints) as checkpoints:
        seconds = 0.0
        if checkpoints.latest_step() is None:
            workdir.check_fresh(config.train.checkpoint_every)
            state = task.initial_state()
        else:
            state, progress = checkpoints.restore(task.abstract_state)
            batches.set_state(progress["batches"])
            seconds = progress["seconds"]
        with Metrics(workdir.path, step=int(state.step)) as metrics:
            state, seconds = fit(
                state,
                batches,
                task.train_step,
                config=config.train,
                metrics=metrics,
                checkpoints=checkpoints,
                evaluate=lambda state: task.losses(state.parameters, validation_buckets),
                sample=lambda state: task.sample(state, splits["validation"][:3], workdir.samples),
                seconds=seconds,
            )
    draw_learning_curve(workdir.path, workdir.learning_curve)
    report(task, state, splits, workdir, seconds)


def evaluate(config: ConfigDict, workdir: Workdir, cache: Path) -> None:
    """Measures the newest checkpoint of a run.

    Args:
        config: of the run.
        workdir: of the run; its results file is written again.
        cache: where generated data is kept.
    """
    task, state, seconds = restore(config, workdir)
    report(task, state, load_splits(config, TESTS, cache), workdir, seconds)


def translate(config: ConfigDict, workdir: Workdir, lines: Iterable[str]) -> int:
    """Translates sentences as they come, one a line; what cannot be translated is an empty line.

    Args:
        config: of the run.
        workdir: of the run.
        lines: English sentences.

    Returns:
        How many could not be translated; for each, a sentence on standard error says why.
    """
    task, state, _ = restore(config, workdir)
    failed = 0
    for number, line in enumerate(lines, start=1):
        try:
            (translation,) = task.translator(state.parameters, [line], batch_tokens=0)
        except ValueError as error:
            translation, failed = "", failed + 1
            print(f"line {number}: {error}", file=sys.stderr, flush=True)
        print(translation, flush=True)
    return failed


def check(config: ConfigDict) -> None:
    """Refuses, before anything is written, a configuration that cannot run.

    Raises:
        UsageError: in one sentence.
    """
    train, data, model = config.train, config.data, config.model
    every = ("log_every", "evaluate_every", "sample_every", "checkpoint_every")
    for name in ("steps", "batch_tokens", *every):
        if train[name] < 1:
            raise UsageError(f"train.{name} must be at least 1, got {train[name]}")
    for name in ("encoder_layers", "decoder_layers"):
        if model[name] < 1:
            raise UsageError(f"model.{name} must be at least 1, got {model[name]}")
    if not 0 <= train.label_smoothing < 1:
        raise UsageError(f"train.label_smoothing must lie in [0, 1), got {train.label_smoothing}")
    if not 0 <= config.seed < 2**32:
        raise UsageError(f"seed must lie in [0, 2**32), got {config.seed}")
    if not all(2 <= length <= model.max_length for length in data.bucket_lengths):
        raise UsageError(
            f"data.bucket_lengths must lie in [2, model.max_length={model.max_length}], "
            f"got {tuple(data.bucket_lengths)}"
        )
    if train.batch_tokens < model.max_length:
        raise UsageError(
            f"train.batch_tokens={train.batch_tokens} has no room for a sentence of "
            f"model.max_length={model.max_length}"
        )
    if model.tie == "all":
        raise UsageError(
            "model.tie='all' needs one vocabulary, and each language has its own: use 'output'"
        )
    try:
        TransformerConfig(**model)
        optimizer(train)
        check_source(data)
    except ValueError as error:
        raise UsageError(str(error)) from error


def restore(config: ConfigDict, workdir: Workdir) -> tuple["Task", TrainState, float]:
    """The task, the newest training state and the seconds of training of a run.

    Raises:
        UsageError: the run has no checkpoint yet.
    """
    if not workdir.checkpoints.exists():
        raise UsageError(f"{workdir.path} has no checkpoint yet: train it first")
    task = Task(config, Vocabularies.load(workdir.path))
    with Checkpoints(workdir.checkpoints) as checkpoints:
        state, progress = checkpoints.restore(task.abstract_state)
    return task, state, progress["seconds"]


def load_splits(
    config: ConfigDict, names: Sequence[str], cache: Path
) -> dict[str, list[SentencePair]]:
    """Splits of the data of a run, by name."""
    return {name: load_split(config.data, name, cache) for name in names}


def report(
    task: "Task",
    state: TrainState,
    splits: Mapping[str, list[SentencePair]],
    workdir: Workdir,
    seconds: float,
) -> None:
    """Measures a model on the test splits, writes the results file and draws its attention."""
    results = {
        "step": int(state.step),
        "training_seconds": round(seconds, 1),
        "parameters": task.num_parameters,
        "splits": {split: task.scores(state.parameters, split, splits[split]) for split in TESTS},
    }
    write_whole(workdir.results, json.dumps(results, indent=2) + "\n")
    shown = next(pair for pair in splits["test"] if len(pair.source.split()) >= 7)
    weights, source, target = task.translator.cross_attention(state.parameters, *shown[:2])
    draw_cross_attention(weights, source, target, shown.alignment, workdir.attention)

    print(f"{results['step']:,} steps, {results['training_seconds']} s of training")
    for split, scores in results["splits"].items():
        print(
            f"{split:14s}exact match {scores['exact_match']:7.2%}   token accuracy "
            f"{scores['token_accuracy']:7.2%}   BLEU {scores['bleu']:6.2f}"
        )
    print(f"everything is in {workdir.path}")


class Task:
    """A configuration brought to life: the model, its steps, and what it can do."""

    def __init__(self, config: ConfigDict, vocabularies: Vocabularies) -> None:
        """Builds everything but numbers: no parameter is allocated yet."""
        self.config = config
        self._vocabularies = vocabularies
        self._optimizer = optimizer(config.train)
        self.initial_state = compiled(self._make_state)
        self.abstract_state = jax.eval_shape(self.initial_state)
        self.num_parameters = sum(x.size for x in jax.tree.leaves(self.abstract_state.parameters))
        model = jax.eval_shape(self._make_model, jax.random.key(0))
        definition = nnx.graphdef(model)
        self.train_step, self.evaluate_step = make_steps(
            definition, self._sum_losses, self._optimizer
        )
        self.translator = Translator(
            definition,
            vocabularies,
            bucket_lengths=[max(config.data.bucket_lengths)],
            max_length=config.model.max_length,
        )

    def _make_state(self) -> TrainState:
        """The state before the first step, which follows from the seed."""
        model_key, step_key = jax.random.split(jax.random.key(self.config.seed))
        parameters = nnx.state(self._make_model(model_key))
        return TrainState(
            step=jax.numpy.int32(0),
            parameters=parameters,
            optimizer=self._optimizer.init(parameters),
            key=step_key,
        )

    def _make_model(self, key: Array) -> EncoderDecoder:
        return EncoderDecoder(
            TransformerConfig(**self.config.model),
            source_vocab_size=len(self._vocabularies.source),
            target_vocab_size=len(self._vocabularies.target),
            rngs=nnx.Rngs(key),
        )

    def _sum_losses(self, model: EncoderDecoder, batch: Batch, key: Array | None) -> TokenLosses:
        source_mask = masks.lengths(batch.source_lengths)
        logits = model(
            batch.source,
            batch.target_inputs,
            source_mask=source_mask,
            memory_mask=source_mask,
            key=key,
        )
        smoothing = 0.0 if key is None else self.config.train.label_smoothing
        return token_losses(logits, batch.target_labels, batch.target_labels != PAD, smoothing)

    def encode(self, split: str, pairs: list[SentencePair]) -> list[EncodedPair]:
        """The sentences of a split as ids.

        Raises:
            UsageError: sentences that the model has no room for, with the length they need.
        """
        encoded = [self._vocabularies.encode(pair) for pair in pairs]
        needed = max(pair.length for pair in encoded)
        if needed > self.config.model.max_length:
            raise UsageError(
                f"the {split} split needs {needed} positions: raise model.max_length="
                f"{self.config.model.max_length}"
            )
        return encoded

    def buckets(self, pairs: Sequence[EncodedPair], lengths: Iterable[int]) -> Buckets:
        """Sentences as batches of these lengths, and of the longest that the model takes."""
        lengths = {*lengths, self.config.model.max_length}
        return Buckets(pairs, sorted(lengths), self.config.train.batch_tokens)

    def evaluation_buckets(self, pairs: Sequence[EncodedPair]) -> Buckets:
        """Sentences as batches of few lengths: compiling costs more than a little padding."""
        return self.buckets(pairs, [max(self.config.data.bucket_lengths)])

    def losses(self, parameters: nnx.State, buckets: Buckets) -> dict[str, float]:
        """Loss and accuracy per token of a whole split, without dropout."""
        sums = [self.evaluate_step(parameters, batch) for _, batch in evaluation_batches(buckets)]
        total = jax.tree.map(lambda *parts: sum(parts), *sums)
        return {name: float(value) for name, value in per_token(total).items()}

    def scores(
        self, parameters: nnx.State, split: str, pairs: list[SentencePair]
    ) -> dict[str, object]:
        """All that is reported of a split."""
        losses = self.losses(parameters, self.evaluation_buckets(self.encode(split, pairs)))
        translations = self.translator(
            parameters,
            [pair.source for pair in pairs],
            batch_tokens=self.config.train.batch_tokens,
        )
        return losses | translation_scores(translations, [pair.target for pair in pairs])

    def sample(self, state: TrainState, pairs: list[SentencePair], path: Path) -> str:
        """Translates a few sentences and appends them to a file."""
        translations = self.translator(
            state.parameters,
            [pair.source for pair in pairs],
            batch_tokens=self.config.train.batch_tokens,  # the shapes that scores compile too
        )
        lines = [f"step {int(state.step)}"]
        for pair, translation in zip(pairs, translations, strict=True):
            mark = "=" if translation == pair.target else "≠"
            lines.append(f"  {pair.source}\n  → {translation}\n  {mark} {pair.target}")
        text = "\n".join(lines)
        with path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
        return text
