"""Layers as a loop, one after the other, and taken apart: the same is said and learned."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import masks
from attention.modules import unrolled
from attention.modules.transformer import SHALLOW
from tests.attention.modules.inputs import DIMS, small_translator, tokens
from tests.attention.primitives.inputs import draw

B, S, T, LAYERS = 2, 5, 7, 3
MASK = masks.lengths([3, 5])


@pytest.fixture(scope="module")
def models():
    whole = small_translator(decoder_layers=LAYERS, positions="relative", dropout=0.3)
    return whole, unrolled(whole)


def test_the_same_is_said_with_and_without_dropout(models):
    source, target = tokens(B, S, seed=1), tokens(B, T)

    @jax.jit
    def read(model, key):
        return [
            model(source, target, source_mask=MASK, memory_mask=MASK, key=each)
            for each in (None, key)
        ]

    ours, expected = (read(model, jax.random.key(0)) for model in reversed(models))
    for said, wanted in zip(ours, expected, strict=True):
        np.testing.assert_allclose(said, wanted, rtol=1e-5, atol=1e-5)


def test_the_same_is_remembered(models):
    (memory,) = draw((B, S, DIMS["D"][0]))
    ours, expected = (jax.jit(lambda model: model.remember(memory))(model) for model in models)
    chex.assert_trees_all_equal(ours, expected)


def test_each_layer_stands_apart(models):
    whole, apart = models
    assert whole.decoder.is_stacked and not apart.decoder.is_stacked
    assert len(apart.decoder.layers) == LAYERS
    step = jax.make_jaxpr(
        lambda model, memory, cache: model.decode(
            tokens(B, 1), memory, memory_mask=MASK, cache=cache
        )[0]
    )
    memory = jax.eval_shape(lambda: whole.remember(whole.encode(tokens(B, S), mask=MASK)))
    cache = jax.eval_shape(lambda: whole.new_cache((B,), T))
    kernel = whole.decoder.layers.feed_forward.widen.kernel.shape
    shape = "f32[" + ",".join(map(str, kernel)) + "]"
    assert shape in str(step(whole, memory, cache))
    assert shape not in str(step(apart, memory, cache))


def test_a_shallow_stack_is_no_loop_and_learns_what_a_loop_does():
    """With remat it stays a loop, in which little is kept for the derivative."""
    source, target = tokens(B, S, seed=1), tokens(B, T)

    def say(model, key=None):
        return model(source, target, source_mask=MASK, memory_mask=MASK, key=key)

    @jax.jit
    def learn(model):
        return jax.value_and_grad(lambda model: jnp.mean(say(model, jax.random.key(0)) ** 2))(model)

    loop, flat, deep = (
        small_translator(decoder_layers=layers, dropout=0.3, remat=remat)
        for layers, remat in ((SHALLOW, True), (SHALLOW, False), (SHALLOW + 1, False))
    )
    lowered = [jax.jit(say).lower(model).as_text() for model in (loop, flat, deep)]
    assert ["stablehlo.while" in text for text in lowered] == [True, False, True]
    ours, expected = (jax.tree.leaves(learn(model)) for model in (flat, loop))
    for found, wanted in zip(ours, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
