"""How long a small GPT learns letters, beside a plain PyTorch loop of the same model."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.benchmarks.models.figure import Figure
from experiments.benchmarks.models.torch_gpt import TorchGPT
from experiments.config import Config
from experiments.data.text import TextBatch
from experiments.tasks.language_model import LanguageModeling

TURN = 50  # steps, after which it is the other's turn


def measure(config: ConfigDict, cache: Path) -> Iterator[Figure]:
    """Trains both on the same batches, in turn, to the last step.

    The seconds are those of all steps, with what is compiled for them; reading the data and the
    validation at the end are not.

    Args:
        config: `characters` of the benchmark, a configuration of a language model.
        cache: where generated data is kept.

    Raises:
        ImportError: torch is not installed.
    """
    settings = Config.read(config.characters.to_dict())
    task = LanguageModeling.prepare(settings, cache)
    train = task.training_batches()
    runs = {"ours": _Ours(task), "torch": _Torch(task)}
    seconds = dict.fromkeys(runs, 0.0)
    for first in range(0, settings.train.steps, TURN):
        batches = [train[i] for i in range(first, min(first + TURN, settings.train.steps))]
        for name, run in runs.items():
            start = time.perf_counter()
            run.learn(batches)
            seconds[name] += time.perf_counter() - start
    parts = " ÷ ".join(
        f"{seconds[name]:.1f} s (validation loss {run.validation_loss():.3f})"
        for name, run in runs.items()
    )
    name = f"training on letters, {settings.train.steps:,} steps ÷ a plain PyTorch loop"
    yield Figure(name, seconds["ours"] / seconds["torch"], 0.5, parts)


class _Ours:
    def __init__(self, task: LanguageModeling) -> None:
        self._learner = task.learner
        self._state = self._learner.initial_state()
        self._validation = task.batches("validation")

    def learn(self, batches: Sequence[TextBatch]) -> None:
        for batch in batches:
            self._state, _ = self._learner.train_step(self._state, batch)
        jax.block_until_ready(self._state)

    def validation_loss(self) -> float:
        return self._learner.losses(self._state.to_use().parameters, self._validation)["nll"]


class _Torch:
    def __init__(self, task: LanguageModeling) -> None:
        self._model = TorchGPT(task.config, len(task.tokenizers.source))
        self._validation = task.batches("validation")

    def learn(self, batches: Sequence[TextBatch]) -> None:
        for batch in batches:
            self._model.learn(batch.inputs, batch.labels)

    def validation_loss(self) -> float:
        unseen = -100  # which torch leaves out
        losses = [
            self._model.loss(batch.inputs, np.where(batch.counted, batch.labels, unseen))
            for batch in self._validation
        ]
        weights = [batch.counted.sum() for batch in self._validation]
        return float(np.average(losses, weights=weights))
