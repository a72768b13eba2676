"""`jax.export` with symbolic sizes, and calls without jit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import export

from attention import attend, masks, modules, scores
from tests.attention.primitives.inputs import draw, in_tiles


@pytest.mark.parametrize(
    "axes, length, mask",
    [
        ("b, t", 5, masks.causal()),
        ("b, t", 5, masks.window(2) & masks.lengths(4)),
        ("b, 5", 5, masks.causal()),
        ("3, b, 5", 5, masks.causal()),
        ("b, 600", 600, masks.causal()),
    ],
    ids=[
        "batch and length",
        "window and lengths",
        "batch",
        "second batch axis",
        "batch of long sequences",
    ],
)
def test_symbolic_sizes(axes, length, mask):
    def function(query, key, value):
        return attend(query, key, value, mask=mask)

    shape = *export.symbolic_shape(axes), 2, 3
    symbolic = jax.ShapeDtypeStruct(shape, jnp.float32)
    exported = export.export(jax.jit(function))(*[symbolic] * 3)
    inputs = draw(*[(*[3] * (len(shape) - 4), 2, length, 2, 3)] * 3)
    expected = attend(*inputs, mask=mask, implementation="reference")
    np.testing.assert_allclose(exported.call(*inputs), expected, rtol=1e-5, atol=1e-6)


def test_symbolic_length_of_a_model():
    """Its longest length is a constraint on the symbol."""
    config = modules.TransformerConfig(
        width=8, num_heads=2, hidden=8, decoder_layers=1, max_length=16
    )
    model = modules.LanguageModel.from_config(config, vocab_size=7, rngs=nnx.Rngs(0))
    shape = export.symbolic_shape("b, t", constraints=["t <= 16"])
    exported = export.export(jax.jit(lambda *given: model(given[0], lengths=given[1]).logits))(
        jax.ShapeDtypeStruct(shape, jnp.int32), jax.ShapeDtypeStruct(shape[:1], jnp.int32)
    )
    given = jnp.arange(10, dtype=jnp.int32).reshape(2, 5) % 7, jnp.array([5, 3], jnp.int32)
    expected = model(given[0], lengths=given[1]).logits
    np.testing.assert_allclose(exported.call(*given), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("implementation", ["reference", "tiled"])
def test_attend_without_jit(implementation):
    inputs = draw(*[(1, 5, 2, 3)] * 3)
    options = {
        "mask": masks.causal(),
        "score": scores.alibi(np.float32([0.1, 0.2])),
        **in_tiles(implementation, 2, 2),
    }
    expected = attend(*inputs, **options)
    with jax.disable_jit():
        found = attend(*inputs, **options)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
