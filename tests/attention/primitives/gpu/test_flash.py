"""The kernels, interpreted, against the definition: values, logsumexp and gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention.primitives.kernels import forward
from attention.primitives.kernels.flash import attend_by_kernel, refusal
from attention.primitives.kernels.layout import split
from attention.primitives.kernels.sizes import KernelSize, KernelSizes
from attention.primitives.request import checked
from attention.primitives.touched import Touched

from attention import Dropout, attend, masks, scores
from tests.attention.primitives.inputs import draw

# Primes, so that no axis fills its tiles: 3 tiles of queries by 2 of keys, and the other way round.
B, T, N, K, H, Hv = 2, 37, 4, 2, 7, 5
S = 43
SIZES = KernelSizes(KernelSize(16, 32), KernelSize(32, 16))
POSITIONS = (np.arange(S - T, S), np.arange(S))


def by_kernel(query, key, value, **arguments):
    """`attend`, with logsumexp, by the kernels and with small tiles."""
    request = checked(query, key, value, returning=("logsumexp",), **arguments)
    assert refusal(request, interpret=True) is None
    found = attend_by_kernel(request, interpret=True, sizes=SIZES)
    return found["output"], found["logsumexp"]


def by_definition(query, key, value, **arguments):
    output, found = attend(
        query, key, value, returning=("logsumexp",), implementation="reference", **arguments
    )
    return output, found["logsumexp"]


def loss(function, learned, arguments):
    """Of output and logsumexp; and these two."""
    query, key, value, scale, slopes = learned
    arguments = dict(arguments)
    if "score" in arguments:
        arguments["score"] = arguments["score"](slopes)
    output, logsumexp = function(query, key, value, scale=scale, **arguments)
    seen = jnp.where(jnp.isneginf(logsumexp), 0, logsumexp)
    return jnp.sin(output.astype(jnp.float32)).sum() + jnp.cos(seen).sum(), (output, logsumexp)


def learned(num_queries=T, num_keys=S, dtype="float32"):
    shapes = (B, num_queries, N, H), (B, num_keys, K, H), (B, num_keys, K, Hv)
    query, key, value = draw(*shapes, dtype=dtype)
    return query, key, value, jnp.float32(0.4), jnp.array([0.5, 0.25, 0.125, 0.0625])


def value_and_gradients(function, inputs, arguments):
    """One program."""
    return jax.jit(
        lambda inputs: jax.value_and_grad(partial(loss, function), has_aux=True)(inputs, arguments)
    )(inputs)


def assert_same(actual, expected, rtol=2e-5, atol=1e-5):
    for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(
            np.asarray(ours, np.float32), np.asarray(theirs, np.float32), rtol=rtol, atol=atol
        )


PACKED = jnp.asarray(np.repeat([[0, 1, 2], [5, 5, 1]], [13, 11, 13], axis=1), jnp.int32)
ALIGNED = {
    # The second segment of the first example is hidden by its length, so its rows are empty.
    "packing": masks.causal() & masks.segments(PACKED) & masks.lengths([13, 37]),
    "window": masks.window(5, 3),
    "prefix": masks.prefix([3, 20]),
    "everything": None,
    "or and not": ~masks.block(9) & masks.window(11) | masks.segments(PACKED),
}


@pytest.mark.parametrize("mask", ALIGNED.values(), ids=ALIGNED.keys())
def test_is_the_definition_for_masks(mask):
    inputs = learned(num_keys=T)
    arguments = {"mask": mask}
    actual = value_and_gradients(by_kernel, inputs, arguments)
    expected = value_and_gradients(by_definition, inputs, arguments)
    assert_same(actual, expected)


def test_is_the_definition_where_every_tile_is_whole():
    """No mask, and keys that fill their tiles: nothing is listed and nothing compared."""
    inputs = learned(num_keys=32)
    actual = value_and_gradients(by_kernel, inputs, {})
    assert_same(actual, value_and_gradients(by_definition, inputs, {}))


def test_is_the_definition_with_everything_at_once():
    """Positions, padding to nothing, scores of both kinds, sinks, a key of dropout each."""
    arguments = {
        "mask": masks.causal() & masks.lengths([0, 31]),
        "positions": POSITIONS,
        "score": lambda slopes: (
            scores.alibi(slopes),
            scores.softcap(2.0),
            scores.attention_sinks(4 * slopes),
        ),
        "dropout": Dropout(jax.random.split(jax.random.key(0), B), 0.3),
    }
    actual = value_and_gradients(by_kernel, learned(), arguments)
    assert_same(actual, value_and_gradients(by_definition, learned(), arguments), atol=1e-4)
    (_, (output, logsumexp)), (d_query, *_) = actual
    assert not output[0].any()
    assert jnp.isneginf(logsumexp[0]).all()
    assert not d_query[0].any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_dtypes_lose_what_rounding_a_weight_loses(dtype):
    inputs = learned(num_keys=T, dtype=dtype)
    arguments = {"mask": masks.causal()}
    actual = value_and_gradients(by_kernel, inputs, arguments)
    expected = value_and_gradients(by_definition, inputs, arguments)
    assert_same(actual[1][:3], expected[1][:3], rtol=0.02, atol=0.04)
    assert_same(actual[0][1], expected[0][1], rtol=0.01, atol=0.01)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_not_finite_reaches_exactly_those_who_see_it(poison):
    """One number in a query, a key and a value, each of another head; half of the keys hidden."""
    query, key, value, *others = learned(num_keys=T)
    query = query.at[0, 3, 1, 2].set(poison)
    key = key.at[0, 20, 0, 0].set(poison).at[1, 30, 0, 0].set(poison)
    value = value.at[1, 5, 1, 4].set(poison)
    inputs = query, key, value, *others
    arguments = {"mask": masks.causal() & masks.lengths([37, 25])}
    actual = value_and_gradients(by_kernel, inputs, arguments)
    assert_same(actual, value_and_gradients(by_definition, inputs, arguments))
    output = actual[0][1][0]
    assert jnp.isnan(output[0, 20:, :2]).all() and jnp.isnan(output[0, 3, 1]).all()
    assert not jnp.isnan(output[1, :, :2]).any()
    assert all(jnp.isfinite(gradient).all() for gradient in actual[1])


def test_derivatives_that_no_kernel_computes():
    """Forward mode, forward over reverse, and a map over queries of what reverse mode gives."""
    inputs = learned(num_keys=T)
    moving = tuple(jnp.cos(3 * array + 1) for array in inputs)
    arguments = {"mask": masks.causal()}

    def derivatives(function):
        def value(inputs):
            return loss(function, inputs, arguments)[0]

        along = jax.jvp(jax.value_and_grad(value), (inputs,), (moving,))[1]
        two = jnp.stack([inputs[0], moving[0]])
        mapped = jax.vmap(lambda query: jax.grad(value)((query, *inputs[1:])))(two)
        return along, mapped

    actual, expected = (jax.jit(lambda f=f: derivatives(f))() for f in (by_kernel, by_definition))
    assert_same(actual, expected, rtol=1e-4, atol=1e-4)


def test_tiles_that_no_list_names_are_not_visited(monkeypatch):
    inputs = learned(num_keys=T)[:3]
    request = checked(*inputs, mask=masks.causal())
    nothing = Touched(jnp.zeros((1, 3, 2), bool), jnp.zeros((1, 3, 2), bool))
    monkeypatch.setattr("attention.primitives.kernels.layout.touched_tiles", lambda *_: nothing)
    output, logsumexp = forward.forward(*split(request), SIZES.forward, interpret=True)
    assert not output.any()
    assert jnp.isneginf(logsumexp).all()


REFUSED = {
    "float64": ({}, "float32 at most"),
    "wide": ({}, "wider than its 256"),
    "empty": ({}, "nothing to compute"),
    "array": ({"mask": np.ones((4, 4), bool)}, "bool array"),
    "from_array": ({"mask": ~masks.from_array(np.ones((4, 4), bool))}, "function or an array"),
    "from_function": ({"mask": masks.from_function(lambda q, k: q != k)}, "function or an array"),
    "segments": (
        {"mask": masks.segments([0] * 4), "positions": (np.arange(4), np.arange(4))},
        "explicit positions need a gather",
    ),
    "score": ({"score": scores.bias_array(np.zeros((1, 4, 4), "float32"))}, "softcap and alibi"),
    "weights": ({"returning": ("weights", "entropy")}, "returns no entropy, weights"),
}
SHAPES = {"wide": (4, 1, 257), "empty": (0, 1, 3)}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_with_a_reason(name):
    arguments, why = REFUSED[name]
    inputs = [np.zeros(SHAPES.get(name, (4, 1, 3)), "float32")] * 3
    with jax.enable_x64(True):
        inputs = [jnp.asarray(x, "float64" if name == "float64" else "float32") for x in inputs]
        assert why in refusal(checked(*inputs, **arguments), interpret=True)


def test_refuses_another_platform_than_a_gpu():
    request = checked(*draw((4, 1, 3), (4, 1, 3), (4, 1, 3)))
    assert "for a GPU" in refusal(request)
    assert refusal(request, interpret=True) is None
