"""Which tiles are visited, counted by hand."""

import jax.numpy as jnp
import numpy as np
from attention.primitives.kernels.visits import Visits, touched_tiles

from attention import masks


def touched(mask, num_queries, num_keys, num_real_keys=None):
    """Tiles of 2 queries by 2 keys."""
    positions = (jnp.arange(size, dtype=jnp.int32)[None] for size in (num_queries, num_keys))
    return touched_tiles(mask, *positions, num_real_keys or num_keys, rows=2, columns=2)


def test_causal_visits_the_tiles_below_the_diagonal_first():
    visits = Visits.of_rows(touched(masks.causal(), 6, 6))
    np.testing.assert_array_equal(visits.num_whole[0, :, 0], [0, 1, 2])
    np.testing.assert_array_equal(visits.num_visits[0, :, 0], [1, 2, 3])
    np.testing.assert_array_equal(visits.tiles[0, 2], [0, 1, 2])


def test_each_tile_of_keys_lists_the_queries_that_see_it():
    visits = Visits.of_columns(touched(masks.causal(), 6, 6))
    np.testing.assert_array_equal(visits.num_visits[0, :, 0], [3, 2, 1])
    np.testing.assert_array_equal(visits.tiles[0, 0], [1, 2, 0])  # the diagonal last


def test_each_example_has_its_own_list():
    mask = masks.lengths(jnp.array([0, 3, 6]))
    visits = Visits.of_rows(touched(mask, 2, 6))
    np.testing.assert_array_equal(visits.num_whole[:, 0, 0], [0, 1, 3])
    np.testing.assert_array_equal(visits.num_visits[:, 0, 0], [0, 2, 3])


def test_a_tile_that_keys_do_not_fill_is_partial():
    visits = Visits.of_rows(touched(None, 2, 6, num_real_keys=5))
    assert (visits.num_whole.item(), visits.num_visits.item()) == (2, 3)
    assert touched(None, 2, 6) is None
