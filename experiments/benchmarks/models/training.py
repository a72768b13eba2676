"""How long a translator takes to learn from text, beside PyTorch's `nn.Transformer`."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.benchmarks.models.figure import Figure
from experiments.benchmarks.models.sentences import by_length, load_sentences, padded
from experiments.benchmarks.models.torch_transformer import TorchTransformer
from experiments.clock import seconds_of
from experiments.config import Config
from experiments.data.rows import EncodedPair, PackedPairs
from experiments.data.vocabulary import PAD
from experiments.tasks.translation import Translation

SENTENCES = 128  # of a batch that is made the simplest way


def measure(config: ConfigDict, cache: Path) -> Iterator[Figure]:
    """Lets each learn from batches of its own, a step at a time, in turn.

    A figure compares medians over the steps of the time that a thousand target tokens take;
    padding is no token. The first step of each, which compiles, is not counted; nor is the making
    of batches.

    Args:
        config: `translation` of the benchmark, and the `steps` of its `training`.
        cache: where subwords are kept.

    Raises:
        FileNotFoundError: no sentences are named.
        ImportError: torch is not installed.
    """
    settings = Config.read(config.translation.to_dict())
    found = load_sentences(settings, cache)
    random = np.random.default_rng(settings.seed)
    pairs = [found.train[place] for place in random.permutation(len(found.train))]
    alike = by_length(pairs, settings.batch.tokens)
    runs = {
        "packed": _ours(found.task, found.batches),
        "shuffled": _theirs(settings, found.vocab_size, _parts(pairs, SENTENCES)),
        "sorted": _theirs(
            settings, found.vocab_size, [alike[place] for place in random.permutation(len(alike))]
        ),
    }
    turns = [
        {name: next(run) for name, run in runs.items()} for _ in range(config.training.steps + 1)
    ]
    median = {name: float(np.median([turn[name] for turn in turns[1:]])) for name in runs}
    in_words = {
        name: f"{1e6 * taken:,.0f} ms ({1 / taken:,.0f} tokens a second)"
        for name, taken in median.items()
    }
    for theirs, batches, limit in (
        ("shuffled", f"batches of {SENTENCES} pairs", 1 / 3),
        ("sorted", f"{settings.batch.tokens:,} positions of pairs sorted by length", 1 / 1.5),
    ):
        name = f"learning 1,000 tokens of translations ÷ `nn.Transformer` of PyTorch, {batches}"
        parts = f"{in_words['packed']} ÷ {in_words[theirs]}"
        yield Figure(name, median["packed"] / median[theirs], limit, parts)


def _ours(task: Translation, batches: Iterator[PackedPairs]) -> Iterator[float]:
    state = task.learner.initial_state()

    def learn(batch: PackedPairs) -> None:
        nonlocal state
        state, _ = task.learner.train_step(state, batch)
        jax.block_until_ready(state)

    for batch in batches:
        yield _seconds_a_token(learn, batch, batch.target.labels)


def _theirs(
    settings: ConfigDict, vocab_size: int, batches: list[list[EncodedPair]]
) -> Iterator[float]:
    peer = TorchTransformer(settings, vocab_size)
    for batch in map(padded, cycle(batches)):
        yield _seconds_a_token(peer.learn, batch, batch.target_labels)


def _seconds_a_token(learn: Callable[[Any], object], batch: object, labels: np.ndarray) -> float:
    return seconds_of(partial(learn, batch)) / np.sum(labels != PAD)


def _parts(pairs: list[EncodedPair], size: int) -> list[list[EncodedPair]]:
    return [pairs[first : first + size] for first in range(0, len(pairs), size)]
