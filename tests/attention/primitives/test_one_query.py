"""One query over many keys, in parts that are merged: equal to the reference."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import Dropout, attend, empty_cache, explain, masks, scores
from attention.primitives.cache import full_cache
from attention.primitives.one_query import num_parts
from tests.attention.primitives.inputs import (
    changed,
    draw,
    jitted,
)

B, S, N, K, H, WIDTH = 2, 1536, 6, 3, 5, 7
INPUTS = draw((B, 1, N, H), (B, S, K, H), (B, S, K, WIDTH))
POSITIONS = np.array([[1100], [600]]), np.arange(S)
TABLE, BIAS, SINKS, SLOPE = draw((N, 8), (N, 1, S), (N,), ())
RANDOM = np.random.default_rng(1)
KEYS = jax.random.split(jax.random.key(0), B)

CASES = {
    "causal window, dropout": {
        "mask": masks.causal() & masks.window(900),
        "positions": POSITIONS,
        "dropout": Dropout(KEYS, 0.3),
    },
    "lengths, scale": {"mask": masks.lengths([700, 0]), "scale": 0.3},
    "array per head, heads": {
        "mask": RANDOM.random((1, N, 1, S)) < 0.5,
        "dropout": Dropout(KEYS, 0.3),
        "heads": np.arange(N) + 10,
    },
}


def function(implementation, **arguments):
    """Return a function of (inputs, arrays of scores) to output and logsumexp."""

    def call(inputs, arrays=(TABLE, BIAS, SINKS, SLOPE)):
        table, bias, sinks, slope = arrays
        score = (
            scores.relative_bias(table),
            scores.from_function(lambda s, q, k, n: s + slope * (n / (1 + q + k))),
            scores.bias_array(bias),
            scores.attention_sinks(sinks),
        )
        output, more = attend(
            *inputs,
            score=score,
            returning=("logsumexp",),
            implementation=implementation,
            **arguments,
        )
        return output, more["logsumexp"]

    return call


def loss(implementation, **arguments):
    def call(inputs, arrays):
        output, logsumexp = function(implementation, **arguments)(inputs, arrays)
        finite = jnp.where(jnp.isneginf(logsumexp), 0, logsumexp)
        return jnp.sin(output).sum() + jnp.sin(finite).sum(), (output, logsumexp)

    return call


@pytest.mark.parametrize("case", CASES)
def test_equals_the_reference(case):
    """Output, logsumexp and gradients, also of the arrays of score functions."""
    arguments, arrays = CASES[case], (TABLE, BIAS, SINKS, SLOPE)
    ours, theirs = (
        jitted(jax.grad(loss(one, **arguments), (0, 1), has_aux=True))(INPUTS, arrays)
        for one in ("one_query", "reference")
    )
    chex.assert_trees_all_close(ours[1], theirs[1], rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_close(ours[0], theirs[0], rtol=1e-4, atol=1e-5)


def test_second_derivatives_and_forward_mode():
    arrays, mask = (TABLE, BIAS, SINKS, SLOPE), RANDOM.random((B, 1, S)) < 0.5

    def directional(implementation):
        gradient = jax.grad(loss(implementation, mask=mask), has_aux=True)
        return jax.jvp(lambda inputs: gradient(inputs, arrays)[0], (INPUTS,), (INPUTS,))[1]

    ours, theirs = (jitted(directional, static_argnums=0)(x) for x in ("one_query", "reference"))
    chex.assert_trees_all_close(ours, theirs, rtol=1e-3, atol=1e-4)


@functools.partial(jitted, static_argnums=1)
@functools.partial(jax.grad, has_aux=True)
def gradient_of_sum(inputs, implementation):
    outputs = function(implementation, mask=masks.lengths([1200, 700]))(inputs)
    return outputs[0].sum(), outputs


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nonfinite_numbers_reach_the_same_results_as_in_the_reference(bad):
    """A visible one in one part, and a masked one; output and gradients."""
    query, key, value = INPUTS
    inputs = query, changed(key, (0, 20, 0), bad), changed(value, (0, 1400, 1), bad)
    results = []
    for one in ("one_query", "reference"):
        gradient, outputs = gradient_of_sum(inputs, one)
        results.append((*outputs, *gradient))
    assert np.isnan(results[0][0][0, 0, : N // K]).all()
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_batch_axes_and_low_precision():
    inputs = [np.stack([x, x + 1]).astype(jnp.bfloat16) for x in INPUTS]
    run = jitted(attend, static_argnames="implementation")
    ours, theirs = (run(*inputs, implementation=one) for one in ("one_query", "reference"))
    assert ours.dtype == jnp.bfloat16
    np.testing.assert_allclose(*(x.astype("float32") for x in (ours, theirs)), atol=0.02)
    mapped = jitted(jax.vmap(lambda *x: attend(*x, implementation="one_query")))(*inputs)
    chex.assert_trees_all_equal(mapped, ours)


@pytest.mark.parametrize(
    "num_keys, parts", [(1, 1), (1023, 1), (1024, 2), (1536, 3), (65536, 8), (65537, 1), (65530, 5)]
)
def test_number_of_parts_divides_the_keys(num_keys, parts):
    assert num_parts(num_keys) == parts


def test_is_the_default_for_one_query_on_a_cpu():
    choice = explain(*INPUTS, platform="cpu")
    assert str(choice).startswith("one_query: one query: its keys are computed in 3 parts")
    query, key, value = INPUTS
    others = [
        explain(np.repeat(query, 2, axis=1), key, value, platform="cpu"),
        explain(query, key[:, :100], value[:, :100], platform="cpu"),
        explain(*INPUTS, platform="cuda"),
        explain(*INPUTS, platform="cpu", returning=("weights",)),
    ]
    assert "one_query" not in {one.implementation.name for one in others}
    assert others[0].refusals["one_query"] == "it takes one query, and there are T=2"
    assert others[3].refusals["one_query"] == "it does not return weights"


def test_the_cache_is_not_copied():
    """The reference copies all keys to transpose them."""
    inputs = draw((1, 1, 8, 64), (1, 8192, 8, 64), (1, 8192, 8, 64))
    cache = full_cache(*inputs[1:])

    def scratch(implementation):
        def step(query, cache):
            return attend(
                query,
                cache.key,
                cache.value,
                mask=masks.lengths(cache.lengths),
                nonfinite_keys=cache.nonfinite_keys,
                implementation=implementation,
            )

        compiled = jax.jit(step).lower(inputs[0], cache).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert scratch(None) < cache.nbytes / 16
    assert scratch("reference") > cache.nbytes / 2


def test_cached_decoding_equals_a_full_pass():
    query, key, value = draw((1, 1026, 2, 4), (1, 1026, 2, 4), (1, 1026, 2, 4))
    cache = empty_cache((1,), 1536, num_kv_heads=2, head_width=4)
    cache, _ = jax.jit(lambda cache, *pair: cache.extend(*pair))(cache, key[:, :-2], value[:, :-2])

    @jitted
    def step(cache, token):
        query, key, value = token
        cache, view = cache.extend(key, value)
        arguments = view.arguments(masks.causal())
        return attend(query, **arguments, implementation="one_query"), cache

    outputs = []
    for at in (slice(1024, 1025), slice(1025, 1026)):
        output, cache = step(cache, (query[:, at], key[:, at], value[:, at]))
        outputs.append(output)
    full = np.asarray(attend(query, key, value, mask=masks.causal(), implementation="reference"))
    np.testing.assert_allclose(np.concatenate(outputs, 1), full[:, -2:], rtol=1e-5, atol=1e-5)
