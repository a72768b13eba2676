"""Filters by hand: what they keep, and that they change nothing among what they keep."""

import jax.numpy as jnp
import numpy as np
import pytest

from attention.decoding import MinP, Temperature, TopK, TopP

# Ties at the second place; the order is neither rising nor falling.
PROBABILITIES = np.array([[0.1, 0.2, 0.4, 0.2, 0.1], [0.0, 0.96, 0.03, 0.01, 0.0]], np.float32)
with np.errstate(divide="ignore"):
    LOGITS = jnp.asarray(np.log(PROBABILITIES) + 3)


@pytest.mark.parametrize(
    ("narrow", "kept"),
    [
        (TopK(1), [[2], [1]]),
        (TopK(2), [[1, 2], [1, 2]]),  # of equal ones the first
        (TopK(3), [[1, 2, 3], [1, 2, 3]]),
        (TopK(99), [[0, 1, 2, 3, 4], [1, 2, 3]]),
        (TopP(0.3), [[2], [1]]),
        (TopP(0.5), [[1, 2], [1]]),
        (TopP(0.7), [[1, 2, 3], [1]]),
        (TopP(0.98), [[0, 1, 2, 3, 4], [1, 2]]),
        (TopP(1), [[0, 1, 2, 3, 4], [1, 2, 3]]),
        (MinP(1.0), [[2], [1]]),
        (MinP(0.4), [[1, 2, 3], [1]]),
        (MinP(0.02), [[0, 1, 2, 3, 4], [1, 2]]),
    ],
    ids=str,
)
def test_what_is_kept_is_unchanged_and_the_rest_is_impossible(narrow, kept):
    found = np.asarray(narrow(LOGITS))
    expected = np.full_like(found, -np.inf)
    for row, tokens in enumerate(kept):
        expected[row, tokens] = LOGITS[row, np.array(tokens)]
    np.testing.assert_array_equal(found, expected)


def test_top_p_stops_where_the_mass_is_reached_and_1_keeps_what_rounding_would_lose():
    equal = np.asarray(TopP(0.5)(jnp.zeros(4)))
    np.testing.assert_array_equal(equal, [0, 0, -np.inf, -np.inf])
    certain = jnp.array([0.0, -30.0])  # the first has probability 1 in float32
    np.testing.assert_array_equal(TopP(1)(certain), certain)


def test_temperature_divides_differences():
    np.testing.assert_allclose(
        Temperature(0.5)(LOGITS), 2 * (LOGITS - LOGITS.max(-1, keepdims=True))
    )


def test_the_likeliest_survives_any_temperature():
    logits = jnp.array([[-3.0, -1.0, -2.0], [-jnp.inf, -jnp.inf, 5.0], [-jnp.inf] * 3])
    for temperature in (1e-37, 8e37):
        found = Temperature(temperature)(logits)
        np.testing.assert_array_equal(found[:2].argmax(-1), [1, 2])
        np.testing.assert_array_equal(jnp.isneginf(found), jnp.isneginf(logits))
        assert not jnp.isnan(found).any()


def test_as_many_as_there_are_is_all():
    np.testing.assert_array_equal(TopK(10**12)(LOGITS), LOGITS)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (
            lambda: Temperature(0.0),
            "temperature must be positive and finite, .* got 0.0; for 0 use greedy",
        ),
        (lambda: Temperature(1e-39), "temperature must be positive and finite, .* got 1e-39"),
        (lambda: Temperature(1e38), "temperature must be positive and finite, .* got 1e\\+38"),
        (lambda: Temperature(-1.0), "temperature must be positive and finite, .* got -1.0"),
        (lambda: Temperature(float("nan")), "temperature must be positive and finite, .* got nan"),
        (lambda: Temperature(float("inf")), "temperature must be positive and finite, .* got inf"),
        (lambda: TopK(0), "top-k must keep a whole number of tokens, 1 or more, got 0"),
        (lambda: TopK(2.5), "top-k must keep a whole number of tokens, 1 or more, got 2.5"),
        (lambda: TopP(0.0), r"top-p must be in \(0, 1\], got 0.0"),
        (lambda: TopP(1.1), r"top-p must be in \(0, 1\], got 1.1"),
        (lambda: MinP(0.0), r"min-p must be in \(0, 1\], got 0.0"),
        (lambda: MinP(1.1), r"min-p must be in \(0, 1\], got 1.1"),
    ],
)
def test_a_filter_that_cannot_be_is_refused(build, sentence):
    with pytest.raises(ValueError, match=sentence):
        build()
