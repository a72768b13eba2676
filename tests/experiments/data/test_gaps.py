"""Sentences with gaps: how much an epoch of them is."""

import pytest

from experiments.data.gaps import Gaps, GapWindows
from experiments.data.rows import Encoded, EncodedPair
from experiments.data.vocabulary import Vocabulary
from experiments.data.windows import Buckets

SENTENCES = ["one two three", "four five", "six seven eight nine ten"]


def test_an_epoch_counts_the_words_that_are_asked_for():
    """Which ends are not: of words, a gap is three in twenty."""
    words = Vocabulary.of([sentence.split() for sentence in SENTENCES])
    texts = [sentence.split() for sentence in SENTENCES * 100]
    sentences = Encoded(EncodedPair(words.encode(text)) for text in texts)
    epochs = GapWindows(sentences, Buckets([8], 64), Gaps(len(words), 0), seed=0)
    asked = sum(epochs[number].counted.sum() for number in range(int(epochs.epoch.steps)))
    assert epochs.epoch.tokens == 150
    assert asked == pytest.approx(150, rel=0.15)
