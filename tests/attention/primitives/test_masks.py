"""Masks against plain Python: values, pictures, composition, pytrees, closures."""

import inspect
import itertools
import operator
import re
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention import attend, masks
from attention.primitives.cache import EMPTY_SLOT
from tests.attention.primitives.inputs import S, T, draw, query_key_value

B = 2  # examples of a batched mask
to_array = jax.jit(masks.to_array)  # else each operation is a program of its own
EVEN = np.array([[(row * column) % 2 == 0 for column in range(S)] for row in range(T)])


def divides(query, key):
    return (query - key) % 3 == 0


class Case(NamedTuple):
    """A mask and its definition in Python."""

    mask: masks.Mask
    allows: Callable[[int, int, int], bool]  # (example, query position, key position)

    def __invert__(self):
        return Case(~self.mask, lambda *at: not self.allows(*at))

    def __and__(self, other):
        return Case(self.mask & other.mask, lambda *at: self.allows(*at) and other.allows(*at))

    def __or__(self, other):
        return Case(self.mask | other.mask, lambda *at: self.allows(*at) or other.allows(*at))


def inside(position, size):
    return 0 <= position < size


def causal():
    return Case(masks.causal(), lambda b, query, key: key <= query)


def window(before, after):
    return Case(
        masks.window(before, after),
        lambda b, query, key: (
            (before is None or query - before <= key) and (after is None or key <= query + after)
        ),
    )


def block(size):
    return Case(masks.block(size), lambda b, query, key: query // size == key // size)


def function(chosen):
    return Case(masks.from_function(chosen), lambda b, query, key: bool(chosen(query, key)))


def lengths(sizes):
    """Lengths of the keys: one for all examples, or one for each."""
    each = np.broadcast_to(sizes, B)
    return Case(masks.lengths(np.array(sizes)), lambda b, query, key: 0 <= key < each[b])


def query_lengths(sizes):
    each = np.broadcast_to(sizes, B)
    return Case(
        masks.lengths(np.full(np.shape(sizes), S), query_lengths=np.array(sizes)),
        lambda b, query, key: 0 <= query < each[b] and 0 <= key < S,
    )


def cu_seqlens(query_offsets, key_offsets):
    return Case(
        masks.cu_seqlens(query_offsets, key_offsets),
        lambda b, query, key: any(
            start <= query < stop and first <= key < last
            for start, stop, first, last in zip(
                query_offsets, query_offsets[1:], key_offsets, key_offsets[1:], strict=False
            )
        ),
    )


def prefix(sizes):
    each = np.broadcast_to(sizes, B)
    return Case(
        masks.prefix(np.array(sizes)),
        lambda b, query, key: 0 <= key < each[b] or key <= query,
    )


def segments(of_queries, of_keys):
    rows, columns = np.broadcast_to(of_queries, (B, T)), np.broadcast_to(of_keys, (B, S))
    return Case(
        masks.segments(np.array(of_queries), np.array(of_keys)),
        lambda b, query, key: (
            inside(query, T) and inside(key, S) and rows[b, query] == columns[b, key]
        ),
    )


def array(bits):
    each = np.broadcast_to(bits, (B, T, S))
    return Case(
        masks.from_array(bits if np.ndim(bits) == 2 else bits[:, None]),
        lambda b, query, key: inside(query, T) and inside(key, S) and each[b, query, key],
    )


LEAVES = [
    causal(),
    window(2, 1),
    window(0, 0),
    window(None, 0),
    window(1, None),
    window(None, None),
    window(2**40, 2**40),
    cu_seqlens([0, 3, 3, 5], [0, 2, 6, 7]),
    block(1),
    block(3),
    function(divides),
    lengths(4),
    lengths([0, 6]),
    lengths([S + 2, 1]),
    query_lengths(2),
    query_lengths([3, 0]),
    query_lengths([S + 2, 5]),
    prefix(3),
    prefix([2, 5]),
    prefix([S + 2, 0]),
    segments([0, 0, 1, 1, 2], [0, 1, 1, 1, 2, 2, 3]),
    segments([[0] * T, [0, 1, 2, 3, 4]], [[0] * S, [4, 3, 2, 1, 0, 0, 0]]),
    array(EVEN),
    array(np.stack([EVEN, ~EVEN])),
]


def expressions(leaves):
    """Compose some of these masks or cases."""
    return st.recursive(
        st.sampled_from(leaves),
        lambda inner: st.one_of(
            st.builds(operator.invert, inner),
            st.builds(operator.and_, inner, inner),
            st.builds(operator.or_, inner, inner),
        ),
        max_leaves=5,
    )


def positions(size):
    """Positions, also before the start and past the end."""
    numbers = st.lists(st.integers(-3, S + 3), min_size=size, max_size=size)
    return numbers.map(lambda numbers: np.array(numbers, np.int32))


QUERIES, KEYS = positions(T), positions(S)


def by_loops(case, queries, keys):
    """Evaluate the definition for every pair of each example."""
    pairs = itertools.product(range(B), queries.tolist(), keys.tolist())
    return np.array([case.allows(*pair) for pair in pairs]).reshape(B, len(queries), len(keys))


returned_with_pairs = jax.jit(lambda mask, *at: (masks.to_array(mask, *at), mask))


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda case: type(case.mask).__name__.lower())
def test_mask_equals_its_definition(leaf):
    """At positions from -3 to 9, also outside the arrays of the mask."""
    everywhere = np.arange(-3, 10, dtype=np.int32)
    pairs = to_array(leaf.mask, everywhere, everywhere)
    expected = by_loops(leaf, everywhere, everywhere)
    np.testing.assert_array_equal(np.broadcast_to(pairs, expected.shape), expected)


