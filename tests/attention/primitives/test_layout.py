"""Tile bounds of masks, and the tiles that are visited, against every pair of the tiles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention import attend, masks
from attention.primitives.arguments import check_arguments
from attention.primitives.layout import layout_of, visits_of
from attention.primitives.masks import TileBounds
from tests.attention.primitives.inputs import draw, jitted
from tests.attention.primitives.test_masks import expressions

T, S, ROWS, COLUMNS = 12, 15, 4, 5  # rows and columns of a tile
ARRAY = np.random.default_rng(0).random((40, 40)) < 0.1


def causal_bounds(query, key):
    return masks.TileBounds(any=key.low <= query.high, all=key.high <= query.low)


SIMPLE = [
    masks.full(),
    masks.causal(),
    masks.window(0, 0),
    masks.window(3, 1),
    masks.window(5, None),
    masks.window(None, 2),
    masks.lengths(0),
    masks.lengths(7),
    masks.lengths(20),
    masks.lengths(9, query_lengths=6),
    masks.block(1),
    masks.block(5),
    masks.prefix(0),
    masks.prefix(4),
    ~masks.causal(),
    masks.segments(np.arange(40) // 6),
    masks.segments(np.arange(40) // 17),
    masks.cu_seqlens([0, 3, 3, 10, 40]),
    masks.from_array(ARRAY),
    masks.from_function(lambda query, key: (query * key) % 7 == 0),
    masks.from_function(lambda query, key: key <= query, tile_bounds=causal_bounds),
]
MASKS = expressions(SIMPLE)


def exact_bounds(mask, queries, keys):
    """Evaluate every pair of each tile."""
    dense = mask(queries[:, None], keys[None, :])
    dense = dense.reshape(len(queries) // ROWS, ROWS, len(keys) // COLUMNS, COLUMNS)
    return TileBounds(dense.any(axis=(1, 3)), dense.all(axis=(1, 3)))


def bounds_of(mask, queries, keys):
    return mask.tile_bounds(queries.reshape(-1, ROWS), keys.reshape(-1, COLUMNS))


@jitted
def both_bounds(mask, queries, keys):
    return exact_bounds(mask, queries, keys), bounds_of(mask, queries, keys)


def plan(mask, sizes, *, tile_sizes=(ROWS, COLUMNS), positions=None):
    """Return the layout of a call with these T and S, and the visits of its tiles."""
    query, key = (jnp.zeros((size, 1, 1)) for size in sizes)
    options = {"mask": mask, "positions": positions, "tile_sizes": tile_sizes}
    arguments = check_arguments(query, key, key, **options)
    layout = layout_of(arguments, "cpu")
    return layout, visits_of(layout, arguments.by_index())


def visited(mask, sizes, **options):
    """Return which tiles are visited: [rows, columns]."""
    layout, visits = plan(mask, sizes, **options)
    return np.asarray(jax.vmap(lambda row: row.flags(layout.shape[1]))(visits))


@settings(max_examples=12)
@given(mask=MASKS, shift=st.integers(0, 9), shuffle=st.booleans())
def test_tile_bounds_and_visits_are_conservative(mask, shift, shuffle):
    """Every visible pair is in a tile that is visited."""
    queries, keys = np.arange(T) + shift, np.arange(S)
    if shuffle:
        queries, keys = (np.random.default_rng(1).permutation(x) for x in (queries, keys))
    queries, keys = (x.astype(np.int32) for x in (queries, keys))
    exact, found = both_bounds(mask, queries, keys)
    assert (found.any | ~exact.any).all()
    assert (~found.all | exact.all).all()
    assert (visited(mask, (T, S), positions=(queries, keys)) | ~exact.any).all()


@given(mask=MASKS)
def test_visible_keys_are_inside_the_band(mask):
    if mask.band() is not None:
        places, (before, after) = np.arange(40, dtype=np.int32), mask.band()
        queries, keys = np.nonzero(mask(places[:, None], places[None, :]))
        assert np.all((queries - keys <= before) & (keys - queries <= after))


def name(mask):
    return type(mask).__name__ if isinstance(mask, masks.Mask) else None


@pytest.mark.parametrize("mask", SIMPLE, ids=name)
def test_tile_bounds_and_visits_of_simple_masks_are_exact(mask):
    queries, keys = np.arange(T, dtype=np.int32), np.arange(S, dtype=np.int32)
    exact, found = both_bounds(mask, queries, keys)
    np.testing.assert_array_equal(found.any, exact.any)
    np.testing.assert_array_equal(found.all, exact.all)
    found = visited(mask, (T, S), positions=(queries, keys))
    np.testing.assert_array_equal(found, exact.any)


def test_last_tiles_may_be_smaller():
    found = visited(masks.causal(), (10, 10), tile_sizes=(4, 4))
    np.testing.assert_array_equal(found, np.tri(3, dtype=bool))


INTERVALS = {
    "causal": masks.causal(),
    "window": masks.window(512),
    "two-sided window": masks.window(300, 200),
    "causal lengths": masks.causal() & masks.lengths(900_000),
    "blocks": masks.block(1000),
    "sequences": masks.cu_seqlens([0, 1000, 300_000, 2**20]),
}


@pytest.mark.parametrize("name", INTERVALS)
def test_visits_of_a_million_tokens_are_small(name):
    """Bounds per row of tiles: 2,048 rows take less than 64 kB, where tiles would take 4 MiB."""
    _, visits = plan(INTERVALS[name], (2**20, 2**20), tile_sizes=(512, 512))
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(visits)) < 64_000


@pytest.mark.parametrize("mask", [masks.window(3, 1), masks.block(5), masks.window(2)], ids=name)
@pytest.mark.parametrize("sizes", [(4, 4), (8, 4), (4, 8), (6, 4)])
def test_rows_visit_at_most_the_tiles_of_the_band(mask, sizes):
    layout, visits = plan(mask, (48, 48), tile_sizes=sizes)
    assert max(visits.count.tolist()) <= layout.most < layout.shape[1]


def test_tile_bounds_with_arrays():
    """Each of the functions closes over an array, and both take another one."""
    before, after = jnp.int32(3), jnp.int32(2)
    mask = masks.from_function(
        lambda query, key, after: (key >= query - before) & (key <= query + after),
        after,
        tile_bounds=lambda query, key, after: masks.TileBounds(
            any=(key.high >= query.low - before) & (key.low <= query.high + after), all=False
        ),
    )
    assert not visited(mask, (T, T)).all()
    inputs = draw(*[(2, T, 2, 3)] * 3)
    output = attend(*inputs, mask=mask, tile_sizes=(ROWS, COLUMNS))
    expected = attend(*inputs, mask=masks.window(3, 2))
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


def test_visited_tiles_of_a_row_come_first():
    mask = masks.from_function(lambda q, k: ((q // 16) % 2 == (k // 16) % 2) & (k >= 4))
    _, visits = plan(mask, (64, 64), tile_sizes=(16, 16))
    assert visits.count.tolist() == [2] * 4
    assert visits.columns[:, :2].tolist() == [[0, 2], [1, 3]] * 2
