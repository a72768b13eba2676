"""Numbers that can be checked by hand, and a worked example of tutorials."""

import math

import numpy as np
import pytest

from attention import attend, masks
from tests.attention.primitives.inputs import jitted

run = jitted(attend, static_argnames="returning")


def one_query(scores, value, **options):
    """Attend with one query of width 1, whose scores are the keys."""
    query, key, value = np.float32(1), *map(np.float32, (scores, value))
    inputs = (array.reshape(-1, 1, 1) for array in (query, key, value))
    output, extras = run(*inputs, **options, returning=("weights", "logsumexp"))
    return output[0, 0, 0], extras["weights"][0, 0], extras["logsumexp"][0, 0]


@pytest.mark.parametrize(
    "factor, published",
    [(1, [0.18, 0.25, 0.07, 0.17, 0.24, 0.09]), (100, [0, 0.99, 0, 0, 0.01, 0])],
)
def test_published_softmax(factor, published):
    """To two decimals; why scores are scaled by 1/√d: those of large scores are nearly one-hot."""
    scores = np.float32([0.1, 0.4, -0.9, 0.02, 0.35, -0.62])
    _, weights, _ = one_query(factor * scores, scores)
    np.testing.assert_array_equal(np.round(weights, 2), np.float32(published))


@pytest.mark.parametrize(
    "mask, parts", [([[True, True, True]], [1, 2, 3]), ([[True, False, True]], [1, 0, 3])]
)
def test_logarithms_as_scores_give_fractions(mask, parts):
    """Scores ln 1, ln 2, ln 3 have weights 1/6, 2/6, 3/6, or 1/4, 0, 3/4 with the second masked."""
    output, weights, logsumexp = one_query(np.log([1, 2, 3]), [6, 12, 60], mask=np.array(mask))
    fractions = np.array(parts) / sum(parts)
    np.testing.assert_allclose(weights, fractions, rtol=1e-6)
    np.testing.assert_allclose(logsumexp, math.log(sum(parts)), rtol=1e-6)
    np.testing.assert_allclose(output, fractions @ [6, 12, 60], rtol=1e-6)


def test_causal_attention_to_equal_keys_is_a_running_mean():
    """Row t is the mean of the first t + 1 values: 0, 1/2, 1, 3/2, ..."""
    query = key = np.ones((6, 1, 3), np.float32)
    value = np.arange(6, dtype=np.float32)[:, None, None]
    output = np.asarray(attend(query, key, value, mask=masks.causal()))
    np.testing.assert_allclose(output[:, 0, 0], np.arange(6) / 2, rtol=1e-6)
