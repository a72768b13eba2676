"""The largest of many scores against the sort of jax, ties, infinities and NaN included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.decoding.top import top_places

NAN_FIRST = jax.jit(lambda scores: jnp.where(jnp.isnan(scores), jnp.inf, scores))


@pytest.mark.parametrize(("width", "length"), [(5, 1_280), (5, 16 * 607), (3, 7_919), (2, 20)])
def test_they_stand_where_a_sort_finds_them(width, length):
    """Blocks of 128, of 16, none that divide a prime, and too few numbers for blocks."""
    random = np.random.default_rng(0)
    shape = (3, width, length)
    for scores in (
        random.standard_normal(shape),
        random.integers(0, 3, shape),  # most are equal
        np.where(random.random(shape) < 0.999, -np.inf, np.inf),
        np.where(random.random(shape) < 0.999, 1.0, np.nan),
    ):
        scores = jnp.asarray(scores, jnp.float32)
        expected = jax.lax.top_k(NAN_FIRST(scores).reshape(3, -1), 7)[1]
        np.testing.assert_array_equal(top_places(scores, 7), expected)


@pytest.mark.parametrize("length", [1_280, 20])
def test_a_score_knows_where_its_numbers_stand(length):
    numbers = jax.random.normal(jax.random.key(0), (3, 5, length))

    def score(block, first):
        places = first[..., None] + jnp.arange(block.shape[-1])[None, None]
        return jnp.where(places % 3 == 0, block, -jnp.inf)

    whole = jnp.where(jnp.arange(5 * length)[None] % 3 == 0, numbers.reshape(3, -1), -jnp.inf)
    expected = jax.lax.top_k(whole, 7)[1]
    np.testing.assert_array_equal(top_places(numbers, 7, score), expected)
