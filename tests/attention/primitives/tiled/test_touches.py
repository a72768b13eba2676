"""What masks say about whole tiles, against every pair in them."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention import masks
from attention.primitives.touched import Tiles

T, S, ROWS, COLUMNS = 12, 15, 4, 5
ARRAY = jnp.asarray(np.random.default_rng(0).random((40, 40)) < 0.1)

LEAVES = st.one_of(
    st.just(masks.causal()),
    st.builds(masks.window, st.integers(0, 5), st.integers(0, 3)),
    st.builds(masks.lengths, st.integers(0, 20)),
    st.builds(masks.block, st.integers(1, 9)),
    st.builds(masks.prefix, st.integers(0, 9)),
    st.just(masks.from_array(ARRAY)),
    st.just(masks.from_function(lambda query, key: (query * key) % 7 == 0)),
    st.builds(
        lambda cuts: masks.segments(jnp.asarray(np.searchsorted(sorted(cuts), np.arange(40)))),
        st.lists(st.integers(0, 40), max_size=5),
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


def tiles_of(mask, queries, keys):
    """(any, all) of the pairs of each tile, and what the mask says of them."""
    dense = mask(queries[:, None], keys[None, :])
    dense = dense.reshape(T // ROWS, ROWS, S // COLUMNS, COLUMNS)
    query, key = queries.reshape(-1, ROWS), keys.reshape(-1, COLUMNS)
    some, every = mask.touches(Tiles.of(query), Tiles.of(key))
    return dense.any(axis=(1, 3)), dense.all(axis=(1, 3)), some, every


@settings(max_examples=60)
@given(mask=MASKS, shift=st.integers(0, 9), shuffle=st.booleans())
def test_no_allowed_pair_is_skipped_and_no_forbidden_one_let_through(mask, shift, shuffle):
    queries, keys = np.arange(T) + shift, np.arange(S)
    if shuffle:
        queries, keys = (np.random.default_rng(1).permutation(x) for x in (queries, keys))
    any_pair, all_pairs, some, every = tiles_of(mask, jnp.asarray(queries), jnp.asarray(keys))
    assert (some | ~any_pair).all()
    assert (~every | all_pairs).all()


@pytest.mark.parametrize(
    "mask",
    [
        masks.causal(),
        masks.window(3, 1),
        masks.lengths(7),
        masks.block(5),
        masks.prefix(4),
        ~masks.causal(),
        masks.segments(jnp.arange(40) // 6),
        masks.from_array(ARRAY),
    ],
    ids=lambda mask: type(mask).__name__,
)
def test_one_mask_alone_is_told_exactly(mask):
    any_pair, all_pairs, some, every = tiles_of(mask, jnp.arange(T), jnp.arange(S))
    np.testing.assert_array_equal(some, any_pair)
    np.testing.assert_array_equal(every, all_pairs)


def test_a_function_may_bring_a_hint():
    asked = []

    def function(query, key):
        asked.append(True)
        return key <= query

    hinted = masks.from_function(function, lambda q, k: masks.causal().touches(q, k))
    tiles = functools.partial(Tiles.of, jnp.arange(T).reshape(-1, ROWS))
    some, every = hinted.touches(tiles(), tiles())
    assert not asked
    np.testing.assert_array_equal(some, np.tril(np.ones((3, 3), bool)))
    np.testing.assert_array_equal(every, np.tril(np.ones((3, 3), bool), -1))
