"""Every primitive lowers for every platform, also on a machine without accelerators."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import export

from attention import Dropout, attend, grouped_query, masks, rotary, scores, sinusoidal
from tests.attention.primitives.inputs import DIMS, POSITIONS, query_key_value

PLATFORMS = ("cpu", "cuda", "tpu")
MASK = (
    masks.causal() & masks.lengths([3, 5])
    | masks.window(2) & ~masks.block(3)
    | masks.segments(POSITIONS[0], POSITIONS[1])
    | masks.prefix(2) & masks.from_function(lambda query, key: query != key)
)


def derivative(order, implementation):
    """Return a function with all options: the gradient with all results, or its derivative."""

    def function(query, key, value, random_key):
        def loss(inputs):
            output, extras = attend(
                *inputs,
                mask=MASK,
                positions=POSITIONS,
                score=(scores.softcap(3.0), scores.alibi(scores.alibi_slopes(6))),
                dropout=Dropout(random_key, 0.1),
                returning=("weights", "logsumexp"),
                implementation=implementation,
            )
            return output.astype(jnp.float32).sum() + extras["logsumexp"].sum(), extras

        inputs = query, key, value
        gradient = jax.grad(loss, has_aux=True)
        return gradient(inputs) if order == 1 else jax.jvp(gradient, (inputs,), (inputs,))

    return function


BATCH = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in query_key_value(DIMS["B"], "bfloat16")]
BATCH += [jax.ShapeDtypeStruct(DIMS["B"] + (2,), jnp.uint32)]  # random keys


@pytest.mark.parametrize(
    "function, inputs",
    [
        (grouped_query, query_key_value()),
        (derivative(1, "reference"), BATCH),
        (derivative(2, "tiled"), BATCH),
        (functools.partial(sinusoidal, width=14), [jax.ShapeDtypeStruct((5,), jnp.int32)]),
        (rotary, [jax.ShapeDtypeStruct((5, 3, 14), jnp.bfloat16), POSITIONS[0]]),
    ],
    ids=["grouped_query", "gradient", "second derivative in tiles", "sinusoidal", "rotary"],
)
def test_lowers_for_every_platform(function, inputs):
    exported = export.export(jax.jit(function), platforms=PLATFORMS)(*inputs)
    assert exported.platforms == PLATFORMS
