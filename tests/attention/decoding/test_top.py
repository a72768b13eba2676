"""Top-k in blocks against `jax.lax.top_k`, with ties, infinities and NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.decoding.top import top_indices
from tests.attention.primitives.inputs import jitted

SIZES = [(5, 1_280), (5, 16 * 607), (3, 7_919), (2, 20)]


def itself(block, first):
    del first
    return block


def in_rows(numbers):
    """Numbers `[W, B, V]` as `[B, W·V]`."""
    return jnp.moveaxis(numbers, 0, 1).reshape(numbers.shape[1], -1)


@pytest.mark.parametrize(("width", "length"), SIZES)
def test_places_equal_those_of_top_k(width, length):
    """Blocks of 128 and 16, a prime length, and too few numbers for blocks."""
    random = np.random.default_rng(0)
    shape = (width, 3, length)
    find = jitted(lambda scores: top_indices(scores, 7, itself))
    sort = jitted(lambda scores: jax.lax.top_k(in_rows(scores), 7)[1])
    for scores in (
        random.standard_normal(shape),
        random.integers(0, 3, shape),  # most are equal
        np.where(random.random(shape) < 0.999, -np.inf, np.inf),
    ):
        scores = scores.astype(np.float32)
        np.testing.assert_array_equal(find(scores), sort(scores))


@pytest.mark.parametrize(("width", "length"), SIZES)
def test_scores_by_place_and_exceptions(width, length):
    """A bonus for each of the W, one exception with the lowest score and one with the highest."""
    numbers = jax.random.normal(jax.random.key(0), (width, 3, length))
    rows = in_rows(numbers)
    bonus = jnp.arange(width, dtype=jnp.float32) % 2
    worst = rows.argmax(axis=-1)  # the largest number gets the lowest score,
    best = jnp.array([0, length - 1, width * length - 1])  # these get the highest
    exceptions = jnp.stack([worst, best], axis=1)

    def score(block, first):
        places = first[..., None] + jnp.arange(block.shape[-1])[None, None]
        block = block + bonus[first // length][..., None]
        block = jnp.where(places == worst[:, None, None], -jnp.inf, block)
        return jnp.where(places == best[:, None, None], 1e9, block)

    @jitted
    def both(numbers, rows):
        firsts = jnp.stack([length * jnp.arange(width)] * 3)
        whole = score(rows.reshape(3, width, length), firsts)
        found = top_indices(numbers, 7, score, exceptions)
        return found, jax.lax.top_k(whole.reshape(3, -1), 7)[1]

    np.testing.assert_array_equal(*both(numbers, rows))


@pytest.mark.parametrize(("width", "length"), SIZES)
def test_nan_comes_first(width, length):
    numbers = jax.random.normal(jax.random.key(0), (width, 3, length))

    def score(block, first):
        return jnp.where(first[..., None] // length == 1, jnp.nan, block)

    found = jitted(lambda numbers: top_indices(numbers, 7, score))(numbers)
    np.testing.assert_array_equal(found, [range(length, length + 7)] * 3)
