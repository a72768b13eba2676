"""Layer norm and RMS norm against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention.modules import layer_norm, rms_norm
from tests.attention.modules.inputs import assert_close, call, filled, normalize
from tests.attention.primitives.inputs import draw

D = 7
(INPUTS,) = draw((2, 5, D))


@pytest.mark.parametrize("make", [layer_norm, rms_norm], ids=["layer", "rms"])
class TestNorms:
    @pytest.mark.parametrize("epsilon", [1e-6, 0.5])
    def test_by_hand(self, make, epsilon):
        module = filled(lambda: make(D, epsilon=epsilon, rngs=nnx.Rngs(0)))
        for inputs in (INPUTS, 100 * INPUTS, INPUTS[0, 0], np.zeros((2, D), np.float32)):
            assert_close(call(module, inputs), normalize(module, inputs))

    def test_starts_as_the_identity_of_normal_vectors(self, make):
        normal = np.float32([1, -1, 1, -1])
        np.testing.assert_allclose(call(make(4, rngs=nnx.Rngs(0)), normal), normal, rtol=1e-5)

    def test_low_precision_is_computed_in_float32(self, make):
        module = filled(lambda: make(D, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0)))
        inputs = INPUTS.astype(jnp.bfloat16)
        outputs = call(module, inputs)
        assert outputs.dtype == jnp.bfloat16
        expected = normalize(module, inputs).astype(jnp.bfloat16)
        np.testing.assert_array_equal(outputs, expected)
        module.dtype = "float32"
        assert call(module, inputs).dtype == jnp.float32

    def test_float64_stays_float64(self, make, float64):
        del float64
        module = make(D, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
        inputs = INPUTS.astype(np.float64)
        assert_close(call(module, inputs), normalize(module, inputs), tolerance=1e-12)


@pytest.mark.parametrize("mean, deviation", [(1000, 1), (300, 0.01), (-5, 2), (1000.1, 0)])
def test_layer_norm_of_inputs_far_from_zero(mean, deviation):
    module = layer_norm(64, epsilon=1e-12, rngs=nnx.Rngs(0))
    inputs = np.float32(mean + deviation * np.random.default_rng(0).normal(size=(3, 64)))
    assert_close(call(module, inputs), normalize(module, inputs))
