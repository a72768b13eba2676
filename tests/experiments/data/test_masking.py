"""Gaps: 15 % of the words; of these 80 %, 10 % and 10 %; no other tokens."""

import numpy as np
import pytest

from experiments.data.examples import EncodedExamples, EncodedPair
from experiments.data.masking import MaskedBatches, Masking, mask_tokens
from experiments.data.pipeline import Buckets
from experiments.data.tokenizers import Vocabulary

SENTENCES = ["one two three", "four five", "six seven eight nine ten"]


def test_epoch_counts_masked_words():
    """15 % of the words are masked; end tokens never are."""
    words = Vocabulary.of([sentence.split() for sentence in SENTENCES])
    texts = [sentence.split() for sentence in SENTENCES * 100]
    sentences = EncodedExamples(EncodedPair(words.encode(text)) for text in texts)
    epochs = MaskedBatches(sentences, Buckets([8], 64), Masking(len(words), 0), seed=0)
    asked = sum(epochs[number].counted.sum() for number in range(int(epochs.epoch.steps)))
    assert epochs.epoch.tokens == 150
    assert asked == pytest.approx(150, rel=0.15)


WORDS, MASK_TOKEN = range(3, 503), 503


def masked(tokens, seed=0, index=0):
    return mask_tokens(tokens, words=WORDS, mask_token=MASK_TOKEN, seed=seed, index=index)


def drawn(*shape):
    return np.random.default_rng(7).integers(WORDS.start, WORDS.stop, shape, dtype=np.int32)


def test_shares_of_masked_random_and_kept_words():
    tokens = drawn(500, 200)
    inputs, chosen = masked(tokens)
    assert chosen.mean() == pytest.approx(0.15, abs=0.005)
    gap, same = inputs[chosen] == MASK_TOKEN, inputs[chosen] == tokens[chosen]
    assert gap.mean() == pytest.approx(0.8, abs=0.01)
    assert same.mean() == pytest.approx(0.1 + 0.1 / len(WORDS), abs=0.01)
    others = inputs[chosen][~gap & ~same]
    assert others.size / chosen.sum() == pytest.approx(0.1, abs=0.01)
    assert set(others.tolist()) <= set(WORDS)
    assert len(set(others.tolist())) > 0.9 * len(WORDS)  # most words of the vocabulary occur


def test_other_words_are_unchanged():
    tokens = drawn(50, 20)
    inputs, chosen = masked(tokens)
    np.testing.assert_array_equal(inputs[~chosen], tokens[~chosen])
    assert inputs.dtype == tokens.dtype


def test_positions_are_masked_independently():
    _, chosen = masked(drawn(4000, 5))
    np.testing.assert_allclose(chosen.mean(axis=0), 0.15, atol=0.02)
    both = (chosen[:, :-1] & chosen[:, 1:]).mean()
    assert both == pytest.approx(0.15**2, abs=0.005)


def test_special_tokens_and_padding_are_never_masked():
    tokens = drawn(300, 11)
    tokens[:, 0], tokens[:, 8], tokens[:, 9:], tokens[:, 4] = 1, 2, 0, MASK_TOKEN
    inputs, chosen = masked(tokens)
    special = [0, 4, 8, 9, 10]
    assert not chosen[:, special].any()
    np.testing.assert_array_equal(inputs[:, special], tokens[:, special])


def test_mask_depends_on_seed_and_index_only():
    tokens = drawn(13, 11)
    first = masked(tokens, seed=3, index=5)
    for ours, theirs in zip(first, masked(tokens, seed=3, index=5), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for other in (masked(tokens, seed=3, index=6), masked(tokens, seed=4, index=5)):
        assert (other.chosen != first.chosen).any()


def test_mask_token_in_the_vocabulary_raises():
    with pytest.raises(ValueError, match="mask_token=5 is one of the words 3 to 8"):
        mask_tokens(np.zeros((2, 3), np.int32), words=range(3, 9), mask_token=5, seed=0, index=0)
