"""Batches: every pair once per epoch, little padding, and batch i depends on (seed, i) only."""

import itertools

import numpy as np
import pytest

from experiments.data.batching import (
    Buckets,
    EncodedPair,
    Epochs,
    evaluation_batches,
    pad_batch,
    training_batches,
)
from experiments.data.vocabulary import BOS, EOS, PAD
from experiments.errors import UsageError


def pairs(number=53, longest=17):
    """Return pairs whose tokens all are the number of the pair."""
    lengths = [1 + 7 * i % longest for i in range(number)]
    return [EncodedPair([100 + i] * n, [100 + i] * (1 + n // 2)) for i, n in enumerate(lengths)]


def members(batch):
    return [row[0] - 100 for row in batch.source if row[0] not in (PAD, EOS)]


def test_batch_by_hand():
    batch = pad_batch([EncodedPair([7, 8], [9]), EncodedPair([5], [6, 4, 3])], size=3, length=4)
    assert batch.source.tolist() == [[7, 8, EOS, PAD], [5, EOS, PAD, PAD], [PAD] * 4]
    assert batch.source_lengths.tolist() == [3, 2, 0]
    assert batch.target_inputs.tolist() == [[BOS, 9, PAD, PAD], [BOS, 6, 4, 3], [PAD] * 4]
    assert batch.target_labels.tolist() == [[9, EOS, PAD, PAD], [6, 4, 3, EOS], [PAD] * 4]


def test_epoch_contains_every_pair_once_in_bucket_shapes():
    epochs = Epochs(Buckets(pairs(), (5, 11, 18), 36), num_batches=99, seed=3)
    first = [epochs[i] for i in range(epochs.epoch.steps)]
    assert sorted(i for batch in first for i in members(batch)) == list(range(53))
    assert {batch.source.shape for batch in first} == {(7, 5), (3, 11), (2, 18)}


def test_epochs_and_seeds_differ_and_are_reproducible():
    def order(seed, epoch):
        epochs = Epochs(Buckets(pairs(), (18,), 36), num_batches=999, seed=seed)
        start = epoch * epochs.epoch.steps
        return [members(epochs[start + i]) for i in range(epochs.epoch.steps)]

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)
    assert sorted(itertools.chain(*order(0, 0))) == sorted(itertools.chain(*order(0, 1)))


def test_iterator_resumes_from_its_saved_state():
    def iterator():
        return training_batches(Buckets(pairs(), (9, 18), 36), num_batches=70, seed=1)

    straight, stopped = iterator(), iterator()
    for _ in range(41):  # into the second epoch
        next(straight)
        next(stopped)
    resumed = iterator()
    resumed.set_state(stopped.get_state())
    for _ in range(29):
        for ours, theirs in zip(next(resumed), next(straight), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(StopIteration):
        next(resumed)


def test_evaluation_batches_contain_every_pair_once_with_its_index():
    for indices, batch in evaluation_batches(Buckets(pairs(), (5, 11, 18), 36)):
        assert members(batch) == indices.tolist()
    seen = [i for indices, _ in evaluation_batches(Buckets(pairs(), (5, 18), 36)) for i in indices]
    assert sorted(seen) == list(range(53))
    needed = [pairs()[i].length for i in seen]
    assert needed == sorted(needed)  # sentences of a batch have similar lengths


def test_padding_is_that_of_the_batches():
    buckets = Buckets(pairs(), (5, 11, 18), 36)
    batches = [batch for _, batch in evaluation_batches(buckets)]
    sides = [side for batch in batches for side in (batch.source, batch.target_labels)]
    padding = sum((side == PAD).sum() for side in sides)
    assert buckets.padding == pytest.approx(padding / sum(side.size for side in sides))


def test_buckets_of_equal_length_are_merged():
    (buckets, expected) = (Buckets(pairs(), lengths, 36) for lengths in ((5, 18, 18), (5, 18)))
    assert [(length, *members) for length, members in buckets.plan()] == [
        (length, *members) for length, members in expected.plan()
    ]


def test_no_pairs_raise():
    with pytest.raises(UsageError, match="there is no pair to put into a bucket"):
        Buckets([], (5, 18), 36)


def test_pair_longer_than_every_bucket_raises():
    with pytest.raises(UsageError, match=r"needs 18 positions, and the longest bucket has 17"):
        Buckets(pairs(), (5, 17), 36)


def test_batch_smaller_than_one_sentence_raises():
    with pytest.raises(UsageError, match=r"a batch of 17 tokens has no room for a sentence of 18"):
        Buckets(pairs(), (5, 18), 17)
