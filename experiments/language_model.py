"""Language modelling: train a decoder to say what comes next, measure it, let it write."""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path

from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from attention.modules import POSITIONS, LanguageModel, TransformerConfig
from attention.primitives import masks
from experiments.data.corpus import (
    Language,
    check_corpus,
    language_of,
    load_corpus,
    load_vocabulary,
)
from experiments.data.rows import PackedBatch
from experiments.data.text import Characters, TextBatch
from experiments.errors import UsageError, as_usage_errors, check_at_least
from experiments.evaluation.writer import Writer, check_decoding
from experiments.experts import check_experts, make_layer
from experiments.model_checks import check_model
from experiments.training.duration import settled
from experiments.training.learner import Learner
from experiments.training.loss import TokenLosses, objective, token_losses
from experiments.training.session import check_training, evaluate_in, measured, restore, train_in
from experiments.training.step import TrainState
from experiments.workdir import Workdir

SAMPLED = 200  # tokens of a sample


def train(config: ConfigDict, workdir: Workdir, cache: Path) -> None:
    """Trains a language model, or goes on from where its workdir stands, and measures it.

    Args:
        config: of the run, as `check` passes it.
        workdir: where all that the run makes goes.
        cache: where generated data is kept.
    """
    config = settled(config, lambda now: load_corpus(now, cache).train.epoch)
    corpus = load_corpus(config, cache)
    task = Task(config, corpus.language)
    workdir.claim(config)
    workdir.keep_texts(corpus.texts)
    workdir.keep_vocabulary(corpus.language.vocabulary.as_text())
    print(
        f"a vocabulary of {len(corpus.language.vocabulary)}, "
        f"{corpus.padding:.1%} padding, {task.learner.num_parameters:,} parameters"
    )
    train_in(
        workdir,
        task.learner,
        corpus.train,
        validation=corpus.validation,
        sample=task.sample,
        measure=lambda state: task.measure(state, corpus.validation),
        config=config,
    )


def evaluate(config: ConfigDict, workdir: Workdir, cache: Path, split: str | None = None) -> None:
    """Measures the newest checkpoint of a run; its results file is written again.

    Raises:
        UsageError: another split than the one it is measured on, or another text.
    """
    measured(split, tests=("validation",))
    with as_usage_errors():
        corpus = load_corpus(config, cache)
    workdir.keep_texts(corpus.texts)
    task = Task(config, corpus.language)
    measure = partial(task.measure, validation=corpus.validation)
    evaluate_in(workdir, task.learner, measure, config)


def generate(config: ConfigDict, workdir: Workdir, groups: Iterable[list[str]]) -> int:
    """Goes on with each line, as `config.decoding` says, and shows each token as it comes.

    Args:
        config: of the run.
        workdir: of the run.
        groups: prompts, in groups as they come.

    Returns:
        How many could not be read; for each, a sentence on standard error says why.
    """
    task = load_task(config, workdir)
    state = restore(workdir, task.learner, config)
    failed = 0
    for number, line in enumerate(chain.from_iterable(groups), start=1):
        try:
            pieces = task.writer(state.parameters, line)
        except ValueError as error:
            failed += 1
            print(f"line {number}: {error}", file=sys.stderr, flush=True)
        else:
            print(line, end=" " if config.data.name == "sentences" else "")
            for piece in pieces:
                print(piece, end="", flush=True)
        print(flush=True)
    return failed


def check(config: ConfigDict) -> None:
    """Refuses, before anything is written, a configuration that cannot run.

    Raises:
        UsageError: in one sentence.
    """
    check_use(config)
    with as_usage_errors():
        check_corpus(config.data)
    if config.train.batch_tokens < config.data.context:
        raise UsageError(
            f"train.batch_tokens={config.train.batch_tokens} has no room for a row of "
            f"data.context={config.data.context}"
        )


def check_use(config: ConfigDict) -> None:
    """Refuses a configuration that cannot be used, whether its data is there or not.

    Raises:
        UsageError: in one sentence.
    """
    check_training(config)
    check_model(config)
    with as_usage_errors():
        check_decoding(config.decoding)
        check_at_least("model.decoder_layers", config.model.decoder_layers, 1)
        if "experts" in config:
            check_experts(config.experts)
    kind, longest = config.model.positions, config.model.max_length
    if POSITIONS[kind].embed is not None and config.decoding.max_tokens >= longest:
        raise UsageError(
            f"{kind} positions end at model.max_length={longest}, and decoding.max_tokens="
            f"{config.decoding.max_tokens} goes on behind it: lower it, or choose rotary positions"
        )
    if not config.data.context <= config.model.max_length:
        raise UsageError(
            f"data.context={config.data.context} is longer than model.max_length="
            f"{config.model.max_length}"
        )


def abstract_model(config: ConfigDict, cache: Path) -> nnx.Module:
    """The model of a configuration that was checked, with shapes for parameters.

    Args:
        config: of a run.
        cache: where generated data is kept, whose words decide the size of the model.
    """
    return Task(config, load_corpus(config, cache).language).learner.abstract_model


def load_task(config: ConfigDict, workdir: Workdir) -> "Task":
    """What a run was trained to do."""
    kind = config.data.name
    vocabulary = workdir.load_vocabulary(lambda text: load_vocabulary(kind, text))
    return Task(config, language_of(kind, vocabulary))


class Task:
    """A configuration brought to life: the model, and what it writes."""

    def __init__(self, config: ConfigDict, language: Language) -> None:
        """Builds everything but numbers: no parameter is allocated yet."""
        self.config = config
        self._language = language
        self.learner = Learner(self._make_model, self._sum_losses, config)
        self.writer = Writer(self.learner.definition, language, config)

    def _make_model(self, rngs: nnx.Rngs) -> LanguageModel:
        settings = TransformerConfig(**self.config.model)
        experts = self.config.get("experts")
        make = None if experts is None else partial(make_layer, settings, experts)
        vocab_size = len(self._language.vocabulary)
        return LanguageModel.from_config(
            settings, vocab_size=vocab_size, rngs=rngs, make_layer=make
        )

    def _sum_losses(
        self, model: LanguageModel, batch: TextBatch | PackedBatch, rng: Array | None
    ) -> tuple[TokenLosses, Mapping[str, Array]]:
        mask = positions = None
        if isinstance(batch, PackedBatch):  # texts of a row do not attend to each other
            mask, positions = masks.segments(batch.segments), batch.positions
        output = model(batch.inputs, mask=mask, positions=positions, rng=rng)
        loss = objective(self.config.train, training=rng is not None)
        return token_losses(output.logits, batch.labels, batch.counted, loss), output.losses

    def measure(
        self, state: TrainState, validation: Sequence[TextBatch | PackedBatch]
    ) -> dict[str, dict[str, float]]:
        """Loss, accuracy and perplexity on the whole validation text."""
        losses = self.learner.losses(state.parameters, validation)
        return {"validation": losses | {"perplexity": math.exp(losses["nll"])}}

    def sample(self, state: TrainState) -> str:
        """What the model says of itself."""
        vocabulary = self._language.vocabulary
        prompt = vocabulary.characters[0] if isinstance(vocabulary, Characters) else ""
        return "".join(islice(self.writer(state.parameters, prompt), SAMPLED))
