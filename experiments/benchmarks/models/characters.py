"""Training time of a character-level GPT, beside PyTorch loops of the same model."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from experiments.benchmarks.clock import seconds_of
from experiments.benchmarks.models.figure import Figure, Peer, Timed
from experiments.benchmarks.models.ours import Characters
from experiments.benchmarks.peers.torch_gpt import IGNORED, TorchGPT
from experiments.config import Config

STEPS_IN_TURN = 50


def measure(config: ConfigDict, cache: Path) -> Iterator[Figure]:
    """Train all models on the same batches, `STEPS_IN_TURN` steps at a time, to the last step.

    The first step of each, which compiles, is timed by itself. The times exclude reading the data
    and the final validation.

    Args:
        config: `characters` of the benchmark, a config of a language model.
        cache: folder of generated data.
    """
    settings = Config.read(config.characters.to_dict())
    ours, steps = Characters(settings, cache), settings.train.steps
    peers = {tuned: Peer(partial(_Torch, settings, ours, tuned=tuned)) for tuned in (False, True)}
    our_seconds: list[float] = []
    seconds: dict[bool, list[float]] = {tuned: [] for tuned in peers}
    for first, last in pairwise(sorted({0, *range(1, steps, STEPS_IN_TURN), steps})):
        turn = [ours.train[index] for index in range(first, last)]
        our_seconds.append(seconds_of(partial(ours.learn, turn)))
        for tuned, peer in peers.items():
            learn = partial(peer.run, lambda model, turn=turn: model.learn(turn))
            seconds[tuned].append(seconds_of(learn))
    trained = _timed(our_seconds, ours.validation_loss())
    for tuned, name, limit in (
        (False, "a plain PyTorch loop", 0.5),
        (True, "PyTorch with `torch.compile` and the fused optimizer", 1.0),
    ):
        peer, loss = peers[tuned], peers[tuned].run(_Torch.validation_loss)
        theirs = Timed(None, peer.failure) if peer.failure else _timed(seconds[tuned], loss)
        name = f"training on characters, {steps - 1:,} steps after the first ÷ {name}"
        yield Figure(name, limit, trained, theirs)


def _timed(seconds: Sequence[float], loss: float) -> Timed:
    first, *rest = seconds
    return Timed(sum(rest), f"first step {first:.1f} s; validation loss {loss:.3f}")


class _Torch:
    def __init__(self, settings: Config, ours: Characters, *, tuned: bool) -> None:
        self._model = TorchGPT(settings, ours.vocab_size, tuned=tuned)
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
