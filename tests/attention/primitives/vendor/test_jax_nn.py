"""`jax.nn.dot_product_attention`: equal to the reference, and refusals."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import Dropout, attend, masks, scores
from attention.primitives.arguments import check_arguments
from attention.primitives.vendor.jax_nn import refusal
from attention.testing import ROWS, check_attention
from experiments.benchmarks import ours
from tests.attention.primitives.inputs import (
    changed,
    draw,
    jitted,
)

B, T, N, K, H = 2, 5, 4, 2, 8


def inputs(dtype="float32"):
    return draw((B, T, N, H), (B, T, K, H), (B, T, K, H), dtype=dtype)


@partial(jitted, static_argnums=0)
def value_and_gradients(name, given, **arguments):
    """Output; and gradients of query, key, value and biases."""

    def loss(given):
        query, key, value, *bias = given
        score = tuple(map(scores.bias_array, bias))
        output = attend(query, key, value, score=score, implementation=name, **arguments)
        return jnp.sin(output).sum(), output

    (_, output), gradients = jax.value_and_grad(loss, has_aux=True)(given)
    return output, gradients


def assert_equals_reference(given, **arguments):
    actual = value_and_gradients("jax", given, **arguments)
    expected = value_and_gradients("reference", given, **arguments)
    for ours_, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours_, theirs, rtol=1e-5, atol=2e-6)
    return actual


def test_passes_check_attention():
    candidate = next(
        one for one in ours.candidates() if getattr(one, "name", None) == "attend, jax"
    )
    rows = [row for row in ROWS if "unaligned" not in row]  # it has no tiles
    report = check_attention(candidate.function, candidate.supports, rows=rows)
    report.raise_if_failed()
    verdicts = {row.name: row.verdict for row in report.rows}
    assert list(verdicts.values()).count("pass") == 30
    assert verdicts["gradients of fully masked rows"] == verdicts["forward mode"] == "pass"


def test_visible_nan_gives_nan_outputs_and_gradients():
    query, key, value = inputs()
    key, value = changed(key, (0, 2, 0, 1), np.nan), changed(value, (1, 3, 1, 0), np.inf)
    given = changed(query, (0, 0, 3, 0), np.nan), key, value
    output, gradients = value_and_gradients("jax", given, mask=masks.causal())
    expected, _ = value_and_gradients("reference", given, mask=masks.causal())
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=2e-6)
    rows = np.zeros((B, T, N), bool)
    rows[0, 2:, :2] = rows[1, 3:, 2:] = rows[0, 0, 3] = True
    np.testing.assert_array_equal(np.isnan(output).any(-1), rows)
    np.testing.assert_array_equal(np.isnan(gradients[0]).any(-1), rows)
    keys = np.zeros((B, T, K), bool)  # those that an affected query attends to
    keys[0, :, 0] = keys[1, :, 1] = keys[0, 0, 1] = True
    np.testing.assert_array_equal(np.isnan(gradients[1]).any(-1), keys)
    np.testing.assert_array_equal(np.isnan(gradients[2]).any(-1), keys)


def test_works_in_shard_map():
    """Each of two devices computes one example; the lengths of the two differ."""
    mesh = jax.make_mesh((2,), ("batch",), (jax.sharding.AxisType.Auto,))
    given, lengths = inputs(), np.array([3, 5])

    def loss(query, key, value, lengths):
        mask = masks.causal() & masks.lengths(lengths)
        output = attend(query, key, value, mask=mask, implementation="jax")
        return jnp.sin(output).sum((1, 2, 3))

    per_device = jax.grad(
        lambda *all_: jax.shard_map(
            loss, mesh=mesh, in_specs=jax.P("batch"), out_specs=jax.P("batch")
        )(*all_).sum()
    )
    actual = jax.jit(per_device)(*given, lengths)
    expected = jax.jit(jax.grad(lambda *all_: loss(*all_).sum()))(*given, lengths)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-6)


LOWEST = np.finfo("float32").min


def test_bias_may_be_the_lowest_number():
    """Lower than the score that jax.nn gives to masked keys; and -inf, which masks."""
    (bias,) = draw((N, T, T), seed=1)
    bias = changed(changed(bias, np.s_[:, 1], LOWEST), (0, 2), -np.inf)
    mask = changed(changed(np.ones((T, T), bool), np.s_[1, 2:], False), 3, False)
    output, _ = assert_equals_reference((*inputs(), bias), mask=mask)
    assert not output[:, 2, 0].any() and not output[:, 3].any() and output[:, 2, 1].any()


def test_biases_are_added_and_broadcast():
    biases = draw((B, 1, T, T), (N, T, T), (N, 1, T), (1, T, 1), (B, N, 1, 1), (T, T), seed=1)
    mask = masks.lengths([3, 0])
    assert_equals_reference((*inputs(), *biases), mask=mask)


def test_mask_per_head():
    (random,) = draw((B, N, T, T), seed=1)
    assert_equals_reference(inputs(), mask=random > 0)
    assert_equals_reference(inputs(), mask=random[:1, :, :1] > 0)


def test_global_heads_select_the_bias():
    bias, *given = draw((2 * N, T, T), (B, T, N, H), (B, T, K, H), (B, T, K, H))
    heads = np.arange(N) + N
    actual = value_and_gradients("jax", (*given, bias), heads=heads)
    expected = value_and_gradients("jax", (*given, bias[N:]))
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-6)
    np.testing.assert_allclose(actual[1][-1][N:], expected[1][-1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("precision", ["default", "highest"])
def test_precision_of_products(precision):
    def attention(*given):
        return attend(*given, implementation="jax", precision=precision)

    program = jax.jit(attention).lower(*inputs()).as_text()
    assert ("HIGHEST" in program) == (precision == "highest")


def test_batch_axes_and_a_mask_with_some_of_them():
    given = draw((3, B, T, N, H), (3, B, T, K, H), (3, B, T, K, H))
    assert_equals_reference(
        given, mask=np.tri(T, dtype=bool)[None] & (np.arange(B) > 0)[:, None, None]
    )
    assert_equals_reference(tuple(array[0, 0] for array in given))


def test_the_scale_has_a_gradient():
    query, key, value = inputs()

    def loss(scale, name):
        return jnp.sin(attend(query, key, value, scale=scale, implementation=name)).sum()

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    actual, expected = (gradient(jnp.float32(0.4), name) for name in ("jax", "reference"))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


SEGMENTS = masks.segments([0, 0, 1, 1, 1])
OPTIONS = {
    "causal": (masks.causal(), {"is_causal": True, "local_window_size": None}),
    "window": (masks.window(2, 1), {"is_causal": False, "local_window_size": (2, 1)}),
    "both": (
        masks.window(3, 1) & masks.causal() & masks.window(2, 2),
        {"is_causal": True, "local_window_size": (2, 0)},
    ),
    "none": (None, {"is_causal": False, "local_window_size": None}),
    "array": (masks.causal() & SEGMENTS, {"is_causal": False, "local_window_size": None}),
}


@pytest.mark.parametrize("mask, options", OPTIONS.values(), ids=OPTIONS)
def test_band_is_passed_as_numbers_and_other_masks_as_an_array(monkeypatch, mask, options):
    calls = []
    theirs = jax.nn.dot_product_attention
    monkeypatch.setattr(
        jax.nn, "dot_product_attention", lambda *a, **k: calls.append(k) or theirs(*a, **k)
    )
    given = draw(*[(1, T, 1, 7)] * 3)  # no other test compiles this shape
    output = attend(*given, mask=mask, implementation="jax")
    expected = attend(*given, mask=mask, implementation="reference")
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)
    assert [{name: call[name] for name in options} for call in calls] == [options]
    assert ("mask" in calls[0]) == (mask is not None and options == OPTIONS["none"][1])


def test_explicit_positions():
    positions = (np.arange(T) + 2, np.arange(T))
    assert_equals_reference(inputs(), mask=masks.causal(), positions=positions)


REFUSED = {
    "width": ({}, "its value width must equal the key width: 5 and 8"),
    "float64": ({}, "float32 at most, and the inputs are float64"),
    "float16": ({}, "products of float16, which cpu does not have"),
    "mixed": ({}, "its inputs must have one dtype, and they have bfloat16, float32"),
    "empty": ({}, "an input is empty"),
    "dropout": ({"dropout": Dropout(jax.random.key(0), 0.1)}, "does not implement this dropout"),
    "sinks": (
        {"score": scores.attention_sinks(np.zeros(1, "float32"))},
        "does not implement attention sinks",
    ),
    "score": ({"score": scores.softcap(2.0)}, "bias_array is its only score function"),
    "positions": (
        {
            "score": scores.bias_array(np.zeros((1, 4, 4), "float32")),
            "positions": (np.arange(4), np.arange(4)),
        },
        "explicit positions needs a gather",
    ),
    "tile sizes": ({"tile_sizes": (2, 2)}, "does not take tile sizes"),
    "logsumexp": ({"returning": ("logsumexp",)}, "does not return logsumexp"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_with_a_reason(name):
    arguments, why = REFUSED[name]
    length = 0 if name == "empty" else 4
    shapes = [(length, 1, 8)] * 2 + [(length, 1, 5 if name == "width" else 8)]
    dtypes = {"float64": ["float64"] * 3, "float16": ["float16"] * 3}
    dtypes = dtypes.get(name, ["float32", "float32", "bfloat16" if name == "mixed" else "float32"])
    with jax.enable_x64(True):
        given = [np.zeros(s, jnp.dtype(d)) for s, d in zip(shapes, dtypes, strict=True)]
        assert why in refusal(check_arguments(*given, **arguments), "cpu")
