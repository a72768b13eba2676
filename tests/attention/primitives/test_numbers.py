"""Numbers that can be checked by hand, and shapes from tutorials."""

import math

import chex
import jax
import numpy as np

from attention import attend, masks, scaled_dot_product
from attention.primitives.numerics import softmax
from tests.attention.primitives.inputs import (
    draw,
    jitted,
)

# A worked example of tutorials on self-attention: six scores and their softmax.
SCORES = (0.1, 0.4, -0.9, 0.02, 0.35, -0.62)
run = jitted(attend, static_argnames="returning")


def test_published_softmax():
    """Published as .18 .25 .07 .17 .24 .09, rounded to two decimals."""
    weights, _ = jitted(softmax)(np.float32(SCORES))
    np.testing.assert_array_equal(
        np.round(np.asarray(weights), 2), np.float32([0.18, 0.25, 0.07, 0.17, 0.24, 0.09])
    )


def test_published_softmax_of_large_scores_is_nearly_one_hot():
    """A hundred times the scores, published as 0 .99 0 0 .01 0: why scores are scaled by 1/√d."""
    weights, _ = jitted(softmax)(100 * np.float32(SCORES))
    np.testing.assert_array_equal(
        np.round(np.asarray(weights), 2), np.float32([0, 0.99, 0, 0, 0.01, 0])
    )


def test_logarithms_as_scores_give_fractions():
    """Scores ln 1, ln 2, ln 3 have weights 1/6, 2/6, 3/6; their exponentials sum to 6."""
    query = np.ones((1, 1, 1), np.float32)
    key = np.log(np.float32([1.0, 2.0, 3.0]))[:, None, None]
    value = np.float32([6.0, 12.0, 60.0])[:, None, None]
    output, extras = run(query, key, value, returning=("weights", "logsumexp"))
    np.testing.assert_allclose(extras["weights"][0, 0], [1 / 6, 2 / 6, 3 / 6], rtol=1e-6)
    np.testing.assert_allclose(extras["logsumexp"][0, 0], math.log(6), rtol=1e-6)
    np.testing.assert_allclose(output[0, 0, 0], 6 / 6 + 2 * 12 / 6 + 3 * 60 / 6, rtol=1e-6)


def test_masked_key_gives_the_fractions_of_the_others():
    query = np.ones((1, 1, 1), np.float32)
    key = np.log(np.float32([1.0, 2.0, 3.0]))[:, None, None]
    mask = np.array([[True, False, True]])
    _, extras = run(query, key, key, mask=mask, returning=("weights", "logsumexp"))
    np.testing.assert_allclose(extras["weights"][0, 0], [1 / 4, 0, 3 / 4], rtol=1e-6)
    np.testing.assert_allclose(extras["logsumexp"][0, 0], math.log(4), rtol=1e-6)


def test_causal_attention_to_equal_keys_is_a_running_mean():
    """Row t is the mean of the first t + 1 values: 0, 1/2, 1, 3/2, ..."""
    query = key = np.ones((6, 1, 3), np.float32)
    value = np.arange(6, dtype=np.float32)[:, None, None]
    output = np.asarray(attend(query, key, value, mask=masks.causal()))
    np.testing.assert_allclose(output[:, 0, 0], np.arange(6) / 2, rtol=1e-6)


def test_default_scale_is_one_over_the_root_of_the_width():
    """With H = 4 the score 2 ln 3 is halved, so the weights are 3/4 and 1/4."""
    query = np.float32([[[1.0, 0, 0, 0]]])
    key = np.float32([[[2 * math.log(3), 0, 0, 0]], [[0.0, 0, 0, 0]]])
    _, extras = run(query, key, key, returning=("weights",))
    np.testing.assert_allclose(extras["weights"][0, 0], [3 / 4, 1 / 4], rtol=1e-6)


def test_eight_tokens_of_width_256():
    tokens = np.zeros((8, 1, 256), np.float32)
    output, extras = run(tokens, tokens, tokens, mask=masks.causal(), returning=("weights",))
    chex.assert_shape(output, (8, 1, 256))
    rows = np.tril(np.ones((8, 8))) / np.arange(1, 9)[:, None]  # equal scores: a mean
    np.testing.assert_allclose(extras["weights"][0], rows, rtol=1e-6)


def test_one_head_of_sixteen_on_a_batch_of_32_channels():
    """B 6, T 8, C 32, d 16: keys (6, 8, 16) and scores (6, 8, 8)."""
    channels, query, key, value = draw((6, 8, 32), *[(32, 16)] * 3)
    query, key, value = (
        np.einsum("BTC,CH->BTH", channels, kernel) for kernel in (query, key, value)
    )
    chex.assert_shape(key, (6, 8, 16))
    output, weights, _ = jitted(jax.vmap(scaled_dot_product))(query, key, value)
    chex.assert_shape(weights, (6, 8, 8))
    scores = np.einsum("bth,bsh->bts", query, key) / 4
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    expected = exponentials / exponentials.sum(-1, keepdims=True)
    np.testing.assert_allclose(weights, expected, rtol=2e-3, atol=1e-6)
    np.testing.assert_allclose(output, expected @ np.asarray(value), rtol=2e-3, atol=1e-4)
