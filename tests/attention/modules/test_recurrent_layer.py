"""Recurrent layer: equations, cache, ragged and packed rows, and a hybrid decoder."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention import masks
from attention.modules import CacheSpec, Context
from attention.modules.recurrent import RecurrentLayer
from tests.attention.modules import inputs
from tests.attention.modules.inputs import DIMS, B, T, filled, language_model, project, tokens
from tests.attention.primitives.inputs import draw, jitted

D, F = DIMS["DF"]
(INPUTS,) = draw((B, T, D))
LENGTHS = np.array([3, 0, 2])


@functools.cache
def small(**dtypes):
    return filled(lambda: RecurrentLayer(D, hidden=F, rngs=nnx.Rngs(0), **dtypes))


def equations(layer, inputs):
    """Return outputs `[T, D]` of one row, in float64."""
    state, outputs = np.zeros(F), []
    for vector in np.asarray(inputs, np.float64):
        update = 1 / (1 + np.exp(-project(layer.gate, vector)))
        state = (1 - update) * state + update * project(layer.candidate, vector)
        outputs.append(project(layer.output, state))
    return np.array(outputs)


assert_close = functools.partial(inputs.assert_close, tolerance=2e-5)


@jitted
def call(layer, inputs, context):
    return layer(inputs, context=context)


def empty(layer, **options):
    return layer.new_cache(CacheSpec(batch=(B,), size=T, **options))


def test_full_pass_and_steps_equal_the_equations_in_float64(float64):
    del float64
    layer = small(param_dtype=jnp.float64)
    inputs = INPUTS.astype(np.float64)
    whole = call(layer, inputs, Context()).features
    first = call(layer, inputs[:, :2], Context(cache=empty(layer)))
    after = call(layer, inputs[:, 2:], Context(cache=first.cache)).features
    for row in range(B):
        expected = equations(layer, inputs[row])
        assert_close(whole[row], expected, tolerance=1e-12)
        assert_close(after[row], expected[2:], tolerance=1e-12)


def test_ragged_prefill_and_steps_equal_the_full_pass():
    whole = call(small(), INPUTS, Context()).features
    # Padding of NaN must not reach the state.
    valid = (np.arange(3) < LENGTHS[:, None])[..., None]
    piece = np.where(valid, INPUTS[:, :3], np.float32(np.nan))
    context = Context(cache=empty(small()), lengths=LENGTHS)
    output = call(small(), piece, context)
    for row, length in enumerate(LENGTHS):
        assert_close(output.features[row, :length], whole[row, :length])
    for step in range(2):
        positions = (LENGTHS + step)[:, None]
        piece = np.take_along_axis(INPUTS, positions[..., None], axis=1)
        output = call(small(), piece, Context(cache=output.cache, positions=positions))
        expected = np.take_along_axis(whole, positions[..., None], axis=1)
        assert_close(output.features, expected)


def test_gradient_is_finite_with_padding_of_nan():
    piece = np.where((np.arange(T) < LENGTHS[:, None])[..., None], INPUTS, np.float32(np.nan))

    @jitted
    @jax.grad
    def loss(layer, inputs):
        context = Context(lengths=LENGTHS)
        return jnp.sum(layer(inputs, context=context).features[:, -1])

    for slopes in jax.tree.leaves(loss(small(), piece)):
        assert np.isfinite(slopes).all()
        assert slopes.any()


PACKED = {
    "segments": masks.segments([1, 1, 1, 2, 2]),
    "batch of segments": masks.segments(np.broadcast_to([0, 0, 0, 1, 1], (B, T))),
    "cu_seqlens": masks.cu_seqlens([0, 3, 5]),
}


@pytest.mark.parametrize("mask", PACKED.values(), ids=PACKED)
def test_state_starts_anew_in_each_packed_sequence(mask):
    mask &= masks.causal()
    features = call(small(), INPUTS, Context(mask=mask)).features
    assert_close(features[:, :3], call(small(), INPUTS[:, :3], Context()).features)
    assert_close(features[:, 3:], call(small(), INPUTS[:, 3:], Context()).features)
    # In pieces, the second of which begins a sequence in its middle.
    first = call(small(), INPUTS[:, :2], Context(mask=mask, cache=empty(small())))
    context = Context(mask=mask, cache=first.cache, positions=np.arange(2, T))
    assert_close(call(small(), INPUTS[:, 2:], context).features, features[:, 2:])


def test_dtypes():
    layer = small(dtype=jnp.bfloat16)
    chex.assert_type(jax.tree.leaves(layer), jnp.float32)
    output = call(layer, INPUTS, Context(cache=empty(layer)))
    chex.assert_type(output.features, jnp.bfloat16)
    chex.assert_type(output.cache, jnp.float32)
    expected = call(small(), INPUTS, Context()).features
    assert_close(output.features.astype(np.float32), expected, tolerance=0.1)
    chex.assert_type(empty(layer, dtype=jnp.bfloat16), jnp.bfloat16)
    half = call(layer, INPUTS, Context(cache=empty(layer, dtype=jnp.bfloat16)))
    chex.assert_type(half.cache, jnp.bfloat16)


@functools.cache
def hybrid():
    """Return a language model whose every third layer is attention and whose others recur."""

    def recurrent(config, rngs):
        return RecurrentLayer(config.width, hidden=F, rngs=rngs)

    per_layer = [{"mixer": recurrent}, {"mixer": recurrent}, {}]
    return language_model(positions="none", decoder_layers=6, per_layer=per_layer)


def test_packed_texts_of_a_hybrid_equal_separate_texts():
    model, inputs = hybrid(), tokens(B, T, seed=4)
    positions = np.array([0, 1, 2, 0, 1])
    options = {"mask": PACKED["batch of segments"], "embedding_positions": positions}
    packed = jitted(lambda m: m(inputs, **options).logits)(model)
    for part in (slice(3), slice(3, T)):
        alone = jitted(model)(inputs[:, part]).logits
        assert_close(packed[:, part], alone, tolerance=1e-4)
