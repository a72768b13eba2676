"""Norms of inputs that are large beside their spread."""

import numpy as np
import pytest
from flax import nnx

from attention.modules import layer_norm
from tests.attention.modules.inputs import call

ROWS = np.random.default_rng(0).normal(size=(3, 64))


@pytest.mark.parametrize("mean, deviation", [(1000, 1), (300, 0.01), (-5, 2)])
def test_layer_norm_of_inputs_far_from_zero(mean, deviation):
    inputs = np.float32(mean + deviation * ROWS)
    exact = inputs.astype(np.float64)
    exact -= exact.mean(-1, keepdims=True)
    exact /= np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-12)
    outputs = call(layer_norm(64, epsilon=1e-12, rngs=nnx.Rngs(0)), inputs)
    np.testing.assert_allclose(outputs, exact, rtol=1e-4, atol=1e-5)


def test_layer_norm_of_a_constant_row_is_its_bias():
    outputs = call(layer_norm(64, rngs=nnx.Rngs(0)), np.full((2, 64), 1000.1, np.float32))
    np.testing.assert_allclose(outputs, 0, atol=1e-6)
