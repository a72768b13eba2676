"""Training time of a character-level GPT, beside a plain PyTorch loop of the same model."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from experiments.benchmarks.models.figure import Figure
from experiments.benchmarks.models.ours import Characters
from experiments.benchmarks.peers.torch_gpt import IGNORED, TorchGPT
from experiments.config import Config

STEPS_IN_TURN = 50


def measure(config: ConfigDict, cache: Path) -> Iterator[Figure]:
    """Train both models on the same batches, `STEPS_IN_TURN` steps at a time, to the last step.

    The times include compilation. They exclude reading the data and the final validation.

    Args:
        config: `characters` of the benchmark, a config of a language model.
        cache: folder of generated data.
    """
    settings = Config.read(config.characters.to_dict())
    ours = Characters(settings, cache)
    runs = {"ours": ours, "torch": _Torch(settings, ours)}
    seconds = dict.fromkeys(runs, 0.0)
    steps, batches = settings.train.steps, ours.train
    for first in range(0, steps, STEPS_IN_TURN):
        turn = [batches[i] for i in range(first, min(first + STEPS_IN_TURN, steps))]
        for name, run in runs.items():
            start = time.perf_counter()
            run.learn(turn)
            seconds[name] += time.perf_counter() - start
    parts = " ÷ ".join(
        f"{seconds[name]:.1f} s (validation loss {run.validation_loss():.3f})"
        for name, run in runs.items()
    )
    name = f"training on characters, {steps:,} steps ÷ a plain PyTorch loop"
    yield Figure(name, seconds["ours"] / seconds["torch"], 0.5, parts)


class _Torch:
    def __init__(self, settings: Config, ours: Characters) -> None:
        self._model = TorchGPT(settings, ours.vocab_size)
        self._validation = ours.validation

    def learn(self, batches: Sequence) -> None:
        for batch in batches:
            self._model.learn(batch.inputs, batch.labels)

    def validation_loss(self) -> float:
        losses = [
            self._model.loss(batch.inputs, np.where(batch.counted, batch.labels, IGNORED))
            for batch in self._validation
        ]
        weights = [batch.counted.sum() for batch in self._validation]
        return float(np.average(losses, weights=weights))
