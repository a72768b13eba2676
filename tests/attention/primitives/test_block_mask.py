"""Tile bounds of masks and `block_mask` against every pair of the tiles."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention.primitives.visits import most_visits
from hypothesis import given, settings
from hypothesis import strategies as st

from attention import attend, block_mask, masks
from attention.primitives.masks import PositionTiles, TileBounds
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
    query, key = queries.reshape(-1, ROWS), keys.reshape(-1, COLUMNS)
    return mask.tile_bounds(PositionTiles.of(query), PositionTiles.of(key))


@jitted
def both_bounds(mask, queries, keys):
    return exact_bounds(mask, queries, keys), bounds_of(mask, queries, keys)


def visited(visits, columns):
    """Return which tiles are visited: [rows, columns]."""
    return np.stack([visits.flags(row, columns) for row in range(len(visits.counts))])


@settings(max_examples=12)
@given(mask=MASKS, shift=st.integers(0, 9), shuffle=st.booleans())
def test_tile_bounds_and_block_mask_are_conservative(mask, shift, shuffle):
    """Every visible pair is in a tile that is visited."""
    queries, keys = np.arange(T) + shift, np.arange(S)
    if shuffle:
        queries, keys = (np.random.default_rng(1).permutation(x) for x in (queries, keys))
    queries, keys = (x.astype(np.int32) for x in (queries, keys))
    exact, found = both_bounds(mask, queries, keys)
    assert (found.any | ~exact.any).all()
    assert (~found.all | exact.all).all()
    blocks = block_mask(mask, T, S, positions=(queries, keys), tile_sizes=(ROWS, COLUMNS))
    assert (visited(blocks.visits, S // COLUMNS) | ~exact.any).all()


@given(mask=MASKS)
def test_visible_keys_are_inside_the_band(mask):
    if mask.band() is not None:
        places, (before, after) = np.arange(40, dtype=np.int32), mask.band()
        queries, keys = np.nonzero(mask(places[:, None], places[None, :]))
        assert np.all((queries - keys <= before) & (keys - queries <= after))


def name(mask):
    return type(mask).__name__ if isinstance(mask, masks.Mask) else None


@pytest.mark.parametrize("mask", SIMPLE, ids=name)
def test_tile_bounds_and_block_mask_of_simple_masks_are_exact(mask):
    queries, keys = np.arange(T, dtype=np.int32), np.arange(S, dtype=np.int32)
    exact, found = both_bounds(mask, queries, keys)
    np.testing.assert_array_equal(found.any, exact.any)
    np.testing.assert_array_equal(found.all, exact.all)
    blocks = block_mask(mask, T, S, positions=(queries, keys), tile_sizes=(ROWS, COLUMNS))
    np.testing.assert_array_equal(visited(blocks.visits, S // COLUMNS), exact.any)


def test_block_mask_of_lengths_per_example():
    lengths = [3, 15]
    blocks = block_mask(masks.lengths(lengths), T, S, tile_sizes=(ROWS, COLUMNS))
    queries, keys = np.arange(T, dtype=np.int32), np.arange(S, dtype=np.int32)
    for b, length in enumerate(lengths):
        exact, _ = both_bounds(masks.lengths(length), queries, keys)
        one = jax.tree.map(lambda x, b=b: x[b], blocks.visits)
        np.testing.assert_array_equal(visited(one, S // COLUMNS), exact.any)


def test_last_tiles_may_be_smaller():
    blocks = block_mask(masks.causal(), 10, tile_sizes=(4, 4))
    np.testing.assert_array_equal(visited(blocks.visits, 3), np.tri(3, dtype=bool))


INTERVALS = {
    "causal": masks.causal(),
    "window": masks.window(512),
    "two-sided window": masks.window(300, 200),
    "causal lengths": masks.causal() & masks.lengths(900_000),
    "blocks": masks.block(1000),
    "sequences": masks.cu_seqlens([0, 1000, 300_000, 2**20]),
}


@pytest.mark.parametrize("name", INTERVALS)
def test_block_mask_of_a_million_tokens_is_small(name):
    """Bounds per row of tiles: 2,048 rows take less than 64 kB, where tiles would take 4 MiB."""
    blocks = block_mask(INTERVALS[name], 2**20)
    assert blocks.visits.columns is None
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(blocks)) < 64_000


QUERY, KEY, VALUE = draw((2, T, 2, 3), (2, S, 2, 3), (2, S, 2, 3))


@pytest.mark.parametrize(
    "mask",
    [
        masks.causal() & masks.lengths([14, 6]),
        masks.segments(np.arange(40) // 6),
        masks.window(2, 1) | ~masks.window(6, 6),
    ],
    ids=["intervals per example", "segments", "composed"],
)
def test_attend_with_a_block_mask_equals_its_mask(mask):
    positions = np.arange(T) + 3, np.arange(S)
    blocks = block_mask(mask, T, S, positions=positions, tile_sizes=(ROWS, COLUMNS))

    @jitted
    def gradient(inputs, blocks):
        return jax.value_and_grad(lambda x: jnp.sum(jnp.sin(attend(*x, mask=blocks))))(inputs)

    def reference(inputs):
        output = attend(*inputs, mask=mask, positions=positions, implementation="reference")
        return jnp.sum(jnp.sin(output))

    inputs = QUERY, KEY, VALUE
    actual, expected = gradient(inputs, blocks), jitted(jax.value_and_grad(reference))(inputs)
    for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_keys_of_a_tile_that_is_larger_than_all_keys_are_visited_once():
    """A row that visited them twice would have the same output, but not the same logsumexp."""
    (inputs,) = draw((5, 2, 3))
    mask = masks.causal() | masks.lengths(2)

    def results(mask):
        attention = partial(attend, mask=mask, implementation="tiled", returning=("logsumexp",))
        output, pull = jax.vjp(lambda value: attention(inputs, inputs, value), inputs)
        return output, pull(output)

    expected, found = map(jax.jit(results), (mask, block_mask(mask, 5)))
    chex.assert_trees_all_close(found, expected, rtol=1e-5)


def test_one_block_mask_serves_several_calls():
    """It is an input of jit, so that layers and steps share one."""
    blocks = block_mask(masks.window(3), T, tile_sizes=(ROWS, COLUMNS))
    traces = []

    @jax.jit
    def run(query, blocks):
        traces.append(query.shape)
        return attend(query, query, query, mask=blocks)

    for seed in range(2):
        (query,) = draw((2, T, 2, 3), seed=seed)
        expected = attend(query, query, query, mask=masks.window(3), implementation="reference")
        np.testing.assert_allclose(run(query, blocks), expected, rtol=1e-5, atol=1e-6)
    assert len(traces) == 1


@pytest.mark.parametrize("mask", [masks.window(3, 1), masks.block(5), masks.window(2)], ids=name)
@pytest.mark.parametrize("sizes", [(4, 4), (8, 4), (4, 8), (6, 4)])
def test_rows_visit_at_most_the_tiles_of_the_band(mask, sizes):
    shape = tuple(-(-48 // size) for size in sizes)
    counts = block_mask(mask, 48, tile_sizes=sizes).visits.counts
    assert max(counts.tolist()) <= most_visits(mask, shape, sizes) < shape[1]


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
    blocks = block_mask(mask, T, tile_sizes=(ROWS, COLUMNS))
    assert max(blocks.visits.counts.tolist()) < 3  # of three columns, some are skipped
    inputs = QUERY, KEY[..., :T, :, :], VALUE[..., :T, :, :]
    output = attend(*inputs, mask=blocks, implementation="tiled")
    expected = attend(*inputs, mask=masks.window(3, 2))
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


def test_visited_tiles_of_a_row_come_first():
    mask = masks.from_function(lambda q, k: ((q // 16) % 2 == (k // 16) % 2) & (k >= 4))
    visits = block_mask(mask, 64, tile_sizes=(16, 16)).visits
    assert visits.counts.tolist() == [2] * 4
    assert visits.columns[:, :2].tolist() == [[0, 2], [1, 3]] * 2


def test_a_block_mask_composes_as_its_mask():
    blocks = block_mask(masks.causal(), 6, tile_sizes=(2, 2))
    for composed in (blocks & masks.window(2), masks.window(2) & blocks):
        expected = masks.picture(masks.window(2), 6)
        assert masks.picture(composed, 6) == expected
    placed = block_mask(masks.causal(), 6, positions=(np.arange(6), np.arange(6)))
    window = masks.window(2)
    for compose in (lambda: placed & window, lambda: window & placed, lambda: ~placed):
        with pytest.raises(ValueError, match="compose masks before block_mask"):
            compose()
