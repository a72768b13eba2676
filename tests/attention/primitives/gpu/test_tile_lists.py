"""Lists of tiles, counted by hand."""

import jax.numpy as jnp
import numpy as np

from attention import masks
from attention.primitives.gpu.tile_lists import TileLists, tile_bounds


def bounds(mask, num_queries, num_keys, unpadded_keys=None):
    """Bounds of tiles of 2 queries by 2 keys."""
    positions = (jnp.arange(size, dtype=jnp.int32)[None] for size in (num_queries, num_keys))
    return tile_bounds(mask, *positions, unpadded_keys or num_keys, rows=2, columns=2)


def test_full_tiles_of_a_causal_mask_are_first():
    lists = TileLists.of_rows(bounds(masks.causal(), 6, 6))
    np.testing.assert_array_equal(lists.num_full[0, :, 0], [0, 1, 2])
    np.testing.assert_array_equal(lists.num_visible[0, :, 0], [1, 2, 3])
    np.testing.assert_array_equal(lists.indices[0, 2], [0, 1, 2])


def test_columns_list_the_tiles_of_queries():
    lists = TileLists.of_columns(bounds(masks.causal(), 6, 6))
    np.testing.assert_array_equal(lists.num_visible[0, :, 0], [3, 2, 1])
    np.testing.assert_array_equal(lists.indices[0, 0], [1, 2, 0])  # the diagonal last


def test_each_example_has_its_own_list():
    lists = TileLists.of_rows(bounds(masks.lengths(jnp.array([0, 3, 6])), 2, 6))
    np.testing.assert_array_equal(lists.num_full[:, 0, 0], [0, 1, 3])
    np.testing.assert_array_equal(lists.num_visible[:, 0, 0], [0, 2, 3])


def test_tile_with_padding_is_partial():
    lists = TileLists.of_rows(bounds(None, 2, 6, unpadded_keys=5))
    assert (lists.num_full.item(), lists.num_visible.item()) == (2, 3)
    assert bounds(None, 2, 6) is None
