"""The interpreted kernels equal the reference: values, logsumexp and gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import Dropout, attend, masks, scores
from attention.primitives.arguments import check_arguments
from attention.primitives.gpu import forward
from attention.primitives.gpu.flash import attend_by_kernel, refusal
from attention.primitives.gpu.inputs import split
from attention.primitives.gpu.sizes import KernelSize, KernelSizes
from attention.primitives.masks import TileBounds
from tests.attention.primitives.inputs import (
    changed,
    draw,
    jitted,
)

# Primes, so that no axis fills its tiles: 3 x 2 tiles forward, 2 x 3 backward.
B, T, N, K, H, Hv = 2, 37, 4, 2, 7, 5
S = 43
SIZES = KernelSizes(KernelSize(16, 32), KernelSize(32, 16))
POSITIONS = (np.arange(S - T, S), np.arange(S))


def by_kernel(query, key, value, **arguments):
    """Output and logsumexp of the kernels, with small tiles."""
    checked = check_arguments(query, key, value, returning=("logsumexp",), **arguments)
    assert refusal(checked, "cpu", interpret=True) is None
    results = attend_by_kernel(checked, interpret=True, sizes=SIZES)
    return results["output"], results["logsumexp"]


def by_reference(query, key, value, **arguments):
    output, results = attend(
        query, key, value, returning=("logsumexp",), implementation="reference", **arguments
    )
    return output, results["logsumexp"]


def loss(function, inputs, arguments, score=None):
    """A loss of output and logsumexp; and both."""
    query, key, value, scale, slopes = inputs
    if score is not None:
        arguments = arguments | {"score": score(slopes)}
    output, logsumexp = function(query, key, value, scale=scale, **arguments)
    finite = jnp.where(jnp.isneginf(logsumexp), 0, logsumexp)
    return jnp.sin(output.astype(jnp.float32)).sum() + jnp.cos(finite).sum(), (output, logsumexp)


def random_inputs(num_queries=T, num_keys=S, dtype="float32"):
    """Query, key, value, scale and ALiBi slopes."""
    shapes = (B, num_queries, N, H), (B, num_keys, K, H), (B, num_keys, K, Hv)
    query, key, value = draw(*shapes, dtype=dtype)
    return query, key, value, jnp.float32(0.4), np.float32([0.5, 0.25, 0.125, 0.0625])


@partial(jitted, static_argnums=(0, 3))
def value_and_gradients(function, inputs, arguments, score=None):
    return jax.value_and_grad(partial(loss, function), has_aux=True)(inputs, arguments, score)


def assert_equal(actual, expected, rtol=2e-5, atol=1e-5):
    for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(
            np.asarray(ours, np.float32), np.asarray(theirs, np.float32), rtol=rtol, atol=atol
        )


PACKED = np.repeat([[0, 1, 2], [5, 5, 1]], [13, 11, 13], axis=1)


def packed(segment_ids=PACKED, lengths=(T, T), query_lengths=(T, T)):
    """Return a mask of one structure, so that the tests with it share two programs."""
    return masks.causal() & masks.segments(segment_ids) & masks.lengths(lengths, query_lengths)


SELF_ATTENTION_MASKS = {
    # Lengths mask the second segment of the first example, so its queries are fully masked.
    "packed": packed(lengths=(13, T)),
    "window, lengths, cu_seqlens": masks.cu_seqlens([[0, 13, 13, 30, 37], [0, 20, 25, 25, 30]])
    & masks.lengths([20, 37], [37, 21])
    & masks.window(5, 3),
    "none": None,
    "or and not": ~masks.block(9) & masks.prefix([3, 20]) | masks.segments(PACKED),
}


@pytest.mark.parametrize("mask", SELF_ATTENTION_MASKS.values(), ids=SELF_ATTENTION_MASKS)
def test_equals_reference_for_masks(mask):
    inputs, arguments = random_inputs(num_keys=T), {"mask": mask}
    actual = value_and_gradients(by_kernel, inputs, arguments)
    assert_equal(actual, value_and_gradients(by_reference, inputs, arguments))


def test_equals_reference_if_every_tile_is_full():
    """No mask and no padding: no list of tiles, and nothing is compared."""
    inputs = random_inputs(num_keys=32)
    actual = value_and_gradients(by_kernel, inputs, {})
    assert_equal(actual, value_and_gradients(by_reference, inputs, {}))


def all_scores(slopes):
    return (
        scores.alibi(slopes),
        scores.alibi(slopes[:1]),
        scores.softcap(2.0),
        scores.attention_sinks(4 * slopes),
    )


def test_equals_reference_with_all_options():
    """Positions, an example of length 0, score functions, sinks, a dropout key per example."""
    arguments = {
        "mask": masks.causal() & masks.lengths([0, 31]),
        "positions": POSITIONS,
        "dropout": Dropout(jax.random.split(jax.random.key(0), B), 0.3),
    }
    actual, expected = (
        value_and_gradients(function, random_inputs(), arguments, all_scores)
        for function in (by_kernel, by_reference)
    )
    assert_equal(actual, expected, atol=1e-4)
    (_, (output, logsumexp)), (d_query, *_) = actual
    assert not output[0].any()
    assert np.isneginf(logsumexp[0]).all()
    assert not d_query[0].any()


def test_global_heads_equal_a_slice_of_all_heads():
    """Score functions and dropout of the second half of the heads, as in `shard_map`."""
    inputs, half = random_inputs(num_keys=T), slice(N // 2, N)
    slopes = inputs[-1]
    arguments = {
        "score": (scores.alibi(slopes), scores.attention_sinks(4 * slopes)),
        "dropout": Dropout(jax.random.key(0), 0.3),
    }
    query, key, value = inputs[:3]
    shard = query[:, :, half], key[:, :, K // 2 :], value[:, :, K // 2 :]
    kernel = jitted(partial(by_kernel, **arguments))
    output, logsumexp = kernel(*shard, heads=np.arange(N)[half])
    every = kernel(query, key, value)
    assert_equal((output, logsumexp), (every[0][:, :, half], every[1][:, half]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_error_is_that_of_rounding_weights(dtype):
    inputs, arguments = random_inputs(num_keys=T, dtype=dtype), {"mask": masks.causal()}
    actual = value_and_gradients(by_kernel, inputs, arguments)
    expected = value_and_gradients(by_reference, inputs, arguments)
    assert_equal(actual[1][:3], expected[1][:3], rtol=0.02, atol=0.04)
    assert_equal(actual[0][1], expected[0][1], rtol=0.01, atol=0.01)


def test_huge_scores_do_not_overflow():
    query, key, value, _, slopes = random_inputs(num_keys=T)
    one_segment = packed(np.zeros((B, T), np.int32))
    inputs, arguments = (query, key, value, jnp.float32(1e10), slopes), {"mask": one_segment}
    (_, (output, logsumexp)), gradients = value_and_gradients(by_kernel, inputs, arguments)
    assert np.isfinite(output).all() and np.isfinite(logsumexp).all()
    assert all(np.isfinite(gradient).all() for gradient in gradients)


NONFINITE_MASK = packed(np.zeros((B, T), np.int32), lengths=(37, 25))


def nonfinite_inputs(number):
    """A query, two keys and a value with one non-finite number; one key of them is masked."""
    query, key, value, *others = random_inputs(num_keys=T)
    query = changed(query, (0, 3, 1, 2), number)
    key = changed(changed(key, (0, 20, 0, 0), number), (1, 30, 0, 0), number)
    return query, key, changed(value, (1, 5, 1, 4), number), *others


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_visible_nan_gives_nan_outputs_and_gradients(number):
    inputs, arguments = nonfinite_inputs(number), {"mask": NONFINITE_MASK}
    actual = value_and_gradients(by_kernel, inputs, arguments)
    expected = value_and_gradients(by_reference, inputs, arguments)
    assert_equal(actual[0][1], expected[0][1])
    output, (d_query, d_key, d_value, d_scale, _) = actual[0][1][0], actual[1]
    rows = np.zeros((B, T, N), bool)
    rows[0, 3, 1] = rows[0, 20:, :2] = rows[1, 5:, 2:] = True
    np.testing.assert_array_equal(np.isnan(output).all(-1), rows)
    np.testing.assert_array_equal(np.isnan(output).any(-1), rows)
    np.testing.assert_array_equal(np.isnan(d_query).any(-1), rows)
    keys = np.zeros((B, T, K), bool)
    keys[0, :, 0] = keys[1, :25, 1] = True  # those that an affected query attends to
    np.testing.assert_array_equal(np.isnan(d_key).any(-1), keys)
    np.testing.assert_array_equal(np.isnan(d_value).any(-1), keys)
    assert np.isnan(d_scale)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_masked_nan_gives_the_bits_of_a_masked_zero(number):
    """Keys and values after the lengths, and queries without visible keys."""
    mask = packed(PACKED, [13, 25], [37, 20])

    def results(fill):
        query, key, value, *others = random_inputs(num_keys=T)
        query = changed(changed(query, np.s_[1, 20:], fill), np.s_[0, 13:], fill)
        key, value = changed(key, np.s_[0, 13:], fill), changed(value, np.s_[1, 25:], fill)
        return value_and_gradients(by_kernel, (query, key, value, *others), {"mask": mask})

    for ours, theirs in zip(
        jax.tree.leaves(results(number)), jax.tree.leaves(results(0.0)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
        assert not np.isnan(ours).any()


def test_given_flags_of_nonfinite_keys_equal_nan():
    query, key, value, *_ = nonfinite_inputs(np.nan)
    flags = np.isnan(key).any(-1) | np.isnan(value).any(-1)
    kernel = jitted(partial(by_kernel, mask=NONFINITE_MASK))
    zeros = (np.nan_to_num(array) for array in (key, value))
    expected, actual = kernel(query, key, value), kernel(query, *zeros, nonfinite_keys=flags)
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_vmap_of_gradients_equals_a_loop():
    inputs, arguments = random_inputs(num_keys=T), {"mask": masks.causal()}
    queries = np.stack([inputs[0], np.cos(inputs[0])])

    def gradient(query):
        return jax.grad(lambda query: loss(by_kernel, (query, *inputs[1:]), arguments)[0])(query)

    actual, compiled = jitted(jax.vmap(gradient))(queries), jitted(gradient)
    assert_equal(actual, np.stack([compiled(query) for query in queries]))


def test_second_derivatives_raise():
    query, key, value, *_ = random_inputs(num_keys=T)

    def value_of(query):
        return by_kernel(query, key, value)[0].sum()

    why = "'pallas' has first-order reverse-mode derivatives only: use implementation='tiled'"
    for derivative in (
        lambda: jax.jvp(jax.grad(value_of), (query,), (query,)),
        lambda: jax.jit(jax.grad(lambda query: jax.grad(value_of)(query).sum()))(query),
    ):
        with pytest.raises(NotImplementedError, match=why):
            derivative()


def test_forward_mode_raises():
    query, key, value, *_ = random_inputs(num_keys=T)
    attention = jax.jit(lambda query: by_kernel(query, key, value)[0])
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(attention, (query,), (query,))


def test_empty_tiles_are_not_computed(monkeypatch):
    inputs, constants = split(check_arguments(*random_inputs(num_keys=T)[:3], mask=masks.causal()))
    empty = TileBounds(jnp.zeros((1, 3, 2), bool), jnp.zeros((1, 3, 2), bool))
    monkeypatch.setattr("attention.primitives.gpu.inputs.tile_bounds", lambda *_: empty)
    kernel = jitted(lambda *given: forward.forward(*given, "highest", SIZES.forward, True))
    output, logsumexp = kernel(inputs, constants)
    assert not output.any()
    assert np.isneginf(logsumexp).all()


ONES = np.ones((4, 4), bool)
FUNCTION_OR_ARRAY = "do not evaluate a mask that is a function or an array"
REFUSED = {
    "float64": ({}, "float32 at most"),
    "wide": ({}, "a head width of 257 is more than its 256"),
    "empty": ({}, "an input is empty"),
    "array": ({"mask": ONES}, "does not read a mask that is a bool array"),
    "from_array": ({"mask": ~masks.from_array(ONES)}, FUNCTION_OR_ARRAY),
    "from_function": ({"mask": masks.from_function(lambda q, k: q != k)}, FUNCTION_OR_ARRAY),
    "segments": (
        {"mask": masks.segments([0] * 4), "positions": (np.arange(4), np.arange(4))},
        "explicit positions need a gather",
    ),
    "causal sequences": ({"mask": masks.cu_seqlens([0, 4], causal=True)}, "with causal=True"),
    "score": ({"score": scores.bias_array(np.zeros((1, 4, 4), "float32"))}, "softcap and alibi"),
    "weights": ({"returning": ("weights", "entropy")}, "does not return entropy, weights"),
    "tile_sizes": ({"tile_sizes": (128, 128)}, "its tile sizes depend on"),
}
SHAPES = {"wide": (4, 1, 257), "empty": (0, 1, 3)}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_with_a_reason(name):
    arguments, why = REFUSED[name]
    inputs = [np.zeros(SHAPES.get(name, (4, 1, 3)), "float32")] * 3
    with jax.enable_x64(True):
        inputs = [x.astype("float64" if name == "float64" else "float32") for x in inputs]
        assert why in refusal(check_arguments(*inputs, **arguments), "cuda")


def test_refuses_platforms_without_triton():
    arguments = check_arguments(*draw((4, 1, 3), (4, 1, 3), (4, 1, 3)))
    assert refusal(arguments, "cpu") == "its kernels are for a GPU, and the platform is cpu"
    assert "the platform is tpu" in refusal(arguments, "tpu")
    assert refusal(arguments, "cpu", interpret=True) is None
    assert refusal(arguments, "cuda") is refusal(arguments, "rocm") is None
