"""What the figures of translation are measured on: a task, and its sentences as ids."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.config import Config
from experiments.data.rows import Batch, EncodedPair, PackedPairs, pad_batch
from experiments.data.vocabulary import PAD
from experiments.tasks.translation import Translation
from experiments.workdir import Workdir


class Sentences(NamedTuple):
    """What is translated, and by what.

    Attributes:
        task: the model and what it does with sentences.
        vocab_size: V, of both languages.
        train: the pairs that are learned from.
        batches: of these, as the task learns from them.
        test: the pairs that are translated.
    """

    task: Translation
    vocab_size: int
    train: list[EncodedPair]
    batches: Iterator[PackedPairs]
    test: list[EncodedPair]


def load_sentences(settings: Config, cache: Path, run: Workdir | None = None) -> Sentences:
    """Reads the sentences that `data.path` names.

    Args:
        settings: `translation` of the benchmark, a configuration like `configs/multi30k.py`.
        cache: where subwords are kept.
        run: whose subwords they are; by default they are learned.

    Raises:
        FileNotFoundError: it names none.
        UsageError: they are others than those of the run.
    """
    if not settings.data.path:
        raise FileNotFoundError("translation.data.path names no folder of parallel text")
    if run is None:
        task = Translation.prepare(settings, cache)
    else:
        task = Translation.load(settings, run, cache)
        run.check_texts({name: task.splits[name].fingerprint for name in ("train", "test")})
    train, test = ([*task.ids(split)] for split in ("train", "test"))
    vocab_size = len(task.tokenizers.target)
    return Sentences(task, vocab_size, train, iter(task.training_batches()), test)


def padded(pairs: Sequence[EncodedPair]) -> Batch:
    """A batch that is as long as its longest sentence, on either side."""
    batch = pad_batch(pairs, len(pairs), max(pair.length for pair in pairs))
    read, said = batch.source_lengths.max(), np.sum(batch.target_labels != PAD, axis=1).max()
    return Batch(
        batch.source[:, :read],
        batch.source_lengths,
        batch.target_inputs[:, :said],
        batch.target_labels[:, :said],
    )


def by_length(pairs: Sequence[EncodedPair], tokens: int) -> list[list[EncodedPair]]:
    """Batches of so many positions a side, from the shortest pair to the longest."""
    batches: list[list[EncodedPair]] = [[]]
    for pair in sorted(pairs, key=lambda pair: pair.length):
        if pair.length * (len(batches[-1]) + 1) > tokens:
            batches.append([])
        batches[-1].append(pair)
    return batches
