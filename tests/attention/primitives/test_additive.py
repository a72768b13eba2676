"""Additive attention: scores of its own, and everything else as `attend` promises it."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from attention import Dropout, additive_attention, attend, masks, scores
from tests import oracle
from tests.attention.primitives.inputs import CAUSAL, DIMS, GROUP, POSITIONS, N, S, T, draw

B, K, H, Hv = DIMS["BKHv"]
QUERY, KEY, VALUE, VECTOR = draw((B, T, N, H), (B, S, K, H), (B, S, K, Hv), (N, H))
INPUTS = (QUERY, KEY, VALUE, VECTOR)
LENGTHS = np.array([S, 3])
# Positions are given, so causality sees the queries at the end; and the last keys are padding.
MASK = masks.causal() & masks.lengths(LENGTHS)
ALLOWED = CAUSAL & (np.arange(S) < LENGTHS[:, None, None])


@functools.partial(jax.jit, static_argnames="returning")
def run(query, key, value, vector, mask=MASK, returning=("weights", "logsumexp")):
    found = additive_attention(
        query, key, value, vector, mask=mask, positions=POSITIONS, returning=returning
    )
    return (found[0], *found[1].values()) if returning else found


def expected(query, key, value, vector, allowed):
    """The oracle of attention, with another score in place of its product."""
    query, key, vector = (np.asarray(array, np.float64) for array in (query, key, vector))

    def example(b):
        def score(_, t, s, n):
            return float(vector[n] @ np.tanh(query[b, t, n] + key[b, s, n // GROUP]))

        return oracle.attention(query[b], key[b], value[b], allowed[b], score=score)

    return [np.stack(arrays) for arrays in zip(*(example(b) for b in range(B)), strict=True)]


def test_values_are_those_of_the_oracle():
    for ours, theirs in zip(run(*INPUTS), expected(*INPUTS, ALLOWED), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_score_of_logarithm_three_weighs_three_quarters():
    """tanh(k) is 1/2 and 0, v is 2 ln 3: the scores are ln 3 and ln 1."""
    key = jnp.array([[[math.atanh(0.5)]], [[0.0]]])
    query, vector = jnp.zeros((1, 1, 1)), jnp.array([[2 * math.log(3)]])
    value = jnp.array([[[4.0]], [[8.0]]])
    output, extras = additive_attention(query, key, value, vector, returning=("weights",))
    np.testing.assert_allclose(extras["weights"][0, 0], [3 / 4, 1 / 4], rtol=1e-6)
    np.testing.assert_allclose(output[0, 0, 0], 3 / 4 * 4 + 1 / 4 * 8, rtol=1e-6)


def test_query_and_key_are_added():
    """What one loses the other gains: nothing changes, as with no product."""
    moved = run(QUERY + 0.5, KEY - 0.5, VALUE, VECTOR)
    for ours, theirs in zip(moved, run(*INPUTS), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_query_that_may_see_nothing_gets_nothing():
    rows = np.arange(T) != 2
    output, weights, logsumexp = run(*INPUTS, mask=MASK & masks.from_array(rows_seen(rows)))
    assert not output[:, 2].any()
    assert not weights[:, :, 2].any()
    assert jnp.isneginf(logsumexp[:, :, 2]).all()
    np.testing.assert_array_equal(output[:, rows], run(*INPUTS)[0][:, rows])


def rows_seen(rows):
    """Bool `[S, S]` at positions: the queries stand at the end of the keys."""
    seen = np.ones((S, S), bool)
    seen[S - T :] = rows[:, None]
    return seen


@jax.jit
def gradient(inputs, mask):
    """Of the output and of the weights."""

    def loss(inputs):
        output, weights, _ = run(*inputs, mask=mask)
        return jnp.sum(jnp.sin(output)) + jnp.sum(jnp.sin(weights))

    return jax.grad(loss)(inputs)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_hidden_reaches_neither_output_nor_gradient(poison):
    mask = MASK & ~masks.from_array(np.eye(S, dtype=bool)[[1] * S])  # nobody sees key 1
    poisoned = (QUERY, KEY.at[:, 1, 0, 0].set(poison), VALUE.at[:, 1, 0].set(poison), VECTOR)
    clean = (QUERY, KEY.at[:, 1, 0, 0].set(0), VALUE.at[:, 1, 0].set(0), VECTOR)
    for ours, theirs in zip(run(*poisoned, mask=mask), run(*clean, mask=mask), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(gradient(poisoned, mask), gradient(clean, mask), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_what_is_seen_is_not_hushed_up():
    key = KEY.at[0, S - 2, 0, 0].set(np.nan)
    output = np.asarray(run(QUERY, key, VALUE, VECTOR)[0])
    seen = np.zeros((B, T, N), bool)
    seen[0, T - 2 :, :GROUP] = True  # the last two queries of the first row, in the first group
    np.testing.assert_array_equal(np.isnan(output).all(-1), seen)
    np.testing.assert_array_equal(np.isnan(output).any(-1), seen)


def test_asking_changes_nothing():
    np.testing.assert_array_equal(run(*INPUTS, returning=()), run(*INPUTS)[0])


def test_half_precision_is_summed_in_single():
    halves = [array.astype(jnp.bfloat16) for array in INPUTS]
    output, weights, _ = run(*halves)
    assert output.dtype == jnp.bfloat16
    assert weights.dtype == jnp.float32
    exact = expected(*(array.astype(jnp.float32) for array in halves), ALLOWED)
    np.testing.assert_allclose(weights, exact[1], rtol=1e-5, atol=1e-5)


def test_derivatives_are_those_of_finite_differences(float64):
    inputs = tuple(jnp.asarray(np.asarray(array), jnp.float64) for array in INPUTS)
    assert run(*inputs)[0].dtype == jnp.float64
    loss = jax.jit(lambda *inputs: jnp.sin(run(*inputs, returning=())).sum())
    check_grads(loss, inputs, order=1, modes=["rev"])


def test_what_comes_after_the_score_is_that_of_attend():
    """Products of width 1 that are the additive scores, given to `attend`: the same, bit by bit."""
    (bias,) = draw((N, T, S), seed=1)
    options = {
        "score": (scores.bias_array(bias), scores.softcap(2.0)),
        "dropout": Dropout(jax.random.key(0), 0.3),
        "mask": jnp.asarray(ALLOWED),
        "returning": ("entropy", "mean_distance", "strongest"),
        "num_strongest": 2,
    }
    ours = additive_attention(*INPUTS, **options)
    group = np.arange(N) // GROUP
    known = jnp.einsum(
        "BTSNH,NH->BNTS", jnp.tanh(QUERY[:, :, None] + KEY[:, None, :, group]), VECTOR
    )
    added = (scores.bias_array(known), *options.pop("score"))
    theirs = attend(jnp.zeros_like(QUERY), KEY, VALUE, score=added, **options)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5), ours, theirs)


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"vector": VECTOR[:1]}, r"vector must have the shape \(6, 11\) of heads \(N\) and"),
        ({"key": KEY[..., :1]}, "head widths H differ: 11 in query but 1 in key"),
        ({"value": VALUE[:, :1]}, "key lengths S differ"),
    ],
    ids=["vector", "width", "length"],
)
def test_what_does_not_fit_is_refused_in_one_sentence(change, sentence):
    given = dict(zip(("query", "key", "value", "vector"), INPUTS, strict=True))
    with pytest.raises(ValueError, match=sentence):
        additive_attention(**(given | change))
