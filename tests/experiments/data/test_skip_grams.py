"""Skip-grams: pairs within a window and a sentence, subsampling, and negative samples."""

from collections import Counter

import numpy as np
import pytest

from experiments.data import skip_grams
from experiments.data.skip_grams import SkipGramBatches


def batches(sentences, vocab_size, **changes):
    """Return batches of sentences whose words are all kept, with a few of its settings changed."""
    ids = np.array([word for sentence in sentences for word in sentence], np.int32)
    ends = np.cumsum([len(sentence) for sentence in sentences])
    options = {"window": 5, "threshold": 1.0, "size": 20_000, "negatives": 3, "seed": 0} | changes
    return SkipGramBatches(ids, ends, vocab_size=vocab_size, **options)


def shares(batch, vocab_size):
    """Return the share of each pair of words, `[V, V]`."""
    pairs = np.zeros((vocab_size, vocab_size))
    np.add.at(pairs, (batch.center, batch.others[:, 0]), 1 / len(batch.center))
    return pairs


def test_every_pair_within_the_window_and_a_sentence_is_equally_likely():
    random = np.random.default_rng(0)
    sentences = [random.integers(7, size=n).tolist() for n in random.integers(13, size=17)]
    pairs = Counter(
        (sentence[i], sentence[j])
        for sentence in sentences
        for i in range(len(sentence))
        for j in range(max(0, i - 3), min(len(sentence), i + 4))
        if i != j
    )
    expected = np.zeros((7, 7))
    for pair, number in pairs.items():
        expected[pair] = number / pairs.total()
    drawn = batches(sentences, 7, window=3)
    np.testing.assert_allclose(shares(drawn[0], 7), expected, atol=0.005)
    assert drawn.epoch.examples == pytest.approx(pairs.total(), rel=0.02)


def test_frequent_words_are_left_out_and_distances_count_the_others():
    drawn = shares(batches([[0, *[1] * 98, 2]], 3, window=1, threshold=0.02)[0], 3)
    kept = 98 * np.sqrt(0.02 / 0.98)  # the words at the ends have a neighbour on one side
    assert drawn[1].sum() == pytest.approx(kept / (kept + 1), abs=0.01)
    no_ones = batches([[0, 1, 1, 2]], 3, window=1)
    no_ones._keep = np.array([1.0, 0.0, 1.0])
    np.testing.assert_allclose(shares(no_ones[0], 3)[[0, 2], [2, 0]], 0.5, atol=0.02)


def test_negatives_are_drawn_by_counts_to_the_power_three_quarters(monkeypatch):
    monkeypatch.setattr(skip_grams, "CHUNK", 3)  # ids that are counted at once
    drawn = batches([[1], [2] * 16, [3] * 81], 4, size=5_000, negatives=7)
    assert (drawn[0].others != drawn[1].others).any()
    batch = drawn[0]
    assert batch.others.shape == (5_000, 8)
    shares = np.bincount(batch.others[:, 1:].ravel(), minlength=4) / 35_000
    np.testing.assert_allclose(shares, np.array([0, 1, 8, 27]) / 36, atol=0.01)
