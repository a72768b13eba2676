"""The feed-forward layer and the norms against NumPy."""

import copy
import math
import pickle

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention.modules import FeedForward, layer_norm, rms_norm
from tests.attention.modules.inputs import call, filled
from tests.attention.primitives.inputs import draw

B, T, D, F = 2, 5, 7, 11
(INPUTS,) = draw((B, T, D))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


BY_HAND = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_exact": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "silu": lambda x: x * sigmoid(x),
    "tanh": np.tanh,
}


def project(layer, inputs):
    bias = 0 if layer.bias is None else np.asarray(layer.bias[...])
    return np.asarray(inputs) @ np.asarray(layer.kernel[...]) + bias


@pytest.mark.parametrize(
    ("activation", "use_bias", "gated"),
    [
        ("relu", True, False),
        ("relu", False, False),
        ("gelu", True, True),
        ("gelu_exact", True, False),
        ("silu", False, True),
        ("tanh", True, False),
    ],
)
def test_project_up_activate_and_project_down(activation, use_bias, gated):
    options = {"activation": activation, "use_bias": use_bias, "gated": gated}
    module = filled(lambda: FeedForward(D, F, **options, rngs=nnx.Rngs(0)))
    hidden, act = project(module.up, INPUTS), BY_HAND[activation]
    hidden = act(project(module.gate, INPUTS)) * hidden if gated else act(hidden)
    expected = project(module.down, hidden)
    np.testing.assert_allclose(call(module, INPUTS), expected, rtol=1e-4, atol=1e-5)
    sizes = [parameter.size for parameter in jax.tree.leaves(module)]
    matrices = 3 if gated else 2
    biases = F * (matrices - 1) + D if use_bias else 0
    assert sum(sizes) == matrices * D * F + biases


def test_a_copy_has_the_structure_of_the_original():
    """Copies of functions of jax are other functions, and many of them cannot be pickled."""
    module = filled(lambda: FeedForward(D, F, activation="relu", rngs=nnx.Rngs(0)))
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        chex.assert_trees_all_equal(other, module)


def test_an_activation_may_be_a_function():
    module = filled(lambda: FeedForward(D, F, activation=jnp.sin, rngs=nnx.Rngs(0)))
    expected = project(module.down, np.sin(project(module.up, INPUTS)))
    np.testing.assert_allclose(call(module, INPUTS), expected, rtol=1e-4, atol=1e-5)


def test_unknown_activation():
    sentence = r"activation must be one of relu, gelu, .*, got 'gelo'; did you mean 'gelu'\?"
    with pytest.raises(ValueError, match=sentence):
        FeedForward(D, F, activation="gelo", rngs=nnx.Rngs(0))


def norm_by_hand(module, inputs):
    inputs = np.asarray(inputs, np.float64)
    if module.bias is not None:
        inputs = inputs - inputs.mean(-1, keepdims=True)
    normal = inputs / np.sqrt((inputs**2).mean(-1, keepdims=True) + module.epsilon)
    bias = 0 if module.bias is None else np.asarray(module.bias[...])
    return normal * np.asarray(module.scale[...]) + bias


@pytest.mark.parametrize("make", [layer_norm, rms_norm], ids=["layer", "rms"])
class TestNorms:
    @pytest.mark.parametrize("epsilon", [1e-6, 0.5])
    def test_by_hand(self, make, epsilon):
        module = filled(lambda: make(D, epsilon=epsilon, rngs=nnx.Rngs(0)))
        for inputs in (INPUTS, 100 * INPUTS, INPUTS[0, 0], np.zeros((2, D), np.float32)):
            expected = norm_by_hand(module, inputs)
            np.testing.assert_allclose(call(module, inputs), expected, rtol=1e-4, atol=1e-5)

    def test_starts_as_the_identity_of_normal_vectors(self, make):
        normal = np.float32([1, -1, 1, -1])
        np.testing.assert_allclose(call(make(4, rngs=nnx.Rngs(0)), normal), normal, rtol=1e-5)

    def test_low_precision_is_computed_in_float32(self, make):
        module = filled(lambda: make(D, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0)))
        inputs = INPUTS.astype(jnp.bfloat16)
        outputs = call(module, inputs)
        assert outputs.dtype == jnp.bfloat16
        expected = norm_by_hand(module, inputs).astype(jnp.bfloat16)
        np.testing.assert_array_equal(outputs, expected)
        module.dtype = "float32"
        assert call(module, inputs).dtype == jnp.float32

    def test_float64_stays_float64(self, make, float64):
        del float64
        module = make(D, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
        inputs = INPUTS.astype(np.float64)
        expected = norm_by_hand(module, inputs)
        np.testing.assert_allclose(call(module, inputs), expected, rtol=1e-12, atol=1e-12)
