"""`jax.nn.dot_product_attention` behind the contract: what it refuses, and what is mended."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention.primitives.request import checked

from attention import Dropout, attend, masks, scores
from attention.primitives.vendor.jax_nn import refusal
from attention.testing import check_attention
from experiments.conformance import ours
from tests.attention.primitives.inputs import draw

B, T, N, K, H = 2, 5, 4, 2, 8


def inputs(dtype="float32"):
    return draw((B, T, N, H), (B, T, K, H), (B, T, K, H), dtype=dtype)


def value_and_gradients(name, given, **arguments):
    """Output; and gradients of query, key and value, and of what a loss is given beside them."""

    def loss(given):
        query, key, value, *bias = given
        score = tuple(map(scores.bias_array, bias))
        output = attend(query, key, value, score=score, implementation=name, **arguments)
        return jnp.sin(output).sum(), output

    (_, output), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(given)
    return output, gradients


def assert_is_the_reference(given, **arguments):
    actual = value_and_gradients("jax", given, **arguments)
    expected = value_and_gradients("reference", given, **arguments)
    for ours_, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours_, theirs, rtol=1e-5, atol=2e-6)
    return actual


def test_it_keeps_every_promise_that_it_makes():
    candidate = next(
        one for one in ours.candidates() if getattr(one, "name", None) == "attend, jax"
    )
    report = check_attention(candidate.function, candidate.supports)
    report.raise_if_failed()
    verdicts = {row.name: row.verdict for row in report.rows}
    assert list(verdicts.values()).count("pass") == 26
    assert verdicts["gradients of fully masked rows"] == verdicts["forward mode"] == "pass"


def test_a_query_that_sees_a_nan_gets_one_and_no_other_does():
    query, key, value = inputs()
    key, value = key.at[0, 2, 0, 1].set(jnp.nan), value.at[1, 3, 1, 0].set(jnp.inf)
    given = query.at[0, 0, 3, 0].set(jnp.nan), key, value
    output, _ = assert_is_the_reference(given, mask=masks.causal())
    assert jnp.isnan(output[0, 2:, :2]).all() and jnp.isnan(output[1, 3:, 2:]).all()
    assert jnp.isnan(output).any(-1).sum() == 2 * 3 + 2 * 2 + 1


LOWEST = np.finfo("float32").min


def test_a_bias_may_hold_the_lowest_numbers_there_are():
    """Lower than what jax.nn puts in place of a hidden score; and -inf, which hides."""
    (bias,) = draw((N, T, T), seed=1)
    bias = bias.at[:, 1].set(LOWEST).at[0, 2].set(-jnp.inf)
    mask = jnp.ones((T, T), bool).at[1, 2:].set(False).at[3].set(False)
    output, _ = assert_is_the_reference((*inputs(), bias), mask=mask)
    assert not output[:, 2, 0].any() and not output[:, 3].any() and output[:, 2, 1].any()


def test_biases_add_up_and_broadcast():
    biases = draw((B, 1, T, T), (N, T, T), seed=1)
    mask = masks.lengths([3, 0])
    assert_is_the_reference((*inputs(), *biases), mask=mask)


def test_leading_axes_and_a_mask_for_some_of_them():
    given = draw((3, B, T, N, H), (3, B, T, K, H), (3, B, T, K, H))
    assert_is_the_reference(
        given, mask=np.tri(T, dtype=bool)[None] & (np.arange(B) > 0)[:, None, None]
    )
    assert_is_the_reference(tuple(array[0, 0] for array in given))


def test_the_scale_has_a_gradient():
    query, key, value = inputs()

    def loss(scale, name):
        return jnp.sin(attend(query, key, value, scale=scale, implementation=name)).sum()

    actual, expected = (jax.grad(loss)(jnp.float32(0.4), name) for name in ("jax", "reference"))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


SEGMENTS = masks.segments([0, 0, 1, 1, 1])
TOLD = {
    "causal": (masks.causal(), {"is_causal": True, "local_window_size": None}),
    "window": (masks.window(2, 1), {"is_causal": False, "local_window_size": (2, 1)}),
    "both": (
        masks.window(3, 1) & masks.causal() & masks.window(2, 2),
        {"is_causal": True, "local_window_size": (2, 0)},
    ),
    "nothing": (None, {"is_causal": False, "local_window_size": None}),
    "array": (masks.causal() & SEGMENTS, {"is_causal": False, "local_window_size": None}),
}


@pytest.mark.parametrize("mask, told", TOLD.values(), ids=TOLD)
def test_a_band_is_told_as_numbers_and_the_rest_as_an_array(monkeypatch, mask, told):
    seen = []
    theirs = jax.nn.dot_product_attention
    monkeypatch.setattr(
        jax.nn, "dot_product_attention", lambda *a, **k: seen.append(k) or theirs(*a, **k)
    )
    given = draw(*[(1, T, 1, 7)] * 3)  # of a shape that no other test compiled
    output = attend(*given, mask=mask, implementation="jax")
    expected = attend(*given, mask=mask, implementation="reference")
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)
    assert [{name: one[name] for name in told} for one in seen] == [told]
    assert ("mask" in seen[0]) == (mask is not None and told == TOLD["nothing"][1])


def test_explicit_positions_have_no_diagonal():
    positions = (np.arange(T) + 2, np.arange(T))
    assert_is_the_reference(inputs(), mask=masks.causal(), positions=positions)


REFUSED = {
    "width": ({}, "its value width must be the key's: 5 and 8"),
    "float64": ({}, "float32 at most, and there is float64"),
    "float16": ({}, "products of float16 that cpu does not have"),
    "mixed": ({}, "its inputs share one dtype, and there are bfloat16, float32"),
    "empty": ({}, "nothing to compute"),
    "dropout": ({"dropout": Dropout(jax.random.key(0), 0.1)}, "no dropout"),
    "sinks": ({"score": scores.attention_sinks(np.zeros(1, "float32"))}, "no attention sinks"),
    "score": ({"score": scores.softcap(2.0)}, "bias_array alone"),
    "positions": (
        {
            "score": scores.bias_array(np.zeros((1, 4, 4), "float32")),
            "positions": (np.arange(4), np.arange(4)),
        },
        "would have to be gathered",
    ),
    "logsumexp": ({"returning": ("logsumexp",)}, "returns no logsumexp"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_with_a_reason(name):
    arguments, why = REFUSED[name]
    length = 0 if name == "empty" else 4
    shapes = [(length, 1, 8)] * 2 + [(length, 1, 5 if name == "width" else 8)]
    dtypes = {"float64": ["float64"] * 3, "float16": ["float16"] * 3}
    dtypes = dtypes.get(name, ["float32", "float32", "bfloat16" if name == "mixed" else "float32"])
    with jax.enable_x64(True):
        given = [jnp.zeros(*each) for each in zip(shapes, dtypes, strict=True)]
        assert why in refusal(checked(*given, **arguments))
