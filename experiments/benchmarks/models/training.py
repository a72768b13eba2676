"""Training time of a translation model, beside PyTorch's `nn.Transformer`."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.benchmarks.models.figure import Figure
from experiments.benchmarks.models.ours import Translation, load_translation
from experiments.benchmarks.models.sentences import Pair, by_length, padded
from experiments.benchmarks.peers.torch_transformer import TorchTransformer
from experiments.clock import seconds_of
from experiments.config import Config
from experiments.data.vocabulary import PAD

SENTENCES = 128  # pairs per batch of the simplest peer


def measure(config: ConfigDict, cache: Path) -> Iterator[Figure]:
    """Train each model on its own batches, in turn, one step at a time.

    A figure compares medians over the steps of the seconds per thousand target tokens, without
    padding. The first step of each model, which compiles, is not counted. Times exclude making
    the batches.

    Args:
        config: `translation` of the benchmark, and the `steps` of its `training`.
        cache: folder of learned subwords.
    """
    settings = Config.read(config.translation.to_dict())
    found = load_translation(settings, cache)
    random = np.random.default_rng(settings.seed)
    pairs = [found.train[index] for index in random.permutation(len(found.train))]
    sorted_batches = by_length(pairs, settings.batch.tokens)
    runs = {
        "packed": _ours(found),
        "shuffled": _theirs(settings, found.vocab_size, _parts(pairs, SENTENCES)),
        "sorted": _theirs(
            settings,
            found.vocab_size,
            [sorted_batches[index] for index in random.permutation(len(sorted_batches))],
        ),
    }
    turns = [
        {name: next(run) for name, run in runs.items()} for _ in range(config.training.steps + 1)
    ]
    median = {name: float(np.median([turn[name] for turn in turns[1:]])) for name in runs}
    in_words = {
        name: f"{1e6 * taken:,.0f} ms ({1 / taken:,.0f} tokens per second)"
        for name, taken in median.items()
    }
    for theirs, batches, limit in (
        ("shuffled", f"batches of {SENTENCES} pairs", 1 / 3),
        ("sorted", f"{settings.batch.tokens:,} positions of pairs sorted by length", 1 / 1.5),
    ):
        name = f"training on 1,000 target tokens ÷ `nn.Transformer` of PyTorch, {batches}"
        parts = f"{in_words['packed']} ÷ {in_words[theirs]}"
        yield Figure(name, median["packed"] / median[theirs], limit, parts)


def _ours(found: Translation) -> Iterator[float]:
    learner = found.task.learner
    state = learner.initial_state()

    def learn(batch: Any) -> None:  # noqa: ANN401 - of the task
        nonlocal state
        state, _ = learner.train_step(state, batch)
        jax.block_until_ready(state)

    for batch in found.batches:
        yield _seconds_per_token(learn, batch, batch.target.labels)


def _theirs(settings: ConfigDict, vocab_size: int, batches: list[list[Pair]]) -> Iterator[float]:
    peer = TorchTransformer(settings, vocab_size)
    for batch in map(padded, cycle(batches)):
        yield _seconds_per_token(peer.learn, batch, batch.target_labels)


def _seconds_per_token(learn: Callable[[Any], object], batch: object, labels: np.ndarray) -> float:
    return seconds_of(partial(learn, batch)) / np.sum(labels != PAD)


def _parts(pairs: list[Pair], size: int) -> list[list[Pair]]:
    return [pairs[first : first + size] for first in range(0, len(pairs), size)]
