"""A sum over tiles against the same sum written whole, under every mixture of derivatives."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.primitives.tiled.cuts import Output
from attention.primitives.tiled.sweep import tile_fold, tile_sum
from attention.primitives.tiled.tiling import TileSize, cut
from attention.primitives.touched import Touched
from tests.attention.primitives.inputs import draw

B, K, T, S, H = 2, 4, 24, 32, 5
TILING = cut(TileSize(8, 16, 8 * 16 * 2), B, K, 1, T, S)  # two heads at once
ROWS, COLUMNS, WHOLE, PAIRS = draw((B, T, K, H), (B, K, H, S), (B, 1, 3), (1, K, T, S))
SHAPES = {"rows": (B, T, K), "columns": (B, K, H, S)}


def in_tiles(rows, columns, whole, pairs, visits=None):
    def summand(tiles, masked):
        del masked
        waves = jnp.sin(tiles["rows"] @ tiles["columns"] + tiles["pairs"]) * tiles["whole"][1]
        return {"rows": waves.sum(axis=1), "columns": tiles["rows"].T @ waves}

    outputs = {
        "rows": Output("row", SHAPES["rows"], jnp.float32),
        "columns": Output("column", SHAPES["columns"], jnp.float32),
    }
    operands = {
        "rows": ("row", rows),
        "columns": ("column", columns),
        "whole": ("whole", whole),
        "pairs": ("pair", pairs),
    }
    return tile_sum(summand, operands, outputs, visits, TILING)


def whole_at_once(rows, columns, whole, pairs):
    rows, pairs = jnp.swapaxes(rows, 1, 2), jnp.broadcast_to(pairs, (B, K, T, S))
    waves = jnp.sin(rows @ columns + pairs) * whole[:, :, 1, None, None]
    return {
        "rows": jnp.swapaxes(waves.sum(axis=3), 1, 2),
        "columns": jnp.swapaxes(rows, 2, 3) @ waves,
    }


def loss_of(function):
    return lambda *inputs: sum(jnp.mean(jnp.sin(x)) for x in jax.tree.leaves(function(*inputs)))


def gradient(function):
    return jax.grad(loss_of(function), argnums=(0, 1, 2, 3))


TRANSFORMS = {
    "itself": lambda function: function,
    "jvp": lambda function: lambda *inputs: jax.jvp(function, inputs, inputs)[1],
    "grad": gradient,
    "jvp of grad": lambda function: lambda *x: jax.jvp(gradient(function), x, x)[1],
    "grad of grad": lambda function: gradient(gradient(function)),
    "grad of grad of grad": lambda function: gradient(gradient(gradient(function))),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_sum_over_tiles_is_the_sum_and_so_are_its_derivatives(name):
    inputs = ROWS, COLUMNS, WHOLE, PAIRS
    tiles, whole = (jax.jit(TRANSFORMS[name](f))(*inputs) for f in (in_tiles, whole_at_once))
    chex.assert_trees_all_close(tiles, whole, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("axes", [(0, 0, 0, 0), (1, None, None, None), (None, 2, 0, None)])
def test_a_mapped_axis_is_more_examples(axes):
    inputs = ROWS, COLUMNS, WHOLE, PAIRS
    mapped = [
        x if axis is None else jnp.stack([x, 2 * x, x + 1], axis=axis)
        for x, axis in zip(inputs, axes, strict=True)
    ]
    tiles, whole = (
        jax.jit(jax.vmap(gradient(f), in_axes=axes))(*mapped) for f in (in_tiles, whole_at_once)
    )
    chex.assert_trees_all_close(tiles, whole, rtol=2e-4, atol=2e-5)


def test_only_the_tiles_to_visit_are_computed():
    """A NaN in every tile that is left out, and in no result."""
    some = np.array([[True, False], [False, True], [True, True]])
    visits = Touched(jnp.asarray(some)[None, None], jnp.zeros((1, 1, 3, 2), bool))
    outside = jnp.asarray(np.kron(~some, np.ones((8, 16)))[None, None])
    pairs = jnp.where(outside > 0, jnp.nan, jnp.broadcast_to(PAIRS, (B, K, T, S)))
    found = in_tiles(ROWS, COLUMNS, WHOLE, pairs, visits)
    assert all(jnp.isfinite(x).all() for x in found.values())


def test_a_fold_meets_whole_tiles_first_and_tells_which_are():
    some, every = [[True, True, False, True]], [[False, True, False, False]]
    visits = Touched(*(jnp.asarray(x)[None, None] for x in (some, every)))
    tiling = cut(TileSize(8, 8, 64), 1, 1, 1, 8, 32)

    def step(so_far, tiles, masked):
        digit = tiles["number"][0] + (0 if masked else 4)
        return so_far * 10 + digit

    numbers = jnp.repeat(jnp.arange(4), 8)[None, None]
    found = tile_fold(
        lambda: jnp.zeros(8, jnp.int32),
        step,
        lambda last: last,
        {"number": ("column", numbers)},
        visits,
        tiling,
    )
    assert found[0, 0, 0] == 503  # tile 1, whole; then 0 and 3
