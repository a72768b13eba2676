"""Products are those of `lax.dot_general`, whatever its arguments, with other gradients inside."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from attention.modules.linear import Linear, LinearGeneral, dot_general
from tests.attention.modules.inputs import B, S, T, small_translator, tokens
from tests.attention.primitives.inputs import draw

N, H, F = 3, 7, 11
# Shapes of inputs and kernel, the axes that are contracted, and those of a batch.
CASES = {
    "a vector": ((H,), (H, F), (0,), (0,), ((), ())),
    "sequences": ((2, 5, H), (H, F), (2,), (0,), ((), ())),
    "into heads": ((2, 5, F), (F, N, H), (2,), (0,), ((), ())),
    "out of heads": ((2, 5, N, H), (N, H, F), (2, 3), (0, 1), ((), ())),
    "out of heads, turned": ((2, 5, H, N), (N, H, F), (3, 2), (0, 1), ((), ())),
    "no rows": ((0, 5, H), (H, F), (2,), (0,), ((), ())),
    "nothing to add": ((2, 5, 0), (0, F), (2,), (0,), ((), ())),
    "no features": ((2, 5, H), (H, 0), (2,), (0,), ((), ())),
    "contracted first": ((H, 5, 2), (H, F), (0,), (0,), ((), ())),
    "a kernel for each": ((2, 5, H), (H, 2, F), (2,), (0,), ((0,), (1,))),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_and_derivatives_are_those_of_lax(name):
    shape, kernel_shape, *contracted, batch = CASES[name]
    primals, tangents = draw(shape, kernel_shape), draw(shape, kernel_shape, seed=1)

    def found(multiply):
        multiply = partial(multiply, dimension_numbers=(contracted, batch))

        def loss(*operands):
            return jnp.sum(jnp.sin(multiply(*operands)))

        forwards = jax.jvp(jax.grad(loss, (0, 1)), tuple(primals), tuple(tangents))
        return multiply(*primals), forwards

    ours, expected = (jax.tree.leaves(found(each)) for each in (dot_general, jax.lax.dot_general))
    for one, other in zip(ours, expected, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_options_are_passed_on():
    inputs, kernel = draw((2, 5, H), (H, F))
    layer = Linear(H, F, precision="highest", rngs=nnx.Rngs(0))
    program = str(jax.make_jaxpr(jax.grad(lambda layer: layer(inputs).sum()))(layer))
    assert program.count("precision=(Precision.HIGHEST") == program.count("= dot_general[") == 2
    half = dot_general(
        inputs, kernel, (((2,), (0,)), ((), ())), preferred_element_type=jnp.bfloat16
    )
    assert half.dtype == jnp.bfloat16


def sums(function, *operands):
    """How many axes each product sums over, in the program of a gradient."""
    program = str(jax.make_jaxpr(function)(*operands))
    return [len(axes.split(",")) for axes in re.findall(r"numbers=\(\(\[([\d, ]*)\]", program)]


@pytest.mark.parametrize(
    ("layer", "shape", "outputs"),
    [
        (lambda rngs: Linear(H, F, rngs=rngs), (2, 5, H), 1),
        (lambda rngs: LinearGeneral(F, (N, H), rngs=rngs), (2, 5, F), 1),
        (lambda rngs: LinearGeneral((N, H), F, axis=(-2, -1), rngs=rngs), (2, 5, N, H), 2),
    ],
)
def test_gradients_sum_over_one_axis_and_only_where_they_are_asked_for(layer, shape, outputs):
    (inputs,) = draw(shape)

    def loss(layer, inputs):
        return jnp.sum(layer(inputs) ** 2)

    layer = layer(nnx.Rngs(0))
    assert sums(jax.grad(loss, (0, 1)), layer, inputs) == [outputs, 1, 1]
    for asked in (0, 1):
        assert sums(jax.grad(loss, asked), layer, inputs) == [outputs, 1]


def test_no_gradient_of_a_translator_sums_over_batch_and_position():
    def loss(model):
        said = model(tokens(B, S, seed=1), tokens(B, T), source_mask=None, memory_mask=None)
        return jnp.mean(said**2)

    program = str(jax.make_jaxpr(jax.grad(loss))(small_translator(remat=False)))
    summed = re.findall(r"numbers=\(\(\[([\d, ]*)\], \[([\d, ]*)\]\)", program)
    assert summed
    assert ("0, 1", "0, 1") not in summed


def test_what_an_explicit_mesh_parts_is_as_in_lax():
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
    inputs, kernel = draw((2, 5, H), (H, F))
    with jax.set_mesh(mesh):
        inputs = jax.device_put(inputs, NamedSharding(mesh, PartitionSpec(None, "x")))

        def loss(kernel):
            return jnp.sum(dot_general(inputs, kernel, (((2,), (0,)), ((), ()))) ** 2)

        assert jax.jit(jax.grad(loss))(kernel).shape == kernel.shape
