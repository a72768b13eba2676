import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention import masks, modules
from experiments.analysis.replaced_weights import permuted, replace_weights, uniform
from tests.attention.modules.inputs import filled

WEIGHTS = jnp.array([[[0.7, 0.2, 0.1, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]]])
OWN = dict.fromkeys(("encoder", "decoder", "cross"), lambda weights: weights)
SOURCE, TARGET = jnp.array([[3, 4, 5, 0], [5, 6, 3, 4]]), jnp.array([[1, 4, 5], [1, 6, 3]])
LENGTHS = jnp.array([3, 4])


def test_uniform_and_permuted_weights_of_the_visible_keys():
    expected = [[[1 / 3, 1 / 3, 1 / 3, 0], [0, 0, 1, 0], [0, 0, 0, 0]]]
    np.testing.assert_allclose(uniform(WEIGHTS), expected, rtol=1e-6)
    orders = {tuple(permuted(WEIGHTS, jax.random.key(n))[0, 0].tolist()) for n in range(40)}
    assert len(orders) == 6 and {order[3] for order in orders} == {0}
    for order in orders:
        np.testing.assert_allclose(sorted(order), [0, 0.1, 0.2, 0.7], rtol=1e-6)
    np.testing.assert_array_equal(permuted(WEIGHTS, jax.random.key(0))[:, 1:], WEIGHTS[:, 1:])


def outputs(model):
    encoded = model.encode(SOURCE, mask=masks.lengths(LENGTHS))
    returning = {"encoder_mask": masks.lengths(LENGTHS), "returning": ("weights",)}
    decoded = model.decode(TARGET, encoded.features, **returning)
    return decoded.features, decoded.attention


TRANSFORMER = {"width": 8, "num_heads": 2, "num_kv_heads": 1, "hidden": 8, "softcap": 0.5}
RECURRENT = {"embedding_width": 4, "hidden": 5, "max_length": 8}
TRANSFORMER |= {"encoder_layers": 2, "decoder_layers": 1, "max_length": 8, "positions": "alibi"}


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (modules.EncoderDecoder, modules.TransformerConfig(**TRANSFORMER)),
        (modules.RecurrentEncoderDecoder, modules.RecurrentConfig(**RECURRENT)),
    ],
)
def test_own_weights_change_nothing_and_uniform_weights_are_used(kind, config):
    @jax.jit
    def results(model):
        own, changed = (nnx.merge(*nnx.split(model)) for _ in range(2))
        replace_weights(own, OWN)
        replace_weights(changed, OWN | {"cross": uniform})
        return [outputs(variant) for variant in (model, own, changed)]

    sizes = {"source_vocab_size": 9, "target_vocab_size": 9}
    model = filled(lambda: kind.from_config(config, **sizes, rngs=nnx.Rngs(0)))
    (expected, _), (own, _), (replaced, attention) = results(model)
    np.testing.assert_allclose(own, expected, rtol=1e-4, atol=1e-5)
    weights = attention[0]["cross_attention"]["weights"]
    np.testing.assert_allclose(weights[0, :, :, :3], 1 / 3, rtol=1e-5)
    np.testing.assert_array_equal(weights[0, :, :, 3], 0)
    assert abs(replaced - expected).max() > 1e-4
