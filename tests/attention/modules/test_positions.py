"""Position encodings: their parameters, and what each makes of the order of tokens."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention import masks, scores
from attention.modules import POSITIONS, Context, Decoder, Encoder, PositionEncoding, Rotary
from tests.attention.modules.inputs import DIMS, call, filled, language_model, small_config
from tests.attention.primitives.inputs import draw, jitted

B, T, D, N = DIMS["BTDN"]
(INPUTS,) = draw((B, T, D))
ORDER = np.array([3, 0, 4, 1, 2])


def stack(cls, **changes):
    return filled(lambda: cls.from_config(small_config(**changes), rngs=nnx.Rngs(0)))


@jitted
def run(module, inputs=INPUTS, context=Context()):  # noqa: B008 - a context is never changed
    return module(inputs, context=context).features


@pytest.mark.parametrize("kind", ["none", "rotary", "alibi", "relative"])
def test_the_order_of_tokens_has_an_effect_by_the_encoding_alone(kind):
    encoder = stack(Encoder, positions=kind, encoder_layers=1)
    moved = run(encoder, INPUTS[:, ORDER]) - run(encoder)[:, ORDER]
    assert (np.abs(moved).max() < 1e-4) == (kind == "none")


@pytest.mark.parametrize(
    "cls, kind", [(Encoder, "relative"), (Decoder, "relative"), (Decoder, "alibi")]
)
def test_every_layer_of_a_stack_has_the_same_scores(cls, kind):
    build = functools.partial(cls.from_config, **({"cross": False} if cls is Decoder else {}))
    config = small_config(positions=kind, relative={"num_buckets": 6, "max_distance": 4})
    module = filled(lambda: build(config, rngs=nnx.Rngs(0)))
    if kind == "alibi":
        score = scores.alibi(scores.alibi_slopes(N))
    else:
        table = module.score.table[...]
        score = scores.relative_bias(table, max_distance=4, causal=cls is Decoder)
    context = Context(mask=masks.causal() if cls is Decoder else None, score=(score,))
    features = INPUTS
    for layer in module.layers.unstacked():
        features = run(layer, features, context)
    np.testing.assert_allclose(run(module), call(module.norm, features), rtol=1e-4, atol=1e-4)


def test_a_registered_encoding(monkeypatch):
    """Every position adds its number to the embedding."""

    def embed(positions, width):
        return jnp.broadcast_to(positions[..., None], (*positions.shape, width))

    encoding = PositionEncoding(embed=lambda config, rngs: embed)
    monkeypatch.setitem(POSITIONS, "number", encoding)
    model, plain = (language_model(positions=kind) for kind in ("number", "none"))
    tokens = np.array([[3, 3, 3]])
    added = call(model.embedding, tokens) - call(plain.embedding, tokens)
    np.testing.assert_allclose(added[0, :, 0], [0, 1, 2], atol=1e-5)


def test_layers_with_bases_of_their_own():
    """Positions of the context rotate; a layer without positions ignores them."""
    bases = [{"rotary": {"base": 100.0}}, {"rotary": {"base": 1e4}}, {"positions": "none"}]
    encoder = stack(Encoder, positions="rotary", encoder_layers=3, per_layer=bases)
    first, second, third = (layer.self_attention.sublayer for layer in encoder.layers.unstacked())
    assert (first.rotary, second.rotary, third.rotary) == (Rotary(base=100.0), Rotary(), None)
    stretched = Context(positions=3 * np.arange(T))
    for each, is_rotary in ((first, True), (second, True), (third, False)):
        change = np.abs(run(each, context=stretched) - run(each)).max()
        assert change > 1e-3 if is_rotary else change == 0
