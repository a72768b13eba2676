"""What the figures of translation are measured on: a task, and its sentences as ids."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from experiments.data.fingerprint import of_splits
from experiments.data.rows import Batch, EncodedPair, PackedPairs, pad_batch
from experiments.data.sources import SOURCES
from experiments.data.store import store_text
from experiments.data.vocabulary import PAD
from experiments.translation import Task, load_splits, prepare
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

    task: Task
    vocab_size: int
    train: list[EncodedPair]
    batches: Iterator[PackedPairs]
    test: list[EncodedPair]


def load_sentences(settings: ConfigDict, cache: Path, run: Workdir | None = None) -> Sentences:
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
    splits = load_splits(settings, ("train", "test"), cache)
    text = SOURCES[settings.data.name].text
    if run is None:
        tokenizers = text.learn(settings.data, splits["train"], cache)
    else:
        run.check_texts(of_splits(splits))
        tokenizers = text.load(run.path)
    task = Task(settings, tokenizers)
    texts = store_text(cache, lambda: splits["train"])
    data = prepare(settings, tokenizers, texts, cache)
    batches = iter(task.training_batches(data))
    test = task.encode("test", splits["test"])
    return Sentences(task, len(tokenizers.target), [*data.ids], batches, test)


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
