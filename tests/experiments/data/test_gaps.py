"""Sentences with gaps: the size of an epoch."""

import pytest

from experiments.data.gaps import Gaps, GapWindows
from experiments.data.rows import Encoded, EncodedPair
from experiments.data.vocabulary import Vocabulary
from experiments.data.windows import Buckets

SENTENCES = ["one two three", "four five", "six seven eight nine ten"]


def test_epoch_counts_masked_words():
    """15 % of the words are masked; end tokens never are."""
    words = Vocabulary.of([sentence.split() for sentence in SENTENCES])
    texts = [sentence.split() for sentence in SENTENCES * 100]
    sentences = Encoded(EncodedPair(words.encode(text)) for text in texts)
    epochs = GapWindows(sentences, Buckets([8], 64), Gaps(len(words), 0), seed=0)
    asked = sum(epochs[number].counted.sum() for number in range(int(epochs.epoch.steps)))
    assert epochs.epoch.tokens == 150
    assert asked == pytest.approx(150, rel=0.15)
