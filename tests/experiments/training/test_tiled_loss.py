"""Tiles of logits against all of them at once."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention.modules import LanguageModel, TransformerConfig
from experiments.config.train import MeshPart
from experiments.losses import cross_entropy, token_losses
from experiments.sharding import constrain, make_mesh
from experiments.tiled_loss import tiled_token_losses
from tests.attention.modules.inputs import filled
from tests.attention.primitives.inputs import draw, jitted

B, T, D, V = 3, 7, 5, 11
FEATURES, TABLE, BIAS = draw((B, T, D), (V, D), (V,))
HEAD = {"table": TABLE, "bias": BIAS}
LABELS = np.random.default_rng(1).integers(0, V, (B, T), dtype=np.int32)
LOSS = partial(cross_entropy, label_smoothing=0.1, z_loss=0.01)
SUMMED = partial(token_losses, loss=LOSS)
COUNTS = np.random.default_rng(2).random((B, T)) < 0.8


def logits(head, features):
    scores = jnp.einsum("...D,VD->...V", features, head["table"])
    return scores + jnp.broadcast_to(head["bias"], scores.shape)


def tiled(head, features, tile):
    return tiled_token_losses(
        lambda features: logits(head, features), features, LABELS, COUNTS, SUMMED, tile=tile
    )


@pytest.mark.parametrize("tile", [1, 5 * V, 7 * V, 10**6])
def test_loss_and_gradients_do_not_depend_on_the_tile_size(tile):
    """One token at a time, tiles that are not all full, tiles that are, one for all."""

    def mean(sums):
        return sums.loss / sums.tokens, sums

    def plain(head, features):
        return mean(token_losses(logits(head, features), LABELS, COUNTS, LOSS))

    expected, found = (
        jax.jit(jax.value_and_grad(function, (0, 1), has_aux=True))(HEAD, FEATURES)
        for function in (plain, lambda *given: mean(tiled(*given, tile)))
    )
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-6)
    alone = jax.jit(tiled, static_argnums=2)(HEAD, FEATURES, tile)
    chex.assert_trees_all_close(alone, expected[0][1], rtol=1e-5)


def test_tiles_have_nearly_equal_sizes():
    """21 tokens in tiles of at most 20 are 11 and 10, not 20 and 1 beside 19 of padding."""
    seen = set()

    def counting(features):
        seen.add(len(features))
        return logits(HEAD, features)

    tiled_token_losses(counting, FEATURES, LABELS, COUNTS, SUMMED, tile=20 * V)
    assert seen - {B * T} == {11}  # all of them are asked for their shape alone


@pytest.mark.parametrize("sizes", [{"data": 2}, {"sequence": 2}])
def test_devices_compute_tiles_of_their_own_tokens(sizes):
    """Tiles of four tokens; the gradient of the head is added up once, not for each tile."""
    mesh = make_mesh(MeshPart(**{"data": 1, **sizes}))
    (features,) = draw((4, 6, D))
    labels = np.random.default_rng(1).integers(0, V, (4, 6), dtype=np.int32)

    def loss(tile, mesh, head, features):
        features = constrain(mesh, features, ("batch", "sequence", "embed"))
        arguments = features, labels, labels > 0, SUMMED
        sums = tiled_token_losses(lambda x: logits(head, x), *arguments, tile=tile)
        return sums.loss

    found, expected = (
        jax.jit(jax.value_and_grad(partial(loss, *given), (0, 1)))
        for given in ((4 * V, mesh), (10**6, make_mesh(MeshPart(data=1))))
    )
    chex.assert_trees_all_close(
        jax.device_get(found(HEAD, features)),
        jax.device_get(expected(HEAD, features)),
        rtol=1e-4,
        atol=1e-5,
    )
    text = found.lower(HEAD, features).compile().as_text()
    assert text.count(" while(") == 1
    assert text.count(" all-reduce(") == 1


@pytest.mark.parametrize("tile", [4 * V, 10**6])
def test_the_loss_alone_has_a_derivative(tile):
    slopes = jitted(jax.grad(lambda head: tiled(head, FEATURES, tile).nll))(HEAD)
    chex.assert_trees_all_equal(slopes, jax.tree.map(np.zeros_like, HEAD))


def test_padding_has_no_gradient():
    _, slopes = jitted(jax.value_and_grad(lambda x: tiled(HEAD, x, 4 * V).loss))(FEATURES)
    np.testing.assert_array_equal(slopes[~COUNTS], 0)
    assert (slopes[COUNTS] != 0).all()


def test_it_takes_less_than_half_the_memory_of_all_logits():
    """4,096 tokens of a vocabulary of 10,000: the logits take 156 MiB."""
    shapes = [(10_000, 128), (4_096, 128)]
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    labels = jnp.zeros(4_096, jnp.int32)
    counts = jnp.ones(4_096, bool)

    def all_at_once(table, features):
        return token_losses(features @ table.T, labels, counts, LOSS).loss

    def in_tiles(table, features):
        return tiled_token_losses(lambda x: x @ table.T, features, labels, counts, SUMMED).loss

    taken = [
        jax.jit(jax.grad(function, (0, 1)))
        .lower(*arrays)
        .compile()
        .memory_analysis()
        .temp_size_in_bytes
        for function in (in_tiles, all_at_once)
    ]
    assert taken[0] < taken[1] / 2


def test_a_narrow_head_is_added_up_in_float32():
    """In bfloat16, a sum stops growing once it is 256 times what is added."""
    number = 2_048
    features, labels = jnp.ones((number, D), jnp.bfloat16), jnp.zeros(number, jnp.int32)

    def loss(head, tile):
        def logits(features):
            return jnp.einsum("TD,VD->TV", features, head)

        return tiled_token_losses(logits, features, labels, labels == 0, tile=tile).loss

    differentiate = jax.jit(jax.grad(loss), static_argnums=1)
    head = jnp.zeros((V, D), jnp.bfloat16)
    found, expected = (differentiate(head, tile) for tile in (4 * V, 10**6))
    assert found.dtype == jnp.bfloat16
    chex.assert_trees_all_close(found.astype("float32"), expected.astype("float32"), rtol=0.01)


@pytest.mark.parametrize(
    "choices",
    [
        {"tie": "output", "output_bias": True, "logit_scale": 0.5, "logit_softcap": 3.0},
        {"tie": "none", "output_bias": True},
    ],
    ids=["tied", "untied"],
)
def test_output_layers_of_models(choices):
    """The loss and the gradients of all parameters equal those of all logits at once."""
    config = TransformerConfig(width=8, num_heads=2, hidden=12, decoder_layers=1, **choices)
    model = filled(lambda: LanguageModel.from_config(config, vocab_size=V, rngs=nnx.Rngs(0)))

    def all_at_once(model):
        return token_losses(model(LABELS).logits, LABELS, COUNTS, LOSS).loss

    def in_tiles(model):
        features = model.decode(LABELS).features
        return tiled_token_losses(model.logits, features, LABELS, COUNTS, SUMMED, tile=4 * V).loss

    expected, found = (jax.jit(jax.value_and_grad(f))(model) for f in (all_at_once, in_tiles))
    chex.assert_trees_all_close(found, expected, rtol=1e-4, atol=1e-5)
