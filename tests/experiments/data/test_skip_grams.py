"""Skip-grams: pairs within a window and a sentence, subsampling, and negative samples."""

from collections import Counter

import numpy as np
import pytest

from experiments.data.skip_grams import (
    SkipGramBatches,
    keep_probabilities,
    noise,
    skip_grams,
    subsample,
)


def test_pairs_by_hand():
    pairs = skip_grams([[7, 8, 9], [5], [], [4, 4]], window=1)
    expected = [(7, 8), (8, 7), (8, 9), (9, 8), (4, 4), (4, 4)]
    assert sorted(map(tuple, pairs.tolist())) == sorted(expected)
    wider = skip_grams([[7, 8, 9], [5, 6]], window=2)
    expected = [(7, 8), (8, 7), (8, 9), (9, 8), (7, 9), (9, 7), (5, 6), (6, 5)]
    assert sorted(map(tuple, wider.tolist())) == sorted(expected)


def test_pairs_equal_two_plain_loops():
    random = np.random.default_rng(0)
    sentences = [random.integers(11, size=n).tolist() for n in random.integers(13, size=17)]
    expected = Counter(
        (sentence[i], sentence[j])
        for sentence in sentences
        for i in range(len(sentence))
        for j in range(max(0, i - 5), min(len(sentence), i + 6))
        if i != j
    )
    assert Counter(map(tuple, skip_grams(sentences, window=5).tolist())) == expected


def test_keep_probability_by_hand():
    counts = np.array([0, 1, 24, 75])
    np.testing.assert_allclose(
        keep_probabilities(counts, 0.06), [1, 1, 0.5, np.sqrt(0.08)], rtol=1e-12
    )


def test_subsampling_keeps_the_expected_share_in_order():
    sentences = [[0, 1, 2, 1]] * 3000
    kept = subsample(sentences, np.array([1.0, 0.3, 0.0]), seed=0)
    counts = np.bincount(np.concatenate(kept), minlength=3)
    assert counts[0] == 3000 and counts[2] == 0
    assert counts[1] / 6000 == pytest.approx(0.3, abs=0.02)
    assert {tuple(sentence) for sentence in kept} == {(0,), (0, 1), (0, 1, 1)}
    again = subsample(sentences, np.array([1.0, 0.3, 0.0]), seed=0)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(kept, again, strict=True))


def test_negatives_are_drawn_by_counts_to_the_power_three_quarters():
    distribution = noise(np.array([0, 1, 16, 81]))
    np.testing.assert_allclose(distribution, np.array([0, 1, 8, 27]) / 36, rtol=1e-12)
    pairs = np.array([[5, 6], [7, 8]], np.int32)
    batch = SkipGramBatches(pairs, distribution, size=5000, negatives=7, seed=0)[0]
    assert batch.others.shape == (5000, 8)
    shares = np.bincount(batch.others[:, 1:].ravel(), minlength=4) / 35_000
    np.testing.assert_allclose(shares, distribution, atol=0.01)
    assert set(zip(batch.center.tolist(), batch.others[:, 0].tolist(), strict=True)) == {
        (5, 6),
        (7, 8),
    }


def test_batch_depends_on_seed_and_index_only():
    pairs = np.arange(200, dtype=np.int32).reshape(100, 2)

    def batch(seed, index):
        uniform = np.full(200, 1 / 200)
        batches = SkipGramBatches(pairs, uniform, size=11, negatives=3, seed=seed)
        return batches[index].center.tolist(), batches[index].others.tolist()

    assert batch(1, 4) == batch(1, 4)
    assert batch(1, 4) != batch(1, 5)
    assert batch(1, 4) != batch(2, 4)