@given(expressions(LEAVES), QUERIES, KEYS)
@settings(max_examples=15)  # each expression is compiled
def test_composed_mask_equals_its_definition(case, queries, keys):
    """Under jit, of which the mask is an input and an output."""
    pairs, returned = returned_with_pairs(case.mask, queries, keys)
    again, _ = returned_with_pairs(returned, queries, keys)
    expected = by_loops(case, queries, keys)
    for found in (pairs, again):
        np.testing.assert_array_equal(np.broadcast_to(found, expected.shape), expected)


def has_batch_axes(case):
    return all(leaf.shape[:1] == (B,) for leaf in jax.tree.leaves(case.mask))


BATCHED = expressions(list(filter(has_batch_axes, LEAVES)))


@given(BATCHED.filter(lambda case: jax.tree.leaves(case.mask)), QUERIES, KEYS)
@settings(max_examples=15)
def test_vmap_over_masks_equals_one_at_a_time(case, queries, keys):
    mapped = jax.vmap(masks.to_array, (0, None, None))
    together = np.asarray(jax.jit(mapped)(case.mask, queries, keys))
    arrays = jax.tree.map(np.asarray, case.mask)
    for b in range(B):
        one = jax.tree.map(lambda leaf, b=b: leaf[b], arrays)
        np.testing.assert_array_equal(together[b], to_array(one, queries, keys))


@pytest.mark.parametrize("in_queries, in_keys", [(True, True), (True, False), (False, True)])
def test_examples_may_have_different_positions(in_queries, in_keys):
    random = np.random.default_rng(0)
    queries, keys = (random.integers(-3, 9, (B, size), dtype=np.int32) for size in (T, S))
    queries, keys = queries if in_queries else queries[0], keys if in_keys else keys[0]
    case = (causal() | lengths([2, 5])) & array(EVEN)
    actual = np.asarray(to_array(case.mask, queries, keys))
    rows, columns = np.broadcast_to(queries, (B, T)), np.broadcast_to(keys, (B, S))
    for b in range(B):
        expected = by_loops(case, rows[b], columns[b])[b]
        np.testing.assert_array_equal(actual[b], expected)


def test_masks_without_arrays_have_no_leaves():
    assert jax.tree.leaves(masks.causal() & masks.window(2) | ~masks.block(3)) == []


def test_a_bool_array_for_one_head_needs_no_batch_axis():
    inputs = [np.stack([array[..., :1, :]] * 2) for array in query_key_value()]
    found = attend(*inputs, mask=EVEN[None, None])
    np.testing.assert_array_equal(attend(*inputs, mask=EVEN[None]), found)


PICTURED = {
    "full": lambda query, key: True,
    "causal": lambda query, key: key <= query,
    "window": lambda query, key: query - 2 <= key <= query + 1,
    "lengths": lambda query, key: key < 3,
    "segments": lambda query, key: "AABC"[query] == "AABC"[key],
    "cu_seqlens": lambda query, key: "AABC"[query] == "AABC"[key],
    "prefix": lambda query, key: key < 2 or key <= query,
    "block": lambda query, key: query // 2 == key // 2,
    "from_array": lambda query, key: (query, key) in {(1, 3), (2, 0)},
    "from_function": lambda query, key: abs(query - key) in (0, 3),
}


def test_every_mask_has_a_picture():
    makers = {
        name
        for name, maker in inspect.getmembers(masks, inspect.isfunction)
        if not name.startswith("_") and inspect.signature(maker).return_annotation is masks.Mask
    }
    assert makers - {"as_mask", "map_leaves"} == set(PICTURED)


@pytest.mark.parametrize("name", PICTURED)
def test_picture_in_the_docstring_equals_the_mask(name):
    rows = re.findall(r"^ *([01](?: [01]){3})$", getattr(masks, name).__doc__, re.MULTILINE)
    drawn = [[bool(int(digit)) for digit in row.split()] for row in rows]
    defined = [[PICTURED[name](query, key) for key in range(4)] for query in range(4)]
    assert drawn == defined


