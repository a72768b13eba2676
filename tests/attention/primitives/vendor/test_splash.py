"""Splash attention, interpreted, behind the contract; and that it lowers for a TPU."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention.primitives.request import checked
from jax import export

from attention import Dropout, attend, masks, scores
from attention.primitives.vendor.splash import attend_by_splash, refusal
from attention.testing import check_attention
from tests.attention.primitives.inputs import draw

# Neither fills its blocks of 128: 2 blocks of queries by 2 of keys.
B, T, N, K, H, Hv = 2, 131, 4, 2, 8, 5


def by_splash(query, key, value, **arguments):
    request = checked(query, key, value, **arguments)
    if why := refusal(request, interpret=True):
        raise NotImplementedError(why)
    return attend_by_splash(request, interpret=True)["output"]


by_definition = partial(attend, implementation="reference")


def loss(function, given, arguments):
    query, key, value, scale = given
    output = function(query, key, value, scale=scale, **arguments)
    return jnp.sin(output.astype(jnp.float32)).sum(), output


def value_and_gradients(function, given, arguments):
    return jax.jit(
        lambda given: jax.value_and_grad(partial(loss, function), has_aux=True)(given, arguments)
    )(given)


def assert_same(actual, expected, rtol=2e-5, atol=1e-5):
    for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(
            np.asarray(ours, np.float32), np.asarray(theirs, np.float32), rtol=rtol, atol=atol
        )


def learned(num_queries=T, dtype="float32"):
    shapes = (B, num_queries, N, H), (B, T, K, H), (B, T, K, Hv)
    return *draw(*shapes, dtype=dtype), jnp.float32(0.4)


PACKED = np.repeat([[0, 1, 2], [5, 5, -1]], [100, 11, 20], axis=1)
CALLS = {
    "packed": {"mask": masks.causal() & masks.segments(PACKED)},
    "window": {"mask": masks.window(40, 3) & masks.window(50, 2), "score": scores.softcap(2.0)},
    # One example has nothing to see, one query of the other looks for a segment that is not there.
    "empty rows": {
        "mask": masks.lengths([0, 77]) & masks.segments(PACKED, np.where(PACKED < 0, 7, PACKED))
    },
}


@pytest.mark.parametrize("arguments", CALLS.values(), ids=CALLS)
def test_is_the_definition(arguments):
    actual = value_and_gradients(by_splash, learned(), arguments)
    expected = value_and_gradients(by_definition, learned(), arguments)
    assert_same(actual, expected)
    assert all(jnp.isfinite(gradient).all() for gradient in actual[1])


def test_queries_and_keys_may_differ_in_number():
    given = learned(num_queries=3)
    actual = value_and_gradients(by_splash, given, {})
    assert_same(actual, value_and_gradients(by_definition, given, {}))


@pytest.mark.parametrize("scale", [0.25, 0.3])
def test_a_query_in_bfloat16_is_not_rounded_by_its_scale(scale):
    """What is rounded are weights and outputs, by 2^-9 each, where scores are up to 30."""
    query, key, value = (4 * array for array in learned(dtype="bfloat16")[:3])
    actual = by_splash(query, key, value, scale=scale)
    wide = (array.astype(jnp.float32) for array in (query, key, value))
    expected = by_definition(*wide, scale=scale)
    assert actual.dtype == jnp.bfloat16
    np.testing.assert_allclose(actual.astype(jnp.float32), expected, rtol=0.005, atol=0.005)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_not_finite_reaches_exactly_those_who_see_it(poison):
    query, key, value, scale = learned()
    query, value = query.at[0, 3, 1, 2].set(poison), value.at[1, 110, 1, 4].set(poison)
    given, arguments = (query, key, value, scale), {"mask": masks.causal() & masks.segments(PACKED)}
    actual = value_and_gradients(by_splash, given, arguments)
    assert_same(actual, value_and_gradients(by_definition, given, arguments))
    assert jnp.isnan(actual[0][1]).any(-1).sum() == 1 + 2  # one segment ends at position 110


def test_derivatives_that_the_kernel_does_not_have():
    """Forward mode, and forward over reverse mode."""
    given = learned()
    moving = tuple(jnp.cos(3 * array + 1) for array in given)

    def derivatives(function):
        def value(given):
            return loss(function, given, {"mask": masks.causal()})[0]

        return jax.jvp(jax.value_and_grad(value), (given,), (moving,))

    actual, expected = (jax.jit(lambda f=f: derivatives(f))() for f in (by_splash, by_definition))
    assert_same(actual, expected, rtol=1e-4, atol=1e-4)


def test_it_keeps_promises_about_shapes():
    supports = ("jit", "vmap", "scale", "cross", "grouped", "value_width", "leading_axes")
    rows = ("shapes and dtypes", "large scores", "grouping", "vmap")
    report = check_attention(by_splash, {*supports, "bfloat16"}, rows=rows)
    report.raise_if_failed()
    assert [row.verdict for row in report.rows] == ["pass"] * 4


REFUSED = {
    "float16": ({}, "float32 and bfloat16 alone, and there is float16"),
    "mixed": ({}, "its inputs share one dtype, and there are bfloat16, float32"),
    "empty": ({}, "nothing to compute"),
    "dropout": ({"dropout": Dropout(jax.random.key(0), 0.1)}, "no dropout"),
    "sinks": ({"score": scores.attention_sinks(np.zeros(1, "float32"))}, "were not tried"),
    "score": ({"score": (scores.softcap(2.0), scores.softcap(2.0))}, "a single softcap alone"),
    "bias": ({"score": scores.bias_array(np.zeros((1, 4, 4), "float32"))}, "softcap alone"),
    "logsumexp": ({"returning": ("logsumexp",)}, "returns no logsumexp"),
    "array": ({"mask": np.ones((4, 4), bool)}, "its masks are causal, window, segments, lengths"),
    "or": ({"mask": masks.causal() | masks.lengths(3)}, "its masks are causal, window, segments"),
    "segments": ({"mask": masks.segments([0] * 4) & masks.segments([1] * 4)}, "one mask of"),
    "positions": (
        {"mask": masks.causal(), "positions": (np.arange(4), np.arange(4))},
        "count positions from 0",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_with_a_reason(name):
    arguments, why = REFUSED[name]
    shape = (0 if name == "empty" else 4, 1, 3)
    dtype = "float16" if name == "float16" else "float32"
    inputs = [jnp.zeros(shape, dtype)] * 2
    inputs.append(jnp.zeros(shape, "bfloat16" if name == "mixed" else dtype))
    assert why in refusal(checked(*inputs, **arguments), interpret=True)


def test_refuses_another_platform_than_a_tpu(monkeypatch):
    request = checked(*draw((4, 1, 3), (4, 1, 3), (4, 1, 3)))
    assert refusal(request) == "its kernels are for a TPU, and this is cpu"
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert refusal(request) is None
    with jax.enable_x64(True):
        assert "do not compile where jax_enable_x64" in refusal(request)


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
        return attend_by_splash(checked(query, key, value, mask=mask))["output"].sum()

    shapes = (2, 300, 6, width), (2, 300, 2, width), (2, 300, 2, width)
    inputs = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    gradients = export.export(
        jax.jit(jax.grad(value, argnums=(0, 1, 2))),
        platforms=["tpu"],
        disabled_checks=[export.DisabledSafetyCheck.custom_call(TARGET)],
    )
    assert gradients(*inputs).mlir_module().count(TARGET) == 3
