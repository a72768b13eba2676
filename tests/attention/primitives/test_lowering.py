"""Every primitive lowers for every platform, also on a machine without accelerators."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import export

from attention import (
    Dropout,
    attend,
    grouped_query,
    masks,
    multi_head,
    rotary,
    scaled_dot_product,
    scores,
    sinusoidal,
)
from attention.primitives.numerics import softmax
from tests.attention.primitives.inputs import DIMS, POSITIONS, query_key_value

PLATFORMS = ("cpu", "cuda", "tpu")
MASK = (
    masks.causal() & masks.lengths([3, 5])
    | masks.window(2) & ~masks.block(3)
    | masks.segments(POSITIONS[0], POSITIONS[1])
    | masks.prefix(2) & masks.from_function(lambda query, key: query != key)
)


def all_options(query, key, value, random_key):
    return attend(
        query,
        key,
        value,
        mask=MASK,
        positions=POSITIONS,
        dropout=Dropout(random_key, 0.1),
        returning=("weights", "logsumexp"),
    )


def second_derivative_in_tiles(query, key, value, random_key):
    def loss(inputs):
        output, extras = attend(
            *inputs,
            mask=MASK,
            positions=POSITIONS,
            score=(scores.softcap(3.0), scores.alibi(scores.alibi_slopes(6))),
            dropout=Dropout(random_key, 0.1),
            returning=("weights", "logsumexp"),
            implementation="tiled",
        )
        return output.astype(jnp.float32).sum() + extras["logsumexp"].sum()

    return jax.jvp(jax.grad(loss), ((query, key, value),), ((query, key, value),))


def gradient(query, key, value, random_key):
    def loss(inputs):
        return all_options(*inputs, random_key)[0].astype(jnp.float32).sum()

    return jax.grad(loss)((query, key, value))


def floats(*axes):
    return [jax.ShapeDtypeStruct(DIMS[names], jnp.float32) for names in axes]


BATCH = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in query_key_value(DIMS["B"], "bfloat16")]
RANDOM_KEYS = jax.ShapeDtypeStruct(DIMS["B"] + (2,), jnp.uint32)


@pytest.mark.parametrize(
    "function, inputs",
    [
        (softmax, floats("TS")),
        (scaled_dot_product, floats("TH", "SH", "Sv")),
        (multi_head, floats("TNH", "SNH", "SNv")),
        (grouped_query, floats("TNH", "SKH", "SKv")),
        (all_options, [*BATCH, RANDOM_KEYS]),
        (gradient, [*BATCH, RANDOM_KEYS]),
        (second_derivative_in_tiles, [*BATCH, RANDOM_KEYS]),
        (functools.partial(sinusoidal, width=14), [jax.ShapeDtypeStruct((5,), jnp.int32)]),
        (rotary, [jax.ShapeDtypeStruct((5, 3, 14), jnp.bfloat16), POSITIONS[0]]),
    ],
    ids=[
        "softmax",
        "scaled_dot_product",
        "multi_head",
        "grouped_query",
        "attend",
        "gradient",
        "second derivative in tiles",
        "sinusoidal",
        "rotary",
    ],
)
def test_lowers_for_every_platform(function, inputs):
    exported = export.export(jax.jit(function), platforms=PLATFORMS)(*inputs)
    assert exported.platforms == PLATFORMS
