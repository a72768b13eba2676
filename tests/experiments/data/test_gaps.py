"""Sentences with gaps: the size of an epoch."""

import pytest

from experiments.data.gaps import GapEpochs, Gaps, buckets
from experiments.data.pairs import SentencePair
from experiments.data.vocabulary import Vocabulary

SENTENCES = ["one two three", "four five", "six seven eight nine ten"]


def test_epoch_counts_masked_words():
    """15 % of the words are masked; end tokens never are."""
    words = Vocabulary.of([sentence.split() for sentence in SENTENCES])
    pairs = [SentencePair(sentence, "") for sentence in SENTENCES * 100]
    epochs = GapEpochs(buckets(words, pairs, (8,), 64), Gaps(words, 0), num_batches=99, seed=0)
    asked = sum(epochs[number].counted.sum() for number in range(epochs.epoch.steps))
    assert epochs.epoch.tokens == 150
    assert asked == pytest.approx(150, rel=0.15)
