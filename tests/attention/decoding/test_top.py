"""The largest of many numbers against the sort of jax, ties and infinities included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.decoding.top import top_places


@pytest.mark.parametrize("length", [1_280, 5 * 97 * 41, 1_009, 40])
def test_they_stand_where_a_sort_finds_them(length):
    """Blocks of 128, of 97, none that divide a prime, fewer numbers than blocks."""
    random = np.random.default_rng(0)
    for scores in (
        random.standard_normal((3, length)),
        random.integers(0, 3, (3, length)),  # most are equal
        np.where(random.random((3, length)) < 0.999, -np.inf, np.inf),
    ):
        scores = jnp.asarray(scores, jnp.float32)
        np.testing.assert_array_equal(top_places(scores, 7), jax.lax.top_k(scores, 7)[1])
