"""Gaps: 15 % of the words; of these 80 %, 10 % and 10 %; no other tokens."""

import numpy as np
import pytest

from experiments.data.masking import MaskedBatches, Masking
from experiments.data.pipeline import Buckets
from experiments.data.tokenizers import EncodedExamples, EncodedPair

VOCAB_SIZE = 503  # three special tokens; the size is the id of a gap


def masked(tokens, seed=0, index=0):
    return Masking(VOCAB_SIZE, seed)(tokens, index)


def drawn(*shape):
    return np.random.default_rng(7).integers(3, VOCAB_SIZE, shape, dtype=np.int32)


def test_epoch_counts_masked_words():
    sentences = EncodedExamples(EncodedPair([3] * n) for n in (3, 2, 5) * 100)
    batches = MaskedBatches(sentences, Buckets([8], 64), Masking(9, 0), seed=0)
    counted = sum(batches[step].counted.sum() for step in range(int(batches.epoch.steps)))
    assert batches.epoch.tokens == 150
    assert counted == pytest.approx(150, rel=0.15)


def test_shares_of_masked_random_and_kept_words():
    tokens = drawn(500, 200)
    inputs, chosen = masked(tokens)
    assert inputs.dtype == tokens.dtype
    np.testing.assert_array_equal(inputs[~chosen], tokens[~chosen])
    assert chosen.mean() == pytest.approx(0.15, abs=0.005)
    both = (chosen[:, :-1] & chosen[:, 1:]).mean()  # each position by itself
    assert both == pytest.approx(0.15**2, abs=0.005)
    gap, same = inputs[chosen] == VOCAB_SIZE, inputs[chosen] == tokens[chosen]
    assert gap.mean() == pytest.approx(0.8, abs=0.01)
    assert same.mean() == pytest.approx(0.1 + 0.1 / 500, abs=0.01)
    others = {*inputs[chosen][~gap & ~same].tolist()}
    assert others <= {*range(3, VOCAB_SIZE)} and len(others) > 0.9 * 500


def test_special_tokens_and_padding_are_never_masked():
    tokens = drawn(300, 11)
    tokens[:, 0], tokens[:, 8], tokens[:, 9:], tokens[:, 4] = 1, 2, 0, VOCAB_SIZE
    inputs, chosen = masked(tokens)
    special = [0, 4, 8, 9, 10]
    assert not chosen[:, special].any()
    np.testing.assert_array_equal(inputs[:, special], tokens[:, special])


def test_mask_depends_on_seed_and_index_only():
    tokens = drawn(13, 11)
    inputs, chosen = masked(tokens, seed=3, index=5)
    np.testing.assert_array_equal(inputs, masked(tokens, seed=3, index=5)[0])
    for seed, index in ((3, 6), (4, 5)):
        assert (masked(tokens, seed, index)[1] != chosen).any()
