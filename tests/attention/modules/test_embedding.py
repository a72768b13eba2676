"""Token vectors plus positions, tied logits, and vectors of the skip-gram model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention.modules import Embedding, TransformerConfig
from attention.primitives.positions import sinusoidal
from tests.attention.modules.inputs import assert_close, call, double, filled
from tests.attention.primitives.inputs import draw, jitted

V, D, LONGEST = 11, 6, 7
unembed = jitted(Embedding.unembed)
TOKENS = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
KINDS = ("sinusoidal", "learned")


def embedding(**changes):
    config = TransformerConfig(**({"width": D, "num_heads": 1, "max_length": LONGEST} | changes))
    return filled(lambda: Embedding.from_config(V, config, rngs=nnx.Rngs(0)))


@pytest.mark.parametrize("scale", ["sqrt_width", 1.0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_vector_is_the_scaled_token_vector_plus_the_position(kind, scale):
    module = embedding(positions=kind, embedding_scale=scale)
    factor = D**0.5 if scale == "sqrt_width" else scale
    vectors = factor * double(module.tokens)[np.asarray(TOKENS)]
    if kind == "learned":
        positions = factor * double(module.positions.table)[:5]
    else:
        positions = np.asarray(sinusoidal(np.arange(5), D))
    assert_close(call(module, TOKENS), vectors + positions, 1e-5)


def test_token_types_and_norm():
    module = embedding(num_token_types=2, embedding_norm=True, positions="none")
    types = np.array([[0, 0, 1, 1, 1], [1, 1, 0, 0, 0]])
    vectors = D**0.5 * double(module.tokens)[TOKENS]
    for given, rows in ((types, types), (types.tolist(), types), (None, np.zeros_like(types))):
        expected = call(module.norm, vectors + double(module.token_types)[rows])
        ours = call(module, TOKENS, token_types=given)
        assert_close(ours, expected, 1e-5)


def test_the_longest_sequence():
    module = embedding(positions="learned")
    jax.eval_shape(module, jnp.zeros((2, LONGEST), jnp.int32))
    with pytest.raises(ValueError, match="a sequence of 8 tokens is longer than max_length=7"):
        call(module, np.zeros((2, LONGEST + 1), np.int32))


def test_a_learned_position_outside_the_table_is_nan():
    vectors = call(
        embedding(positions="learned"), TOKENS[0], positions=np.array([0, LONGEST, -1, 5, 6])
    )
    assert np.isnan(vectors).all(axis=1).tolist() == [False, True, True, False, False]
    assert np.isfinite(vectors[np.array([0, 3, 4])]).all()


@pytest.mark.parametrize(
    "changes", [{}, {"logit_scale": 0.5, "output_bias": True}, {"logit_softcap": 0.3}], ids=str
)
def test_unembed_by_the_transposed_table(changes):
    module = embedding(**changes)
    (features,) = draw((2, 5, D))
    expected = np.asarray(features) @ double(module.tokens).T
    if changes.get("output_bias"):
        expected = 0.5 * expected + double(module.bias)
    if changes.get("logit_softcap"):
        expected = 0.3 * np.tanh(expected / 0.3)
    assert_close(unembed(module, features), expected, 1e-5)


@pytest.mark.parametrize("width", [16, 64])
def test_embeddings_and_tied_logits_start_with_unit_variance(width):
    config = TransformerConfig(width=width, positions="learned", max_length=499)
    module = Embedding.from_config(503, config, rngs=nnx.Rngs(0))
    tables = double(module.tokens), double(module.positions.table)
    for table in tables:
        np.testing.assert_allclose(table.var() * width, 1, rtol=0.1)
    assert abs(np.corrcoef(tables[0][:499].ravel(), tables[1].ravel())[0, 1]) < 0.05
    (features,) = draw((499, width))
    np.testing.assert_allclose(np.var(unembed(module, features)), 1, rtol=0.1)
