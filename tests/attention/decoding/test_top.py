"""Top-k in blocks against `jax.lax.top_k`, with ties, infinities and NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.decoding.beam import top_indices
from tests.attention.primitives.inputs import jitted

SIZES = [(5, 1_280), (5, 16 * 607), (3, 7_919), (2, 20)]


@pytest.mark.parametrize(("width", "length"), SIZES)
def test_places_equal_those_of_top_k(width, length):
    """Blocks of 128 and 16, a prime length, and too few numbers for blocks."""
    random = np.random.default_rng(0)
    shape = (width, 3, length)
    find = jitted(lambda scores: top_indices(scores, 7, lambda block, first: block))
    in_rows = jitted(lambda scores: jnp.moveaxis(scores, 0, 1).reshape(3, width * length))
    sort = jitted(lambda rows: jax.lax.top_k(rows, 7)[1])
    for scores in (
        random.standard_normal(shape),
        random.integers(0, 3, shape),  # most are equal
        np.where(random.random(shape) < 0.999, -np.inf, np.inf),
    ):
        scores = scores.astype(np.float32)
        np.testing.assert_array_equal(find(scores), sort(in_rows(scores)))


@pytest.mark.parametrize(("width", "length"), SIZES)
def test_nan_comes_first(width, length):
    numbers = jax.random.normal(jax.random.key(0), (width, 3, length))

    def score(block, first):
        return jnp.where(first[..., None] // length == 1, jnp.nan, block)

    found = jitted(lambda numbers: top_indices(numbers, 7, score))(numbers)
    np.testing.assert_array_equal(found, [range(length, length + 7)] * 3)
