"""The feed-forward layer against NumPy."""

import math

import jax
import numpy as np
import pytest
from flax import nnx

from attention.modules import FeedForward
from tests.attention.modules.inputs import filled
from tests.attention.primitives.inputs import draw

B, T, D, F = 2, 5, 7, 11
(INPUTS,) = draw((B, T, D))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu(x):
    """The tanh approximation, which is what jax.nn.gelu computes by default."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


BY_HAND = {
    "relu": lambda gate, wide: np.maximum(wide, 0),
    "gelu": lambda gate, wide: gelu(wide),
    "gated": lambda gate, wide: gate * sigmoid(gate) * wide,
}


def linear(layer, inputs):
    bias = 0 if layer.bias is None else np.asarray(layer.bias[...])
    return np.asarray(inputs) @ np.asarray(layer.kernel[...]) + bias


@pytest.mark.parametrize("use_bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("activation", BY_HAND)
def test_widens_bends_and_narrows(activation, use_bias):
    module = filled(
        lambda: FeedForward(D, F, activation=activation, use_bias=use_bias, rngs=nnx.Rngs(0))
    )
    gate = linear(module.gate, INPUTS) if activation == "gated" else None
    expected = linear(module.narrow, BY_HAND[activation](gate, linear(module.widen, INPUTS)))
    np.testing.assert_allclose(module(INPUTS), expected, rtol=1e-4, atol=1e-5)
    sizes = [parameter.size for parameter in jax.tree.leaves(module)]
    matrices = 3 if activation == "gated" else 2
    biases = F * (matrices - 1) + D if use_bias else 0
    assert sum(sizes) == matrices * D * F + biases


def test_an_unknown_activation_is_refused_with_the_nearest_known_one():
    sentence = r"activation must be one of relu, gelu, gated, got 'gelo'; did you mean 'gelu'\?"
    with pytest.raises(ValueError, match=sentence):
        FeedForward(D, F, activation="gelo", rngs=nnx.Rngs(0))
