"""Logit processors with values computed by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from attention.decoding import (
    AllowedTokens,
    History,
    MinP,
    NoRepeatNgram,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
)
from tests.attention.primitives.inputs import jitted

# Ties at the second place; the order is neither rising nor falling.
PROBABILITIES = np.array([[0.1, 0.2, 0.4, 0.2, 0.1], [0.0, 0.96, 0.03, 0.01, 0.0]], np.float32)
with np.errstate(divide="ignore"):
    LOGITS = np.log(PROBABILITIES) + np.float32(3)
# What is behind the length of a history has no meaning.
HISTORY = History(
    np.array([[1, 4, 1, 4, 2, 3], [3, 0, 3, 0, 3, 9]], np.int32), np.array([4, 5], np.int32)
)


@pytest.mark.parametrize(
    ("processor", "kept"),
    [
        (TopK(1), [[2], [1]]),
        (TopK(2), [[1, 2], [1, 2]]),  # of equal ones the first
        (TopK(3), [[1, 2, 3], [1, 2, 3]]),
        (TopK(99), [[0, 1, 2, 3, 4], [1, 2, 3]]),
        (TopK(10**12), [[0, 1, 2, 3, 4], [1, 2, 3]]),
        (TopP(0.3), [[2], [1]]),
        (TopP(0.5), [[1, 2], [1]]),
        (TopP(0.7), [[1, 2, 3], [1]]),
        (TopP(0.98), [[0, 1, 2, 3, 4], [1, 2]]),
        (TopP(1), [[0, 1, 2, 3, 4], [1, 2, 3]]),
        (MinP(1.0), [[2], [1]]),
        (MinP(0.4), [[1, 2, 3], [1]]),
        (MinP(0.02), [[0, 1, 2, 3, 4], [1, 2]]),
        (NoRepeatNgram(1), [[0, 2, 3], [1, 2]]),
        (NoRepeatNgram(2), [[0, 2, 3, 4], [1, 2, 3]]),  # 4 1 and 3 0 occurred
        (NoRepeatNgram(3), [[0, 2, 3, 4], [1, 2, 3]]),  # 1 4 1 and 0 3 0 occurred
        (NoRepeatNgram(4), [[0, 1, 2, 3, 4], [1, 2, 3]]),
        (NoRepeatNgram(7), [[0, 1, 2, 3, 4], [1, 2, 3]]),
        (AllowedTokens(lambda _: jnp.array([[0, 1, 1, 0, 1]]) == 1), [[1, 2, 4], [1, 2]]),
        (
            AllowedTokens(lambda history: jnp.arange(5)[None] < history.length[:, None] - 1),
            [[0, 1, 2], [1, 2, 3]],
        ),
    ],
)
def test_kept_logits_are_unchanged_and_others_excluded(processor, kept):
    found = jitted(processor)(LOGITS, HISTORY)
    expected = np.full_like(found, -np.inf)
    for row, tokens in enumerate(kept):
        expected[row, tokens] = LOGITS[row, np.array(tokens)]
    np.testing.assert_array_equal(found, expected)


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits():
    logits = np.float32([[2.0, 2.0, -3.0, -3.0, -3.0], [2.0, 2.0, -3.0, -3.0, -np.inf]])
    expected = [[2.0, 1.0, -3.0, -3.0, -6.0], [1.0, 2.0, -3.0, -6.0, -np.inf]]
    np.testing.assert_array_equal(jitted(RepetitionPenalty(2.0))(logits, HISTORY), expected)


def test_top_p_1_keeps_what_rounding_would_lose():
    equal = jitted(TopP(0.5))(np.zeros(4, np.float32))
    np.testing.assert_array_equal(equal, [0, 0, -np.inf, -np.inf])
    certain = np.float32([0.0, -30.0])  # the first has probability 1 in float32
    np.testing.assert_array_equal(jitted(TopP(1))(certain), certain)


def test_temperature_divides():
    np.testing.assert_allclose(Temperature(0.5)(LOGITS), 2 * LOGITS)


def test_likeliest_token_stays_likeliest_at_any_temperature():
    logits = np.float32([[-3.0, -1.0, -2.0], [-np.inf, -np.inf, 5.0], [-np.inf] * 3])
    for temperature in (1e-30, 1e30):
        found = jitted(Temperature(temperature))(logits)
        np.testing.assert_array_equal(found[:2].argmax(-1), [1, 2])
        np.testing.assert_array_equal(np.isneginf(found), np.isneginf(logits))
        assert not np.isnan(found).any()


@pytest.mark.parametrize(
    ("processor", "number", "words"),
    [
        *[(Temperature, number, "between .* for 0 use Greedy") for number in (0.0, 1e-39, -1.0)],
        *[(Temperature, float(number), f"got {number}") for number in ("nan", "inf")],
        *[(TopK, number, f"an integer of at least 1, got {number}") for number in (0, 2.5)],
        *[(TopP, number, rf"must be in \(0, 1\], got {number}") for number in (0.0, 1.1)],
        *[(MinP, number, rf"must be in \(0, 1\], got {number}") for number in (0.0, 1.1)],
        (RepetitionPenalty, 0.0, "repetition penalty must be positive, got 0.0"),
        (NoRepeatNgram, 0, "the size of an n-gram must be an integer of at least 1, got 0"),
    ],
)
def test_impossible_settings_are_refused(processor, number, words):
    with pytest.raises(ValueError, match=words):
        processor(number)
