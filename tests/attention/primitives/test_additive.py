"""Additive attention: other scores, and the contract of `attend` for everything else."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from attention import Dropout, additive_attention, attend, masks, scores
from attention.primitives.cache import CacheView, full_cache
from tests.attention.primitives.inputs import (
    CAUSAL,
    DIMS,
    GROUP,
    POSITIONS,
    N,
    S,
    T,
    changed,
    draw,
    jitted,
)

B, K, H, Hv = DIMS["BKHv"]
QUERY, KEY, VALUE, VECTOR = draw((B, T, N, H), (B, S, K, H), (B, S, K, Hv), (N, H))
INPUTS = (QUERY, KEY, VALUE, VECTOR)
LENGTHS = np.array([S, 3])
# The positions place the queries at the end of the keys; the last keys are padding.
MASK = masks.causal() & masks.lengths(LENGTHS)
ALLOWED = CAUSAL & (np.arange(S) < LENGTHS[:, None, None])


def results(query, key, value, vector, flags=None, mask=MASK, returning=("weights", "logsumexp")):
    options = {"vector": vector, "mask": mask, "returning": returning}
    if flags is None:
        found = additive_attention(query, key, value, positions=POSITIONS, **options)
    else:
        view = CacheView(key, value, None, POSITIONS, flags)
        found = additive_attention(query, view, **options)
    return (found[0], *found[1].values()) if returning else found


run = jitted(results, static_argnames="returning")


def by_attend(query, key, value, vector, score=(), **options):
    """Give additive scores, computed in float64, to `attend` as a bias of zero products."""
    query, key, vector = (np.asarray(array, np.float64) for array in (query, key, vector))
    sums = query[:, :, None] + key[:, None, :, np.arange(N) // GROUP]
    bias = np.einsum("BTSNH,NH->BNTS", np.tanh(sums), vector).astype(np.float32)
    heads = options.get("heads", np.arange(N))  # of which the bias has the numbers
    bias = scores.bias_array(bias[:, np.argsort(heads)])
    call = jax.jit(functools.partial(attend, score=(bias, *score), **options))
    return call(np.zeros(query.shape, np.float32), key.astype(np.float32), value)


def test_a_score_of_log_3_gives_weight_three_quarters():
    """tanh(k) is 1/2 and 0, v is 2 ln 3: the scores are ln 3 and ln 1."""
    key = np.float32([[[math.atanh(0.5)]], [[0.0]]])
    query, vector = np.zeros((1, 1, 1), np.float32), np.float32([[2 * math.log(3)]])
    value = np.float32([[[4.0]], [[8.0]]])
    call = jitted(functools.partial(additive_attention, returning=("weights",)))
    output, extras = call(query, key, value, vector)
    np.testing.assert_allclose(extras["weights"][0, 0], [3 / 4, 1 / 4], rtol=1e-6)
    np.testing.assert_allclose(output[0, 0, 0], 3 / 4 * 4 + 1 / 4 * 8, rtol=1e-6)


@jitted
def gradient(inputs, mask):
    """Differentiate a function of the output and the weights."""

    def loss(inputs):
        output, weights, _ = results(*inputs, mask=mask)
        return jnp.sum(jnp.sin(output)) + jnp.sum(jnp.sin(weights))

    return jax.grad(loss)(inputs)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_masked_nonfinite_numbers_reach_neither_output_nor_gradient(number):
    mask = MASK & ~masks.from_array(np.eye(S, dtype=bool)[[1] * S])  # key 1 is masked
    nonfinite = (
        QUERY,
        changed(KEY, np.s_[:, 1, 0, 0], number),
        changed(VALUE, np.s_[:, 1, 0], number),
        VECTOR,
    )
    clean = (QUERY, changed(KEY, np.s_[:, 1, 0, 0], 0), changed(VALUE, np.s_[:, 1, 0], 0), VECTOR)
    for ours, theirs in zip(run(*nonfinite, mask=mask), run(*clean, mask=mask), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(gradient(nonfinite, mask), gradient(clean, mask), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_visible_nan_gives_nan():
    """In a key, in the flags of a cache and in a query."""
    key = changed(KEY, (0, S - 2, 0, 0), np.nan)
    affected, of_query = np.zeros((2, B, T, N), bool)
    affected[0, T - 2 :, :GROUP] = True  # the last two queries of the first row, in its first group
    of_query[1, 2, 3] = True
    cache = full_cache(key, VALUE)
    outputs = (
        run(QUERY, key, VALUE, VECTOR)[0],
        run(QUERY, cache.key, cache.value, VECTOR, cache.nonfinite_keys)[0],
        run(changed(QUERY, (1, 2, 3, 0), np.nan), *INPUTS[1:])[0],
    )
    np.testing.assert_array_equal(outputs[0], outputs[1])
    for output, expected in zip(outputs, (affected, affected, of_query), strict=True):
        np.testing.assert_array_equal(np.isnan(output).all(-1), expected)
        np.testing.assert_array_equal(np.isnan(output).any(-1), expected)
    query_gradient, key_gradient, *_ = gradient((QUERY, key, VALUE, VECTOR), MASK)
    np.testing.assert_array_equal(np.isnan(query_gradient).all(-1), affected)
    assert np.isnan(key_gradient[0, S - 2, 0]).all() and np.isfinite(key_gradient[1]).all()


def test_returning_more_does_not_change_the_output():
    np.testing.assert_array_equal(run(*INPUTS, returning=()), run(*INPUTS)[0])


def test_low_precision_is_accumulated_in_float32():
    halves = [array.astype(jnp.bfloat16) for array in INPUTS]
    output, weights, _ = run(*halves)
    assert output.dtype == jnp.bfloat16
    assert weights.dtype == jnp.float32
    wide = (array.astype(np.float32) for array in halves)
    _, exact = by_attend(*wide, mask=ALLOWED[:, None], returning=("weights",))
    np.testing.assert_allclose(weights, exact["weights"], rtol=1e-5, atol=1e-5)


def test_gradients_equal_finite_differences(float64):
    inputs = tuple(jax.device_put(array.astype(np.float64)) for array in INPUTS)
    assert run(*inputs)[0].dtype == np.float64
    loss = jax.jit(lambda *inputs: jnp.sin(results(*inputs, returning=())).sum())
    check_grads(loss, inputs, order=1, modes=["rev"])


def test_options_equal_those_of_attend():
    """With other numbers of heads; one query is fully masked."""
    (bias,) = draw((N, T, S), seed=1)
    options = {
        "score": (scores.bias_array(bias), scores.softcap(2.0)),
        "dropout": Dropout(jax.random.key(0), 0.3),
        "heads": np.roll(np.arange(N), 2),
        "mask": (ALLOWED & (np.arange(T) != 2)[:, None])[:, None],
        "returning": ("weights", "logsumexp", "largest_score"),
    }
    ours = jax.jit(functools.partial(additive_attention, **options))(*INPUTS)
    theirs = by_attend(*INPUTS, **options)
    assert np.isneginf(ours[1]["logsumexp"][:, :, 2]).all()
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5), ours, theirs)


def test_vector_of_another_shape_raises():
    with pytest.raises(
        ValueError, match=r"vector must have the shape \(6, 11\) of heads \(N\) and"
    ):
        additive_attention(QUERY, KEY, VALUE, VECTOR[:1])
    with pytest.raises(ValueError, match="head widths H of query and key differ, 11 and 1"):
        additive_attention(QUERY, KEY[..., :1], VALUE, VECTOR)


@pytest.mark.parametrize("option", ["scale", "tile_sizes", "implementation"])
def test_options_without_a_meaning_raise(option):
    with pytest.raises(TypeError, match=option):
        additive_attention(*INPUTS, **{option: None})
