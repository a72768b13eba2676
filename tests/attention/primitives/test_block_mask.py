"""Tile bounds of masks and `block_mask` against every pair of the tiles."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention import attend, block_mask, masks
from attention.primitives.block_mask import EMPTY, FULL, PARTIAL, Pattern, visited_by_any
from attention.primitives.masks import PositionTiles, TileBounds
from tests.attention.primitives.inputs import (
    draw,
    jitted,
)

T, S, ROWS, COLUMNS = 12, 15, 4, 5  # rows and columns of a tile
ARRAY = np.random.default_rng(0).random((40, 40)) < 0.1

LEAVES = st.one_of(
    st.just(masks.causal()),
    st.builds(masks.window, st.none() | st.integers(0, 5), st.none() | st.integers(0, 3)),
    st.builds(masks.lengths, st.integers(0, 20)),
    st.builds(masks.lengths, st.integers(0, 20), query_lengths=st.integers(0, 20)),
    st.builds(masks.block, st.integers(1, 9)),
    st.builds(masks.prefix, st.integers(0, 9)),
    st.just(masks.from_array(ARRAY)),
    st.just(masks.from_function(lambda query, key: (query * key) % 7 == 0)),
    st.builds(
        lambda cuts: masks.segments(np.searchsorted(sorted(cuts), np.arange(40))),
        st.lists(st.integers(0, 40), max_size=5),
    ),
    st.builds(
        lambda cuts: masks.cu_seqlens([0, *sorted(cuts)]),
        st.lists(st.integers(0, 40), min_size=3, max_size=3),
    ),
)
MASKS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=4,
)


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


def kinds_of(blocks):
    """Return EMPTY, PARTIAL or FULL for every tile: [..., rows, columns]."""
    num_keys, size = blocks.lengths[1], blocks.tile_sizes[1]
    first = np.arange(0, num_keys, size)
    end = np.minimum(first + size, num_keys)
    start, stop, full_start, full_stop = (np.array(x)[..., None] for x in blocks.pattern[:4])
    inside = (first < stop) & (end > start)
    full = (first >= full_start) & (end <= full_stop)
    kinds = np.where(full, FULL, PARTIAL) if blocks.kinds is None else blocks.kinds
    return np.where(inside, kinds, EMPTY)


def exact_kinds(bounds):
    return np.where(bounds.all, FULL, np.where(bounds.any, PARTIAL, EMPTY))


@settings(max_examples=12)
@given(mask=MASKS, shift=st.integers(0, 9), shuffle=st.booleans())
def test_tile_bounds_and_block_mask_are_conservative(mask, shift, shuffle):
    """No visible pair is in an empty tile, and no masked pair is in a full tile."""
    queries, keys = np.arange(T) + shift, np.arange(S)
    if shuffle:
        queries, keys = (np.random.default_rng(1).permutation(x) for x in (queries, keys))
    queries, keys = (x.astype(np.int32) for x in (queries, keys))
    exact, found = both_bounds(mask, queries, keys)
    assert (found.any | ~exact.any).all()
    assert (~found.all | exact.all).all()
    blocks = block_mask(mask, T, S, positions=(queries, keys), tile_sizes=(ROWS, COLUMNS))
    kinds = kinds_of(blocks)
    assert not (exact.any & (kinds == EMPTY)).any()
    assert not (~exact.all & (kinds == FULL)).any()


@given(mask=MASKS)
def test_visible_keys_are_inside_the_band(mask):
    if mask.band_width() is not None:
        places = np.arange(40, dtype=np.int32)
        queries, keys = np.nonzero(mask(places[:, None], places[None, :]))
        distances = keys - queries
        assert not distances.size or np.ptp(distances) < mask.band_width()


SIMPLE = [
    masks.causal(),
    masks.window(3, 1),
    masks.window(None, 2),
    masks.lengths(7),
    masks.lengths(9, query_lengths=6),
    masks.block(5),
    masks.prefix(4),
    ~masks.causal(),
    masks.segments(np.arange(40) // 6),
    masks.cu_seqlens([0, 3, 3, 10, 40]),
    masks.from_array(ARRAY),
    masks.from_function(lambda query, key: (query * key) % 7 == 0),
]


def name(mask):
    return type(mask).__name__ if isinstance(mask, masks.Mask) else None


@pytest.mark.parametrize("mask", SIMPLE, ids=name)
def test_tile_bounds_and_block_mask_of_simple_masks_are_exact(mask):
    queries, keys = np.arange(T, dtype=np.int32), np.arange(S, dtype=np.int32)
    exact, found = both_bounds(mask, queries, keys)
    np.testing.assert_array_equal(found.any, exact.any)
    np.testing.assert_array_equal(found.all, exact.all)
    blocks = block_mask(mask, T, S, positions=(queries, keys), tile_sizes=(ROWS, COLUMNS))
    np.testing.assert_array_equal(kinds_of(blocks), exact_kinds(exact))


def test_block_mask_of_lengths_per_example():
    lengths = [3, 15]
    blocks = block_mask(masks.lengths(lengths), T, S, tile_sizes=(ROWS, COLUMNS))
    queries, keys = np.arange(T, dtype=np.int32), np.arange(S, dtype=np.int32)
    for b, length in enumerate(lengths):
        exact, _ = both_bounds(masks.lengths(length), queries, keys)
        np.testing.assert_array_equal(kinds_of(blocks)[b], exact_kinds(exact))


def test_last_tiles_may_be_smaller():
    """Keys of the last tile that do not exist do not make it partial or full."""
    blocks = block_mask(masks.causal(), 10, tile_sizes=(4, 4))
    expected = [
        [PARTIAL, EMPTY, EMPTY],
        [FULL, PARTIAL, EMPTY],
        [FULL, FULL, PARTIAL],
    ]
    found = kinds_of(blocks)
    np.testing.assert_array_equal(found, expected)


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
    assert blocks.kinds is None
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(blocks)) < 64_000


def test_block_mask_takes_at_most_one_byte_per_tile():
    blocks = block_mask(~masks.causal(), 4096, tile_sizes=(64, 64))
    assert blocks.kinds.dtype == jnp.uint8
    assert blocks.kinds.nbytes <= 64 * 64


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


def test_block_mask_of_another_length_raises():
    blocks = block_mask(masks.causal(), T, tile_sizes=(ROWS, COLUMNS))
    with pytest.raises(ValueError, match="this BlockMask is for 12 queries and 12 keys, but there"):
        attend(QUERY, KEY, VALUE, mask=blocks)


def causal_bounds(query, key):
    return masks.TileBounds(any=key.low <= query.high, all=key.high <= query.low)


def test_tile_bounds_of_a_function():
    mask = masks.from_function(lambda query, key: key <= query, tile_bounds=causal_bounds)
    tiles = PositionTiles.of(jnp.arange(T).reshape(-1, ROWS))
    found = mask.tile_bounds(tiles, tiles)
    np.testing.assert_array_equal(found.any, np.tril(np.ones((3, 3), bool)))
    np.testing.assert_array_equal(found.all, np.tril(np.ones((3, 3), bool), -1))


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
    assert (blocks.kinds == 0).any()  # tiles that are skipped
    inputs = QUERY, KEY[..., :T, :, :], VALUE[..., :T, :, :]
    output = attend(*inputs, mask=blocks, implementation="tiled")
    expected = attend(*inputs, mask=masks.window(3, 2))
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "bounds, sentence",
    [
        (lambda query, key: key.low <= query.high, r"must return bool\[\], bool\[\], got bool\[\]"),
        (lambda query: query, r"receives \(query.low, .*, key.high\), and raised"),
    ],
)
def test_wrong_tile_bounds_raise(bounds, sentence):
    with pytest.raises(TypeError, match=sentence):
        masks.from_function(lambda query, key: key <= query, tile_bounds=bounds)


def test_visits_start_at_the_first_visible_key():
    """Keys 6 to 13 of 16 take two visits of 4 from key 6 on; keys 14 and 15 take one from 12 on."""
    start, stop = jnp.array([6, 14, 3]), jnp.array([14, 16, 3])
    pattern = Pattern(start, stop, start, start, None)
    found = [pattern.visits(row, 4, 16) for row in range(3)]
    assert [(int(first), int(number)) for first, number in found] == [(6, 2), (12, 1), (3, 0)]


def test_visits_start_at_a_tile_unless_that_takes_more_of_them():
    """16 tiles of 16, every other one visible, and four keys of padding."""
    mask = masks.from_function(lambda q, k: ((q // 16) % 2 == (k // 16) % 2) & (k >= 4))
    pattern = block_mask(mask, 256, tile_sizes=(16, 16)).pattern
    visits = [(row, *map(int, pattern.visits(row, 16, 256))) for row in range(16)]
    starts = [(row, first + 16 * n) for row, first, number in visits for n in range(number)]
    assert sum(not pattern.is_empty(row, start, 16) for row, start in starts) == 128


def test_keys_that_do_not_exist_are_not_visited():
    blocks = block_mask(masks.segments([0] * 38 + [1] * 3), 41, tile_sizes=(8, 16))
    assert blocks.stop.tolist() == [40, 40, 40, 40, 44, 44]


@pytest.mark.parametrize("empty", [0, 1])
def test_empty_rows_do_not_widen_the_rows_of_other_examples(empty):
    """Under `vmap`, the tiles of a row are those of any example."""
    bounds = jnp.array([[8, 16], [3, 3]])[:: 1 - 2 * empty]
    found = jax.vmap(
        lambda pair: visited_by_any(
            Pattern(pair[:1], pair[1:], pair[:1], pair[1:], None), 32, may_shard=False
        ),
        out_axes=None,
    )(bounds)
    assert (found.start.tolist(), found.stop.tolist()) == ([8], [16])


def test_visit_is_empty_if_both_of_its_tiles_are():
    kinds = jnp.array([[PARTIAL, EMPTY, EMPTY, FULL]], jnp.uint8)
    pattern = Pattern(jnp.array([2]), jnp.array([16]), None, None, kinds)
    assert [bool(pattern.is_empty(0, start, 4)) for start in (2, 4, 6, 10)] == [
        False,
        True,
        True,
        False,
    ]


def test_rows_visit_the_keys_of_their_segment():
    """Each row of ten queries is one segment of ten keys; tiles have 8 keys, and parts have 2."""
    blocks = block_mask(masks.segments(np.arange(40) // 10), 40, tile_sizes=(10, 8))
    assert blocks.start.tolist() == [0, 10, 20, 30]
    assert blocks.stop.tolist() == [10, 20, 30, 40]
