"""Training time of a translation model, beside PyTorch's `nn.Transformer`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.benchmarks.clock import seconds_of
from experiments.benchmarks.models.figure import Figure, Peer, Timed
from experiments.benchmarks.models.ours import Translation, load_translation
from experiments.benchmarks.models.sentences import PaddedPairs, by_length, padded
from experiments.benchmarks.peers.torch_transformer import TorchTransformer
from experiments.config import Config
from experiments.data.rows import EncodedPair, PackedPairs
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
    task = load_translation(settings, cache)
    vocab_size = len(task.tokenizers.target)
    peers = {
        name: (Peer(partial(_theirs, settings, vocab_size, batches, **options)), limit)
        for name, batches, options, limit in _peers(settings, task)
    }
    ours, turns = _ours(task), range(config.training.steps + 1)
    times = [[next(ours), *(peer.run(next) for peer, _ in peers.values())] for _ in turns]
    trained, *others = zip(*times[1:], strict=True)
    for (name, (peer, limit)), taken in zip(peers.items(), others, strict=True):
        theirs = Timed(None, peer.failure) if peer.failure else _timed(taken)
        name = f"training on 1,000 target tokens ÷ `nn.Transformer` of PyTorch, {name}"
        yield Figure(name, limit, _timed(trained), theirs)


def _peers(
    settings: Config, task: Translation
) -> Iterator[tuple[str, Iterable[PaddedPairs | PackedPairs], dict[str, bool], float]]:
    """Yield the name of each PyTorch loop, its batches, its options and our goal."""
    random, train = np.random.default_rng(settings.seed), task.ids("train")
    pairs = [train[index] for index in random.permutation(len(train))]
    shuffled = _parts(pairs, SENTENCES)
    by_size = by_length(pairs, settings.batch.tokens)
    by_size = [by_size[index] for index in random.permutation(len(by_size))]
    positions = f"{settings.batch.tokens:,} positions"
    yield f"batches of {SENTENCES} pairs", map(padded, cycle(shuffled)), {}, 1 / 3
    yield f"{positions} of pairs sorted by length", map(padded, cycle(by_size)), {}, 1 / 1.5
    packed = iter(task.training_batches())
    name = f"{positions} of packed rows, with `torch.compile` and the fused optimizer"
    yield name, packed, {"tuned": True}, 1.0


def _ours(task: Translation) -> Iterator[float]:
    learner = task.learner
    state = learner.initial_state()

    def learn(batch: PackedPairs) -> None:
        nonlocal state
        state, _ = learner.train_step(state, batch)
        jax.block_until_ready(state)

    for batch in task.training_batches():
        yield _seconds_per_token(learn, batch)


def _theirs(
    settings: Config,
    vocab_size: int,
    batches: Iterable[PaddedPairs | PackedPairs],
    *,
    tuned: bool = False,
) -> Iterator[float]:
    peer = TorchTransformer(settings, vocab_size, tuned=tuned)
    for batch in batches:
        yield _seconds_per_token(peer.learn, batch)


def _timed(seconds_per_token: Sequence[float]) -> Timed:
    median = float(np.median(seconds_per_token))
    return Timed(1e3 * median, f"{1 / median:,.0f} tokens per second")


def _seconds_per_token(learn: Callable[[Any], object], batch: PaddedPairs | PackedPairs) -> float:
    labels = batch.target.labels if isinstance(batch, PackedPairs) else batch.target_labels
    return seconds_of(partial(learn, batch)) / np.sum(labels != PAD)


def _parts(pairs: list[EncodedPair], size: int) -> list[list[EncodedPair]]:
    return [pairs[first : first + size] for first in range(0, len(pairs), size)]
