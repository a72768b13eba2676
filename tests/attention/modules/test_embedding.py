"""Token vectors, their positions, and the way back to logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention.modules import Embedding, TransformerConfig
from tests.attention.modules.inputs import filled
from tests.attention.primitives.inputs import draw

V, D, LONGEST = 11, 6, 7
TOKENS = jnp.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]], jnp.int32)
KINDS = ("sinusoidal", "learned")


def embedding(**changes):
    sizes = {"width": D, "num_heads": 1, "max_length": LONGEST}
    return filled(lambda: Embedding(V, TransformerConfig(**(sizes | changes)), rngs=nnx.Rngs(0)))


def sines(positions):
    """Vaswani et al. 2017, section 3.5, entry by entry."""
    rows = [
        [f(p / 10_000 ** (2 * i / D)) for i in range(D // 2) for f in (np.sin, np.cos)]
        for p in np.ravel(positions)
    ]
    return np.reshape(rows, (*np.shape(positions), D))


def places(module, positions):
    if module.positions is None:
        return sines(positions)
    return D**0.5 * np.asarray(module.positions[...])[positions]


@pytest.mark.parametrize("kind", KINDS)
def test_embeds_a_token_times_the_root_of_the_width_plus_its_place(kind):
    module = embedding(positions=kind)
    vectors = D**0.5 * np.asarray(module.tokens[...])[np.asarray(TOKENS)]
    expected = vectors + places(module, np.arange(5))
    np.testing.assert_allclose(module(TOKENS), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_positions_say_where_tokens_stand(kind):
    # A row of two packed sequences is embedded as each alone; the other row stands further back.
    module = embedding(positions=kind)
    positions = jnp.array([[0, 1, 2, 0, 1], [2, 3, 4, 5, 6]], jnp.int32)
    packed = module(TOKENS, positions=positions)
    np.testing.assert_array_equal(packed[0, :3], module(TOKENS[0, :3]))
    np.testing.assert_array_equal(packed[0, 3:], module(TOKENS[0, 3:]))
    shift = packed[1] - module(TOKENS[1])
    expected = places(module, np.arange(2, 7)) - places(module, np.arange(5))
    np.testing.assert_allclose(shift, expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_as_many_tokens_as_the_longest_are_read_and_one_more_is_refused(kind):
    module = embedding(positions=kind)
    full = jax.eval_shape(module, jnp.zeros((2, LONGEST), jnp.int32))
    assert full.shape == (2, LONGEST, D)
    with pytest.raises(ValueError, match="a sequence of 8 tokens is longer than max_length=7"):
        module(jnp.zeros((2, LONGEST + 1), jnp.int32))


@pytest.mark.parametrize("outside", [LONGEST, -1], ids=["behind", "before"])
def test_a_learned_position_outside_the_table_is_nan_and_no_other(outside):
    module = embedding(positions="learned")
    vectors = module(TOKENS[0, :3], positions=jnp.array([0, outside, LONGEST - 1], jnp.int32))
    assert np.isnan(vectors[1]).all()
    assert np.isfinite(vectors[jnp.array([0, 2])]).all()


def test_unembeds_by_the_transposed_table():
    module = embedding()
    (features,) = draw((2, 5, D))
    expected = np.asarray(features) @ np.asarray(module.tokens[...]).T
    np.testing.assert_allclose(module.unembed(features), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [16, 64])
def test_embeddings_and_tied_logits_start_with_unit_variance(width):
    config = TransformerConfig(width=width, positions="learned", max_length=499)
    module = Embedding(503, config, rngs=nnx.Rngs(0))
    tables = np.asarray(module.tokens[...]), np.asarray(module.positions[...])
    for table in tables:
        np.testing.assert_allclose(table.var() * width, 1, rtol=0.1)
    assert abs(np.corrcoef(tables[0][:499].ravel(), tables[1].ravel())[0, 1]) < 0.05
    (features,) = draw((499, width))
    np.testing.assert_allclose(np.var(module.unembed(features)), 1, rtol=0.1)


def test_a_key_drops_entries_of_the_sum():
    module = embedding(dropout=0.25)
    plain, dropped = module(TOKENS), module(TOKENS, key=jax.random.key(0))
    lost = np.asarray(dropped == 0)
    assert lost.any() and not lost.all()
    np.testing.assert_allclose(dropped[~lost], plain[~lost] / 0.75, rtol=1e-6)
    np.testing.assert_array_equal(plain, embedding()(TOKENS, key=jax.random.key(0)))
