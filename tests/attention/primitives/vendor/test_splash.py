"""Interpreted splash attention equals the reference; and it lowers for a TPU."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from attention import Dropout, attend, masks, scores
from attention.primitives.arguments import check_arguments
from attention.primitives.vendor.splash import attend_by_splash, refusal
from attention.testing import check_attention
from tests.attention.primitives.inputs import (
    changed,
    draw,
    jitted,
)

# No multiple of the 128 of a block: 2 blocks of queries by 2 of keys.
B, T, N, K, H, Hv = 2, 131, 4, 2, 8, 5


def by_splash(query, key, value, **arguments):
    checked = check_arguments(query, key, value, **arguments)
    if why := refusal(checked, "cpu", interpret=True):
        raise NotImplementedError(why)
    return attend_by_splash(checked, interpret=True)["output"]


by_reference = partial(attend, implementation="reference")


def loss(function, given, arguments):
    query, key, value, scale = given
    output = function(query, key, value, scale=scale, **arguments)
    return jnp.sin(output.astype(jnp.float32)).sum(), output


@partial(jitted, static_argnums=0)
def value_and_gradients(function, given, arguments):
    return jax.value_and_grad(partial(loss, function), has_aux=True)(given, arguments)


def assert_equal(actual, expected, rtol=2e-5, atol=1e-5):
    for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(
            np.asarray(ours, np.float32), np.asarray(theirs, np.float32), rtol=rtol, atol=atol
        )


def random_inputs(num_queries=T, dtype="float32"):
    shapes = (B, num_queries, N, H), (B, T, K, H), (B, T, K, Hv)
    return *draw(*shapes, dtype=dtype), jnp.float32(0.4)


PACKED = np.repeat([[0, 1, 2], [5, 5, -1]], [100, 11, 20], axis=1)
CALLS = {
    "packed": {"mask": masks.causal() & masks.segments(PACKED)},
    "window": {"mask": masks.window(40, 3) & masks.window(50, 2), "score": scores.softcap(2.0)},
    # One example is fully masked, and queries of the other have a segment without keys.
    "fully masked": {
        "mask": masks.lengths([0, 77], [131, 120])
        & masks.segments(PACKED, np.where(PACKED < 0, 7, PACKED))
    },
}


@pytest.mark.parametrize("arguments", CALLS.values(), ids=CALLS)
def test_equals_reference(arguments):
    actual = value_and_gradients(by_splash, random_inputs(), arguments)
    expected = value_and_gradients(by_reference, random_inputs(), arguments)
    assert_equal(actual, expected)
    assert all(np.isfinite(gradient).all() for gradient in actual[1])


def test_different_numbers_of_queries_and_keys():
    given = random_inputs(num_queries=3)
    actual = value_and_gradients(by_splash, given, {})
    assert_equal(actual, value_and_gradients(by_reference, given, {}))


@pytest.mark.parametrize("scale", [0.25, 0.3])
def test_scale_does_not_round_a_bfloat16_query(scale):
    """Only weights and outputs are rounded, by 2^-9 each, for scores up to 30."""
    query, key, value = (4 * array for array in random_inputs(dtype="bfloat16")[:3])
    actual = by_splash(query, key, value, scale=scale)
    wide = (array.astype(jnp.float32) for array in (query, key, value))
    expected = by_reference(*wide, scale=scale)
    assert actual.dtype == jnp.bfloat16
    np.testing.assert_allclose(actual.astype(jnp.float32), expected, rtol=0.005, atol=0.005)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_visible_nan_gives_nan_outputs_and_gradients(number):
    query, key, value, scale = random_inputs()
    query, value = changed(query, (0, 3, 1, 2), number), changed(value, (1, 110, 1, 4), number)
    given, arguments = (query, key, value, scale), {"mask": masks.causal() & masks.segments(PACKED)}
    (_, output), (d_query, d_key, d_value, _) = value_and_gradients(by_splash, given, arguments)
    (_, expected), _ = value_and_gradients(by_reference, given, arguments)
    assert_equal(output, expected)
    rows = np.zeros((B, T, N), bool)
    rows[0, 3, 1] = rows[1, 110, 2:] = True  # a segment ends at position 110
    np.testing.assert_array_equal(np.isnan(output).any(-1), rows)
    np.testing.assert_array_equal(np.isnan(d_query).any(-1), rows)
    keys = np.zeros((B, T, K), bool)  # those that an affected query attends to
    keys[0, :4, 0] = keys[1, :111, 1] = True
    np.testing.assert_array_equal(np.isnan(d_key).any(-1), keys)
    np.testing.assert_array_equal(np.isnan(d_value).any(-1), keys)


def test_second_derivatives_raise():
    query, key, value, _ = random_inputs()

    def value_of(query):
        return by_splash(query, key, value).sum()

    why = "'splash' has first-order reverse-mode derivatives only: use implementation='tiled'"
    with pytest.raises(NotImplementedError, match=why):
        jax.jvp(jax.grad(value_of), (query,), (query,))


def test_passes_check_attention():
    supports = ("jit", "vmap", "scale", "cross", "grouped", "value_width", "leading_axes")
    rows = ("shapes and dtypes", "large scores", "grouping", "vmap")
    report = check_attention(by_splash, {*supports, "bfloat16"}, rows=rows)
    report.raise_if_failed()
    assert [row.verdict for row in report.rows] == ["pass"] * 4


REFUSED = {
    "float16": ({}, "float32 and bfloat16 only, and the inputs are float16"),
    "mixed": ({}, "its inputs must have one dtype, and they have bfloat16, float32"),
    "empty": ({}, "an input is empty"),
    "dropout": ({"dropout": Dropout(jax.random.key(0), 0.1)}, "does not implement this dropout"),
    "sinks": (
        {"score": scores.attention_sinks(np.zeros(1, "float32"))},
        "does not implement attention sinks",
    ),
    "score": (
        {"score": (scores.softcap(2.0), scores.softcap(2.0))},
        "a single softcap is its only",
    ),
    "bias": ({"score": scores.bias_array(np.zeros((1, 4, 4), "float32"))}, "softcap is its only"),
    "logsumexp": ({"returning": ("logsumexp",)}, "does not return logsumexp"),
    "array": ({"mask": np.ones((4, 4), bool)}, "its masks are causal, window, segments, lengths"),
    "or": ({"mask": masks.causal() | masks.lengths(3)}, "its masks are causal, window, segments"),
    "segments": ({"mask": masks.segments([0] * 4) & masks.segments([1] * 4)}, "one mask of"),
    "positions": (
        {"mask": masks.causal(), "positions": (np.arange(4), np.arange(4))},
        "positions that count from 0",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_with_a_reason(name):
    arguments, why = REFUSED[name]
    shape = (0 if name == "empty" else 4, 1, 3)
    dtype = "float16" if name == "float16" else "float32"
    inputs = [np.zeros(shape, dtype)] * 2
    inputs.append(np.zeros(shape, jnp.bfloat16 if name == "mixed" else dtype))
    assert why in refusal(check_arguments(*inputs, **arguments), "cpu", interpret=True)


def test_refuses_other_platforms():
    arguments = check_arguments(*draw((4, 1, 3), (4, 1, 3), (4, 1, 3)))
    assert refusal(arguments, "cpu") == "its kernels are for a TPU, and the platform is cpu"
    assert refusal(arguments, "tpu") is None
    with jax.enable_x64(True):
        assert "do not compile if jax_enable_x64" in refusal(arguments, "tpu")


TARGET = "tpu_custom_call"


@pytest.mark.parametrize(
    "dtype, width, mask",
    [
        ("float32", 64, None),
        ("bfloat16", 128, masks.window(20, 3)),
        (
            "bfloat16",
            24,
            masks.causal() & masks.segments(np.zeros((2, 300), int)) & masks.lengths(9),
        ),
    ],
)
def test_gradients_lower_to_three_kernels(dtype, width, mask):
    def value(query, key, value):
        return attend_by_splash(check_arguments(query, key, value, mask=mask))["output"].sum()

    shapes = (2, 300, 6, width), (2, 300, 2, width), (2, 300, 2, width)
    inputs = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    gradients = export.export(
        jax.jit(jax.grad(value, argnums=(0, 1, 2))),
        platforms=["tpu"],
        disabled_checks=[export.DisabledSafetyCheck.custom_call(TARGET)],
    )
    assert gradients(*inputs).mlir_module().count(TARGET) == 3
