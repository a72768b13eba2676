"""Products of rows with a matrix are those of `lax.dot_general`, with other gradients inside."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention.modules.linear import Linear, LinearGeneral, product
from tests.attention.primitives.inputs import draw

B, T, N, H, F = 2, 5, 3, 7, 11
CASES = {
    "vectors": ((H,), (H, F), 1),
    "sequences": ((B, T, H), (H, F), 1),
    "into heads": ((B, T, F), (F, N, H), 1),
    "out of heads": ((B, T, N, H), (N, H, F), 2),
    "no rows": ((0, T, H), (H, F), 1),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_and_gradients_are_those_of_dot_general(name):
    shape, kernel_shape, contracted = CASES[name]
    inputs, kernel = draw(shape, kernel_shape)
    last = tuple(range(len(shape) - contracted, len(shape)))
    numbers = (last, tuple(range(contracted))), ((), ())

    def learned(multiply):
        def loss(inputs, kernel):
            found = multiply(inputs, kernel, numbers)
            return jnp.sum(jnp.sin(found)), found

        return jax.jit(jax.grad(loss, (0, 1), has_aux=True))(inputs, kernel)

    ours, expected = learned(product), learned(jax.lax.dot_general)
    for found, wanted in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_precision_is_passed_on():
    inputs, kernel = draw((T, H), (H, F))
    lowered = jax.jit(Linear(H, F, precision="highest", rngs=nnx.Rngs(0))).lower(inputs)
    assert "HIGHEST" in lowered.as_text()
    half = product(inputs, kernel, (((1,), (0,)), ((), ())), preferred_element_type=jnp.bfloat16)
    assert half.dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda rngs: Linear(H, F, rngs=rngs), (B, T, H)),
        (lambda rngs: LinearGeneral(F, (N, H), rngs=rngs), (B, T, F)),
        (lambda rngs: LinearGeneral((N, H), F, axis=(-2, -1), rngs=rngs), (B, T, N, H)),
    ],
)
def test_no_gradient_sums_over_several_axes(layer, shape):
    """Which is what XLA transposes operands for, on a CPU."""
    (inputs,) = draw(shape)

    def loss(layer, inputs):
        return jnp.sum(layer(inputs) ** 2)

    program = str(jax.make_jaxpr(jax.grad(loss, (0, 1)))(layer(nnx.Rngs(0)), inputs))
    summed = re.findall(r"dimension_numbers=\(\(\[([\d, ]*)\]", program)
    assert len(summed) == 3
    assert all(len(axes.split(",")) == 1 for axes in summed)
