"""Cost of depth: compilation time of a training step, and scanned layers beside unrolled ones."""

import time
from collections.abc import Iterator
from dataclasses import replace

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.benchmarks.models.figure import Figure, Timed
from experiments.benchmarks.models.ours import Learner, TextBatch, make_learner
from experiments.clock import round_robin
from experiments.config import Config

VOCABULARY = 65


def measure(config: ConfigDict) -> Iterator[Figure]:
    """Compile and run training steps of language models of different depths.

    Args:
        config: `depth` of the benchmark, and its `rounds`.
    """
    settings = config.depth
    shallow, deep = settings.layers
    compiling = {
        layers: [_seconds_to_compile(settings, layers) for _ in range(settings.compilations)]
        for layers in (shallow, deep)
    }
    median = {layers: float(np.median(taken)) for layers, taken in compiling.items()}
    name = f"compiling a training step, {deep} layers ÷ {shallow}"
    yield Figure(name, 1.3, Timed(median[deep]), Timed(median[shallow]))

    for layers in (shallow, deep):
        steps = {
            "scanned": _Step(settings, learner(language_model(settings), layers)),
            "unrolled": _Step(settings, learner(language_model(settings), layers, scan=False)),
        }
        times = round_robin(steps, seconds=settings.seconds, rounds=10 * config.rounds)
        ours, theirs = (float(np.median(times[name])) for name in ("scanned", "unrolled"))
        name = f"a training step, {layers} layers, scanned ÷ unrolled"
        yield Figure(name, 1.0, Timed(ours), Timed(theirs))


def language_model(settings: ConfigDict) -> Config:
    """Return the config of the language model that is measured.

    Args:
        settings: `depth` of the benchmark.
    """
    tree = {
        "task": "language_model",
        "seed": settings.seed,
        "model": settings.model.to_dict(),
        "train": settings.train.to_dict(),
        "batch": {
            "tokens": settings.batch * settings.length,
            "row_length": settings.length,
        },
    }
    return Config.read(tree)


def learner(settings: Config, layers: int, *, scan: bool = True) -> Learner:
    """Return the training of a language model of `layers` layers, scanned or unrolled."""
    # Without remat, a shallow stack is always unrolled.
    changed = {"decoder_layers": layers, "remat": True, "scan": scan}
    return make_learner(replace(settings.model, **changed), VOCABULARY, settings)


def _batch(settings: ConfigDict) -> TextBatch:
    shape = settings.batch, settings.length
    tokens = np.random.default_rng(0).integers(VOCABULARY, size=shape, dtype=np.int32)
    return TextBatch(tokens, tokens, np.ones(shape, bool))


def _seconds_to_compile(settings: ConfigDict, layers: int) -> float:
    one = learner(language_model(settings), layers)
    start = time.perf_counter()
    one.train_step.lower(one.padded_state, _batch(settings)).compile()
    return time.perf_counter() - start


class _Step:
    """A training that runs one more step at each call."""

    def __init__(self, settings: ConfigDict, learner: Learner) -> None:
        self._learner = learner
        self._batch = _batch(settings)
        self._state = self._learner.initial_state()
        self()  # compiles

    def __call__(self) -> None:
        self._state, _ = self._learner.train_step(self._state, self._batch)
        jax.block_until_ready(self._state)
