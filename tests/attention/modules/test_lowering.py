"""The whole model and its gradient lower for every platform, although this machine may have one."""

import jax
import pytest
from jax import export

from tests.attention.modules.inputs import LENGTHS, B, S, T, small_translator, tokens, translate

PLATFORMS = ("cpu", "cuda", "tpu")


def forward(model, source, target, key):
    return translate(model, source, target, LENGTHS, key)


def gradient(model, source, target, key):
    return jax.grad(lambda model: forward(model, source, target, key).mean())(model)


@pytest.mark.parametrize("function", [forward, gradient])
def test_lowers_for_every_platform(function):
    model = small_translator(dropout=0.1, attention_dropout=0.1)
    inputs = model, tokens(B, S), tokens(B, T), jax.random.key(0)
    exported = export.export(jax.jit(function), platforms=PLATFORMS)(*inputs)
    assert exported.platforms == PLATFORMS
