"""Linear layers: products of two matrices that equal `lax.dot_general`."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from attention.modules.layers import dot_general
from tests.attention.modules.inputs import B, S, T, small_translator, tokens
from tests.attention.primitives.inputs import draw, jitted

N, H, F = 3, 7, 11
# Shapes of inputs and kernel, and the number of axes that are contracted.
CASES = {
    "a vector": ((H,), (H, F), 1),
    "sequences": ((2, 5, H), (H, F), 1),
    "into heads": ((2, 5, F), (F, N, H), 1),
    "out of heads": ((2, 5, N, H), (N, H, F), 2),
    "no rows": ((0, 5, H), (H, F), 1),
    "empty sums": ((2, 5, 0), (0, F), 1),
    "no features": ((2, 5, H), (H, 0), 1),
}


def product(multiply, inputs, kernel, count=1, **options):
    last = range(inputs.ndim - count, inputs.ndim)
    return multiply(inputs, kernel, ((tuple(last), tuple(range(count))), ((), ())), **options)


@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives_equal_lax(name):
    shape, kernel_shape, count = CASES[name]
    primals, tangents = draw(shape, kernel_shape), draw(shape, kernel_shape, seed=1)

    def results(multiply, primals, tangents):
        def loss(*operands):
            return jnp.sum(jnp.sin(product(multiply, *operands, count)))

        outputs = product(multiply, *primals, count)
        return outputs, jax.jvp(jax.grad(loss, (0, 1)), primals, tangents)

    run = jitted(results, static_argnums=0)
    ours, expected = (
        jax.tree.leaves(run(each, primals, tangents)) for each in (dot_general, jax.lax.dot_general)
    )
    for one, other in zip(ours, expected, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_precision_and_dtype_of_products():
    inputs, kernel = draw((2, 5, H), (H, F))
    multiply = partial(product, dot_general)
    program = str(jax.make_jaxpr(partial(multiply, precision="highest"))(inputs, kernel))
    assert program.count("precision=(Precision.HIGHEST") == program.count("= dot_general[") == 1
    assert multiply(inputs, kernel, preferred_element_type=jnp.bfloat16).dtype == jnp.bfloat16


def test_contracted_axes_of_other_sizes():
    with pytest.raises(TypeError, match="contracting dimensions to have the same shape"):
        product(dot_general, *draw((5, H, N), (N, H, F)), 2)


def test_no_product_of_a_translator_has_two_axes_of_rows():
    def loss(model):
        return jnp.mean(model(tokens(B, S, seed=1), tokens(B, T)).logits ** 2)

    model = small_translator(remat=False, encoder_layers=1, decoder_layers=1)
    program = str(jax.make_jaxpr(jax.grad(loss))(model))
    summed = re.findall(r"numbers=\(\(\[([\d, ]*)\], \[([\d, ]*)\]\)", program)
    assert summed
    assert ("0, 1", "0, 1") not in summed


@pytest.mark.parametrize(
    ("axis", "size", "kind"), [("x", 1, AxisType.Explicit), ("sequence", 2, AxisType.Auto)]
)
def test_axes_that_may_be_sharded_are_not_merged(axis, size, kind):
    mesh = jax.make_mesh((size,), (axis,), axis_types=(kind,))
    inputs, kernel = draw((2, 4, H), (H, F))
    with jax.set_mesh(mesh):
        inputs = jax.device_put(inputs, jax.NamedSharding(mesh, jax.P(None, axis)))
        gradient = jax.grad(lambda kernel: jnp.sum(product(dot_general, inputs, kernel) ** 2))
        assert "reshape" not in str(jax.make_jaxpr(gradient)(kernel))
        assert jitted(gradient)(kernel).shape == kernel.shape