def test_dense_array_of_a_mask():
    """Of numbers of positions, of positions, and of a batch of masks."""
    mask = masks.window(1)
    expected = [[True, False, False], [True, True, False]]
    np.testing.assert_array_equal(masks.to_array(mask, 2, 3), expected)
    np.testing.assert_array_equal(masks.to_array(mask, [0, 1], 3), expected)
    np.testing.assert_array_equal(masks.to_array(mask, 2), np.array(expected)[:, :2])
    batch = masks.to_array(masks.lengths([2, 0, 1]), np.array([[0, 5]] * 3), 2)
    np.testing.assert_array_equal(batch[:, 0], [[1, 1], [0, 0], [1, 0]])
    assert batch.shape == (3, 2, 2)


def test_full_allows_all_but_empty_slots():
    keys = np.array([-(2**31), -1, 0, 2**31 - 2, EMPTY_SLOT], np.int32)
    np.testing.assert_array_equal(masks.to_array(masks.full(), 1, keys)[0], [1, 1, 1, 1, 0])
    query, key, value = query_key_value()  # T and S differ, and no positions are needed
    np.testing.assert_array_equal(
        attend(query, key, value, mask=masks.full()), attend(query, key, value)
    )


def test_offsets_that_are_traced_are_not_checked():
    for offsets in ([0, 3, 2], [1, 2, 3]):
        assert jax.jit(lambda x: masks.cu_seqlens(x)(0, 0))(jnp.array(offsets)).shape == ()


def test_window_masks_empty_slots():
    """An empty slot of a cache has the largest position; the distance to it exceeds int32."""
    query, key = np.array([-5], np.int32), np.array([EMPTY_SLOT], np.int32)
    for mask in (masks.window(None, 0), masks.window(3), masks.window(3, 3)):
        assert not to_array(mask, query, key)


@pytest.mark.parametrize("size", [3, 2**31 - 1, 2**40])
def test_blocks_at_the_bounds_of_int32(size):
    """As `window`, no block has the last position of int32, which marks an empty slot."""
    lowest, highest = -(2**31), 2**31 - 1
    positions = [lowest, lowest + 1, lowest + 2, -1, 0, 5, highest - 2, highest - 1, highest]
    size = min(size, highest)
    expected = [[q // size == k // size and k < highest for k in positions] for q in positions]
    found = to_array(masks.block(size), *[np.array(positions, np.int32)] * 2)
    np.testing.assert_array_equal(found, expected)


def test_causal_cu_seqlens_align_the_ends_of_sequences():
    """As FlashAttention, with 1, 2 and 3 queries for 3, 0 and 2 keys."""
    mask = masks.cu_seqlens([0, 1, 3, 6], [0, 3, 3, 5], causal=True)
    expected = ["1 1 1 0 0", "0 0 0 0 0", "0 0 0 0 0", "0 0 0 0 0", "0 0 0 1 0", "0 0 0 1 1"]
    assert masks.picture(mask, 6, 5).split("\n") == expected
    same = masks.cu_seqlens([0, 1, 4]) & masks.causal()
    causal = masks.cu_seqlens([0, 1, 4], causal=True)
    assert masks.picture(same, 4) == masks.picture(causal, 4)


@pytest.mark.parametrize("enable_x64", [False, True])
def test_int64_outside_int32_raises(enable_x64):
    with jax.enable_x64(enable_x64):
        far = np.array([2**31, 3])
        with pytest.raises(ValueError, match=r"lengths must lie in .* int32, .*, got 2147483648$"):
            masks.lengths(far)
        with pytest.raises(ValueError, match="query_positions must lie in the range of int32"):
            attend(*query_key_value(), positions=(far[0] + np.arange(T), np.arange(S)))


@pytest.mark.usefixtures("float64")
def test_traced_int64_is_clipped_to_int32():
    allowed = jax.jit(lambda length: masks.lengths(length)(0, 5))
    assert allowed(jnp.int64(2**32 + 3))
    assert not allowed(jnp.int64(-(2**32) + 9))


@pytest.mark.usefixtures("float64")
def test_int64_constants_inside_jit():
    length = jnp.int64(3)
    assert jax.jit(lambda: masks.lengths(length)(0, 2))()


def test_masks_of_a_function_are_built_under_vmap():
    """A batch of masks is the mapped construction of one."""
    ids = jnp.array([[0, 0, 1, 1, 1, 2, 2], [0, 1, 1, 1, 1, 1, 2]])
    inputs = [draw((B, S, 2, 3), seed=seed)[0] for seed in range(3)]

    def same(query, key, ids):
        return ids[query] == ids[key]

    mask = jax.vmap(lambda ids: masks.from_function(same, ids))(ids)
    expected = attend(*inputs, mask=masks.segments(ids))
    for implementation in ("reference", "tiled"):
        output = attend(*inputs, mask=mask, implementation=implementation)
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)
