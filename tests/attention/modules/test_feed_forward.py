"""The feed-forward layer against NumPy."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention.modules import FeedForward
from tests.attention.modules.inputs import assert_close, call, filled, project
from tests.attention.primitives.inputs import draw

D, F = 7, 11
(INPUTS,) = draw((2, 5, D))

BY_HAND = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_exact": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
    jnp.sin: np.sin,
}


def feed_forward(**options):
    return filled(lambda: FeedForward(D, F, **options, rngs=nnx.Rngs(0)))


@pytest.mark.parametrize("activation", BY_HAND)
@pytest.mark.parametrize(("use_bias", "gated"), [(True, False), (False, True)])
def test_project_up_activate_and_project_down(activation, use_bias, gated):
    module = feed_forward(activation=activation, use_bias=use_bias, gated=gated)
    hidden, act = project(module.up, INPUTS), BY_HAND[activation]
    hidden = act(project(module.gate, INPUTS)) * hidden if gated else act(hidden)
    assert_close(call(module, INPUTS), project(module.down, hidden))
