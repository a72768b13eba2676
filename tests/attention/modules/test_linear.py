"""Linear layers, and matrix products that equal `lax.dot_general` with other gradients inside."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from attention.modules import linear
from attention.modules.layers import dot_general
from tests.attention.modules.inputs import B, S, T, small_translator, tokens
from tests.attention.primitives.inputs import draw, jitted

N, H, F = 3, 7, 11
# Shapes of inputs and kernel, the axes that are contracted, and those of a batch.
CASES = {
    "a vector": ((H,), (H, F), (0,), (0,), ((), ())),
    "sequences": ((2, 5, H), (H, F), (2,), (0,), ((), ())),
    "into heads": ((2, 5, F), (F, N, H), (2,), (0,), ((), ())),
    "out of heads": ((2, 5, N, H), (N, H, F), (2, 3), (0, 1), ((), ())),
    "out of heads, transposed": ((2, 5, H, N), (N, H, F), (3, 2), (0, 1), ((), ())),
    "no rows": ((0, 5, H), (H, F), (2,), (0,), ((), ())),
    "empty sums": ((2, 5, 0), (0, F), (2,), (0,), ((), ())),
    "no features": ((2, 5, H), (H, 0), (2,), (0,), ((), ())),
    "contracted first": ((H, 5, 2), (H, F), (0,), (0,), ((), ())),
    "a kernel for each": ((2, 5, H), (H, 2, F), (2,), (0,), ((0,), (1,))),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives_equal_lax(name):
    shape, kernel_shape, *contracted, batch = CASES[name]
    primals, tangents = draw(shape, kernel_shape), draw(shape, kernel_shape, seed=1)

    def results(multiply, primals, tangents):
        multiply = partial(multiply, dimension_numbers=(contracted, batch))

        def loss(*operands):
            return jnp.sum(jnp.sin(multiply(*operands)))

        return multiply(*primals), jax.jvp(jax.grad(loss, (0, 1)), primals, tangents)

    run = jitted(results, static_argnums=0)
    ours, expected = (
        jax.tree.leaves(run(each, primals, tangents)) for each in (dot_general, jax.lax.dot_general)
    )
    for one, other in zip(ours, expected, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_precision_and_dtype_of_products():
    inputs, kernel = draw((2, 5, H), (H, F))
    numbers = ((2,), (0,)), ((), ())

    def product(inputs, kernel):
        return dot_general(inputs, kernel, numbers, precision="highest").sum()

    program = str(jax.make_jaxpr(jax.grad(product, (0, 1)))(inputs, kernel))
    assert program.count("precision=(Precision.HIGHEST") == program.count("= dot_general[") == 3
    half = dot_general(inputs, kernel, numbers, preferred_element_type=jnp.bfloat16)
    assert half.dtype == jnp.bfloat16


def sums(function, *operands):
    """Return how many axes each product sums over, in the program of a gradient."""
    program = str(jax.make_jaxpr(function)(*operands))
    return [len(axes.split(",")) for axes in re.findall(r"numbers=\(\(\[([\d, ]*)\]", program)]


@pytest.mark.parametrize(
    ("inputs", "outputs", "shape", "merged"),
    [
        ({"embed": H}, {"hidden": F}, (2, 5, H), 1),
        ({"embed": F}, {"heads": N, "head": H}, (2, 5, F), 1),
        ({"heads": N, "head": H}, {"embed": F}, (2, 5, N, H), 2),
    ],
)
def test_gradients_sum_over_one_axis_and_only_as_far_as_needed(inputs, outputs, shape, merged):
    (given,) = draw(shape)

    def loss(layer, inputs):
        return jnp.sum(layer(inputs) ** 2)

    layer = linear(inputs, outputs, rngs=nnx.Rngs(0))
    assert sums(jax.grad(loss, (0, 1)), layer, given) == [merged, 1, 1]
    for argument in (0, 1):
        assert sums(jax.grad(loss, argument), layer, given) == [merged, 1]


def test_no_gradient_of_a_translator_sums_over_batch_and_position():
    def loss(model):
        return jnp.mean(model(tokens(B, S, seed=1), tokens(B, T)).logits ** 2)

    model = small_translator(remat=False, encoder_layers=1, decoder_layers=1)
    program = str(jax.make_jaxpr(jax.grad(loss))(model))
    summed = re.findall(r"numbers=\(\(\[([\d, ]*)\], \[([\d, ]*)\]\)", program)
    assert summed
    assert ("0, 1", "0, 1") not in summed


def test_products_sharded_over_an_explicit_mesh_equal_lax():
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
    inputs, kernel = draw((2, 5, H), (H, F))
    with jax.set_mesh(mesh):
        inputs = jax.device_put(inputs, NamedSharding(mesh, PartitionSpec(None, "x")))

        def loss(kernel):
            return jnp.sum(dot_general(inputs, kernel, (((2,), (0,)), ((), ()))) ** 2)

        assert jitted(jax.grad(loss))(kernel).shape == kernel.shape
