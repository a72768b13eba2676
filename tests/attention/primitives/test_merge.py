"""Attention over disjoint sets of keys, combined by `merge_attention`."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import Dropout, attend, masks, merge_attention, scores
from tests.attention.primitives.inputs import POSITIONS, N, S, T, changed, jitted, query_key_value

PARTS = (slice(0, 2), slice(2, 3), slice(3, S))
INPUTS = query_key_value((2,))


def options(lengths, columns):
    return {
        "mask": masks.causal() & masks.lengths(lengths),
        "positions": (POSITIONS[0], POSITIONS[1][columns]),
        "score": scores.alibi(scores.alibi_slopes(N)),
        "dropout": Dropout(jax.random.key(0), 0.3),
        "returning": ("logsumexp",),
    }


def whole(query, key, value, lengths):
    output, extras = attend(query, key, value, **options(lengths, slice(None)))
    return output, extras["logsumexp"]


def merged(query, key, value, lengths):
    partials = []
    for part in PARTS:
        output, extras = attend(query, key[:, part], value[:, part], **options(lengths, part))
        partials.append((output, extras["logsumexp"]))
    return merge_attention(partials)


run_whole, run_merged, run_merge = jitted(whole), jitted(merged), jitted(merge_attention)


@functools.cache
def derivatives(function):
    """Compute the gradient of a sum over the results, and their tangents."""

    def loss(inputs, lengths):
        output, logsumexp = function(*inputs, lengths)
        finite = jnp.where(jnp.isneginf(logsumexp), 0, logsumexp)
        return jnp.sum(jnp.sin(output)) + jnp.sum(jnp.cos(finite))

    return jitted(
        lambda inputs, lengths: (
            jax.grad(loss)(inputs, lengths),
            jax.jvp(lambda inputs: function(*inputs, lengths), (inputs,), (inputs,))[1],
        )
    )


@pytest.mark.parametrize(
    "lengths", [[7, 4], [3, 0]], ids=["visible", "with a fully masked example"]
)
def test_merge_of_disjoint_keys_equals_all_keys(lengths):
    """Results, gradients and tangents; some parts are fully masked for some queries."""
    lengths = np.array(lengths)
    actual, expected = run_merged(*INPUTS, lengths), run_whole(*INPUTS, lengths)
    chex.assert_trees_all_close(actual, expected, rtol=1e-5, atol=1e-5)
    actual, expected = (derivatives(function)(INPUTS, lengths) for function in (merged, whole))
    chex.assert_tree_all_finite(actual)
    chex.assert_trees_all_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_order_of_partial_results_does_not_matter():
    """And merge of one is itself."""
    partial = output, logsumexp = run_whole(*INPUTS, np.array([7, 4]))
    chex.assert_trees_all_close(run_merge([partial]), partial, rtol=1e-6, atol=1e-6)
    partials = [(output + 1, logsumexp + 100), partial]
    chex.assert_trees_all_close(run_merge(partials), run_merge(partials[::-1]), rtol=1e-6)


def test_nan_in_a_partial_result_stays_in_its_row():
    output, logsumexp = run_whole(*INPUTS, np.array([7, 7]))
    with_nan = changed(output, (0, 3, 2), np.nan), changed(logsumexp, (0, 2, 3), np.nan)
    found, _ = run_merge([(output, logsumexp), with_nan])
    reached = np.zeros((2, T, N), bool)
    reached[0, 3, 2] = True
    np.testing.assert_array_equal(np.isnan(found).any(axis=-1), reached)


def test_nan_in_one_set_gives_masked_keys_of_another_zero_gradients():
    """The sets differ in which of them contains the NaN and which masks a key."""
    query, key, value = INPUTS
    lengths = np.array([S - 1, S - 1])
    key = changed(key, (0, 0), np.nan)
    total = jitted(jax.grad(lambda inputs: merged(*inputs, lengths)[0].sum()))
    _, d_key, d_value = total((query, key, value))
    assert np.isnan(d_key[0, 0]).any()
    for gradient in (d_key, d_value):
        assert not gradient[:, -1].any()
        chex.assert_tree_all_finite(gradient[1])
