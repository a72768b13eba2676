"""The shape tests find a wrong shape, a wrong dtype and a compiled program."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from attention.modules import FeedForward
from tests.shapes.shapes import SIZE, check, module, shapes


def transposed(rngs):
    """A layer with its matrices the wrong way round."""
    return FeedForward(SIZE.F, SIZE.D, rngs=rngs)


@pytest.mark.parametrize(
    "line, sentence",
    [
        (shapes(lambda x: x.T, "x: [T, D] -> [T, D]"), r"the result should be \[T, D\]"),
        (shapes(lambda x: x[0], "x: [..., T, D] -> [..., D]"), r"should be \[..., D\]"),
        (
            shapes(lambda x: {"mean": x.astype("bfloat16")}, "x: [T] -> mean: [T]"),
            r"\[mean\] should be \[T\], got bfloat16",
        ),
        (shapes(lambda x: {"a": x, "b": x}, "x: [T] -> a: [T]"), r"\['a', 'b'\] for \['a'\]"),
        (
            module(transposed, "inputs: [D] -> [D]", parameters="up.kernel: [D, F]"),
            r"has \['down.bias', 'down.kernel', 'up.bias', 'up.kernel'\], not",
        ),
        (
            module(
                lambda rngs: nnx.Linear(SIZE.F, SIZE.D, use_bias=False, rngs=rngs),
                "inputs: [D] -> [F]",
                parameters="kernel: [D, F]",
            ),
            r"\[kernel\] should be \[D, F\]",
        ),
    ],
    ids=["shape", "batch axes", "dtype", "another result", "parameters", "kernel"],
)
def test_a_wrong_shape_is_found(line, sentence):
    with pytest.raises(AssertionError, match=sentence):
        check(line)


def test_a_compiled_program_is_noted(compiled):
    before = len(compiled)
    jax.jit(lambda x: x + 1)(jnp.zeros(SIZE.M))
    assert len(compiled) > before
    del compiled[before:]
