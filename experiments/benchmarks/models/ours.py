"""Our models, data and training in the benchmarks of models: all imports of the tasks are here."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
from flax import nnx
from jax import Array

from attention.decoding import StoppingCriteria
from attention.modules import LanguageModel, TransformerConfig
from experiments import language_model, translation
from experiments.benchmarks.models.sentences import Pair
from experiments.config import Config
from experiments.data.corpus import Corpus, load_corpus
from experiments.data.fingerprint import of_splits
from experiments.data.packing import PackedPairs
from experiments.data.sources import SOURCES
from experiments.data.text import TextBatch
from experiments.training.learner import Learner
from experiments.training.loss import TokenLosses, token_losses
from experiments.training.session import restore
from experiments.workdir import Workdir


def check_translation(settings: Config) -> None:
    """Check that the parallel text is there.

    Raises:
        UsageError: it is not.
    """
    translation.load_splits(settings, ("train", "test"), Path())


class Translation(NamedTuple):
    """Our translation task with its data.

    Attributes:
        task: model, training step and translator.
        vocab_size: V, of both languages.
        train: training pairs.
        batches: packed batches of these, for the training step.
        test: pairs to translate.
    """

    task: translation.Task
    vocab_size: int
    train: list[Pair]
    batches: Iterator[PackedPairs]
    test: list[Pair]


def load_translation(settings: Config, cache: Path, run: Workdir | None = None) -> Translation:
    """Read the parallel text in `data.path`.

    Args:
        settings: `translation` of the benchmark, a config like `configs/multi30k.py`.
        cache: folder of learned subwords.
        run: a workdir with a trained tokenizer; by default, one is learned.

    Raises:
        UsageError: the run was trained on another text.
    """
    splits = translation.load_splits(settings, ("train", "test"), cache)
    text = SOURCES[settings.data.name].text
    if run is None:
        tokenizers = text.learn(settings.text, splits["train"], cache)
    else:
        run.check_texts(of_splits(splits))
        tokenizers = text.load(run.path)
    task = translation.Task(settings, tokenizers)
    splits["train"] = task.batches.fitting(splits["train"])
    encoded = {split: task.batches.encode(split, splits[split]) for split in ("train", "test")}
    batches = task.batches.training(splits["train"], encoded["train"])
    train, test = ([Pair(*pair) for pair in pairs] for pairs in encoded.values())
    return Translation(task, len(tokenizers.target), train, batches, test)


def trained_parameters(found: Translation, run: Workdir) -> nnx.State:
    """Return the parameters of the newest checkpoint of a run.

    Raises:
        UsageError: the run has no checkpoint.
    """
    return restore(run, found.task.learner, found.task.config).parameters


def make_translate(
    found: Translation, parameters: nnx.State, stopping: StoppingCriteria
) -> Callable[[], list[Sequence[int]]]:
    """Return a function that translates the test sentences and returns the ids of each output."""
    task, sources = found.task, [pair.source for pair in found.test]
    translator, size = task.make_translator(stopping), task.sentences_at_once
    return lambda: translator.translate_ids(parameters, sources, batch_size=size)


class Characters:
    """Our character-level language model with its corpus, in training.

    Attributes:
        corpus: training and validation batches.
    """

    def __init__(self, settings: Config, cache: Path) -> None:
        """Read the corpus and initialise the model.

        Args:
            settings: a config like `configs/char_lm.py`.
            cache: folder of generated data.
        """
        self.corpus: Corpus = load_corpus(settings, cache)
        self.vocab_size = len(self.corpus.language.vocabulary)
        self._learner = language_model.Task(settings, self.corpus.language).learner
        self._state = self._learner.initial_state()

    def learn(self, batches: Sequence[TextBatch]) -> None:
        """Run one training step per batch."""
        for batch in batches:
            self._state, _ = self._learner.train_step(self._state, batch)
        jax.block_until_ready(self._state)

    def validation_loss(self) -> float:
        """Return the mean negative log-likelihood of the validation tokens."""
        parameters = self._state.to_use().parameters
        return self._learner.losses(parameters, self.corpus.validation)["nll"]


def make_learner(config: TransformerConfig, vocab_size: int, settings: Config) -> Learner:
    """Return the training of a language model without dropout, as `settings.train` describes it."""

    def make_model(rngs: nnx.Rngs) -> nnx.Module:
        return LanguageModel.from_config(config, vocab_size=vocab_size, rngs=rngs)

    def sum_losses(
        model: LanguageModel, batch: TextBatch, rng: Array | None
    ) -> tuple[TokenLosses, Mapping[str, Array]]:
        del rng  # the model has no dropout
        output = model(batch.inputs)
        return token_losses(output.logits, batch.labels, batch.counted), output.losses

    return Learner(make_model, sum_losses, settings)
