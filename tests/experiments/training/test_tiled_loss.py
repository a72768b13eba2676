"""Tiles of logits against all of them at once."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.training.loss import token_losses
from experiments.training.tiled_loss import tiled_token_losses

B, T, D, V = 3, 7, 5, 11
KEYS = jax.random.split(jax.random.key(0), 5)
FEATURES = jax.random.normal(KEYS[0], (B, T, D))
HEAD = {"table": jax.random.normal(KEYS[1], (V, D)), "bias": jax.random.normal(KEYS[2], (V,))}
LABELS = jax.random.randint(KEYS[3], (B, T), 0, V)
COUNTS = jax.random.bernoulli(KEYS[4], 0.8, (B, T))


def logits(head, features):
    scores = jnp.einsum("...D,VD->...V", features, head["table"])
    return scores + jnp.broadcast_to(head["bias"], scores.shape)


def tiled(head, features, tile):
    return tiled_token_losses(
        lambda features: logits(head, features), features, LABELS, COUNTS, 0.1, tile=tile
    )


@pytest.mark.parametrize("tile", [1, 4 * V, 5 * V, 7 * V, 10**6])
def test_any_tile_sums_and_differentiates_alike(tile):
    """One token at a time, tiles that are not all full, tiles that are, one for all."""

    def mean(sums):
        return sums.loss / sums.tokens, sums

    def plain(head, features):
        return mean(token_losses(logits(head, features), LABELS, COUNTS, 0.1))

    expected, found = (
        jax.jit(jax.value_and_grad(function, (0, 1), has_aux=True))(HEAD, FEATURES)
        for function in (plain, lambda *given: mean(tiled(*given, tile)))
    )
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-6)
    alone = jax.jit(tiled, static_argnums=2)(HEAD, FEATURES, tile)
    chex.assert_trees_all_close(alone, expected[0][1], rtol=1e-5)


@pytest.mark.parametrize("tile", [4 * V, 10**6])
def test_the_loss_alone_has_a_derivative(tile):
    slopes = jax.grad(lambda head: tiled(head, FEATURES, tile).nll)(HEAD)
    chex.assert_trees_all_equal(slopes, jax.tree.map(jnp.zeros_like, HEAD))


def test_what_does_not_count_has_none():
    _, slopes = jax.value_and_grad(lambda x: tiled(HEAD, x, 4 * V).loss)(FEATURES)
    np.testing.assert_array_equal(slopes[~COUNTS], 0)
    assert (slopes[COUNTS] != 0).all()


def test_it_takes_less_than_half_the_memory_of_all_logits():
    """4,096 tokens of a vocabulary of 10,000, whose logits take 156 MiB."""
    shapes = [(10_000, 128), (4_096, 128)]
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    labels = jnp.zeros(4_096, jnp.int32)
    counts = jnp.ones(4_096, bool)

    def all_at_once(table, features):
        return token_losses(features @ table.T, labels, counts, 0.1).loss

    def in_tiles(table, features):
        return tiled_token_losses(lambda x: x @ table.T, features, labels, counts, 0.1).loss

    taken = [
        jax.jit(jax.grad(function, (0, 1)))
        .lower(*arrays)
        .compile()
        .memory_analysis()
        .temp_size_in_bytes
        for function in (in_tiles, all_at_once)
    ]
    assert taken[0] < taken[1] / 2
