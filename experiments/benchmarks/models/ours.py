"""Our models, data and training in the benchmarks of models: all imports of the tasks are here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import jax
from flax import nnx
from jax import Array

from attention.decoding import StoppingCriteria
from attention.modules import LanguageModel, TransformerConfig
from experiments.config import Config
from experiments.data.text import TextBatch
from experiments.errors import as_usage_errors
from experiments.learner import Learner
from experiments.losses import TokenLosses, token_losses
from experiments.registry import DATASETS
from experiments.tasks.language_model import LanguageModeling
from experiments.tasks.translation import Translation
from experiments.workdir import CHANGEABLE, IGNORED_WHEN_COMPARING_CONFIGS, Workdir


def check_translation(settings: Config) -> None:
    """Check that the parallel text is there.

    Raises:
        UsageError: it is not.
    """
    with as_usage_errors():
        for split in ("train", "test"):
            next(iter(DATASETS[settings.data.name].source.load(settings.data, split, Path())))


# Fields in which a run may differ: the peers copy the rest of the model.
RECIPE = "batch", "decoding", "model.attention_dropout", "model.dropout", "seed", "text", "train"


def trained_config(run: Workdir, settings: Config) -> Config:
    """Return `settings` with the recipe of a trained run, but the decoding of `settings`.

    Raises:
        UsageError: the run has another task, text or model, or no checkpoint.
    """
    but = (*RECIPE, *IGNORED_WHEN_COMPARING_CONFIGS, *CHANGEABLE)
    trained = run.check_same(settings, but=but)
    trained.data.path = settings.data.path
    return replace(run.as_trained(Config.read(trained.to_dict())), decoding=settings.decoding)


def load_translation(settings: Config, cache: Path, run: Workdir | None = None) -> Translation:
    """Return our translation task for the parallel text in `data.path`.

    Args:
        settings: a config like `configs/multi30k.py`: that of the benchmark, or of `run`.
        cache: folder of learned subwords.
        run: a workdir with a trained tokenizer; by default, one is learned.

    Raises:
        UsageError: the run was trained on another text.
    """
    if run is None:
        return Translation.prepare(settings, cache)
    task = Translation.load(settings, run, cache)
    run.check_fingerprints({split: task.splits[split].fingerprint for split in ("train", "test")})
    return task


def make_translate(
    task: Translation, parameters: nnx.State, stopping: StoppingCriteria
) -> Callable[[], list[Sequence[int]]]:
    """Return a function that translates the test sentences and returns the ids of each output."""
    sources = [pair.source for pair in task.ids("test")]
    translator, size = task.make_translator(stopping), task.sentences_at_once
    return lambda: translator.translate_ids(parameters, sources, batch_size=size)


class Characters:
    """Our character-level language model with its batches, in training.

    Attributes:
        train: the batch of each step.
        validation: batches that contain every character once.
        vocab_size: V.
    """

    def __init__(self, settings: Config, cache: Path) -> None:
        """Read the text and initialise the model.

        Args:
            settings: a config like `configs/char_lm.py`.
            cache: folder of generated data.
        """
        task = LanguageModeling.prepare(settings, cache)
        self.train, self.validation = task.training_batches(), task.batches("validation")
        self.vocab_size = len(task.tokenizers.source)
        self._learner = task.learner
        self._state = self._learner.initial_state()

    def learn(self, batches: Sequence[TextBatch]) -> None:
        """Run one training step per batch."""
        for batch in batches:
            self._state, _ = self._learner.train_step(self._state, batch)
        jax.block_until_ready(self._state)

    def validation_loss(self) -> float:
        """Return the mean negative log-likelihood of the validation tokens."""
        parameters = self._state.with_ema().parameters
        return self._learner.losses(parameters, self.validation)["nll"]


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
