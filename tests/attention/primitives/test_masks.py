"""Masks against plain Python, their pictures, their algebra and their life as a pytree."""

import doctest
import inspect
import itertools
import re
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attention
from attention import attend, masks
from attention.primitives.dense_mask import allowed_pairs
from tests.attention.primitives.inputs import S, T, query_key_value

B = 2  # examples of a batched mask
EVEN = np.array([[(row * column) % 2 == 0 for column in range(S)] for row in range(T)])


def divides(query, key):
    return (query - key) % 3 == 0


def later(query, key):
    return key > query + 1


class Case(NamedTuple):
    """A mask beside its definition in Python: may `query` attend to `key` in this example?"""

    mask: masks.Mask
    allows: Callable[[int, int, int], bool]  # (example, query position, key position)


def inside(position, size):
    return 0 <= position < size


def causal():
    return Case(masks.causal(), lambda b, query, key: key <= query)


def window(before, after):
    return Case(
        masks.window(before, after),
        lambda b, query, key: query - before <= key <= query + after,
    )


def block(size):
    return Case(masks.block(size), lambda b, query, key: query // size == key // size)


def function(chosen):
    return Case(masks.from_function(chosen), lambda b, query, key: bool(chosen(query, key)))


def lengths(sizes):
    """One length for all examples, or one for each."""
    each = np.broadcast_to(sizes, B)
    return Case(masks.lengths(np.array(sizes)), lambda b, query, key: key < each[b])


def prefix(sizes):
    each = np.broadcast_to(sizes, B)
    return Case(masks.prefix(np.array(sizes)), lambda b, query, key: key < each[b] or key <= query)


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
        masks.from_array(np.array(bits)),
        lambda b, query, key: inside(query, T) and inside(key, S) and each[b, query, key],
    )


def negation(case):
    return Case(~case.mask, lambda b, query, key: not case.allows(b, query, key))


def conjunction(left, right):
    return Case(
        left.mask & right.mask,
        lambda b, query, key: left.allows(b, query, key) and right.allows(b, query, key),
    )


def disjunction(left, right):
    return Case(
        left.mask | right.mask,
        lambda b, query, key: left.allows(b, query, key) or right.allows(b, query, key),
    )


def nested(element, *sizes):
    """Lists of elements in lists of these sizes."""
    for size in reversed(sizes):
        element = st.lists(element, min_size=size, max_size=size)
    return element


def leaves(*batch):
    """Masks whose arrays have these leading axes; some have no arrays."""
    segment_ids = st.integers(0, 2)
    length = nested(st.integers(-1, S + 2), *batch)
    return st.one_of(
        st.just(causal()),
        st.builds(window, st.integers(0, 4), st.integers(0, 4)),
        st.builds(block, st.integers(1, 4)),
        st.builds(function, st.sampled_from([divides, later])),
        st.builds(lengths, length),
        st.builds(prefix, length),
        st.builds(segments, nested(segment_ids, *batch, T), nested(segment_ids, *batch, S)),
        st.builds(array, nested(st.booleans(), *batch, T, S)),
    )


def expressions(leaf):
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds(negation, inner),
            st.builds(conjunction, inner, inner),
            st.builds(disjunction, inner, inner),
        ),
        max_leaves=5,
    )


def positions(size):
    """Anywhere, before the start and past the end included."""
    return nested(st.integers(-3, S + 3), size).map(lambda numbers: np.array(numbers, np.int32))


MIXED = expressions(st.one_of(leaves(), leaves(B)))
QUERIES, KEYS = positions(T), positions(S)


def by_loops(case, queries, keys):
    """[B, T, S]: the definition, pair by pair."""
    pairs = itertools.product(range(B), queries.tolist(), keys.tolist())
    return np.array([case.allows(*pair) for pair in pairs]).reshape(B, T, S)


def dense(mask, queries, keys):
    return np.broadcast_to(allowed_pairs(mask, jnp.asarray(queries), jnp.asarray(keys)), (B, T, S))


@pytest.mark.parametrize(
    "leaf",
    [
        causal(),
        window(2, 1),
        window(0, 0),
        block(3),
        function(divides),
        lengths(4),
        lengths([0, 6]),
        prefix([2, 5]),
        segments([0, 0, 1, 1, 2], [0, 1, 1, 1, 2, 2, 3]),
        segments([[0] * T, [0, 1, 2, 3, 4]], [[0] * S, [4, 3, 2, 1, 0, 0, 0]]),
        array(EVEN),
        array(np.stack([EVEN, ~EVEN])),
    ],
    ids=lambda case: type(case.mask).__name__.lower(),
)
def test_a_mask_is_its_definition_everywhere(leaf):
    """At every position from -3 to ten, hence outside its arrays as well."""
    everywhere = np.arange(-3, 10)
    pairs = allowed_pairs(leaf.mask, jnp.asarray(everywhere), jnp.asarray(everywhere))
    triples = itertools.product(range(B), everywhere.tolist(), everywhere.tolist())
    expected = np.array([leaf.allows(*triple) for triple in triples]).reshape(B, 13, 13)
    np.testing.assert_array_equal(np.broadcast_to(pairs, expected.shape), expected)


@given(MIXED, QUERIES, KEYS)
def test_an_expression_is_its_definition_pair_by_pair(case, queries, keys):
    np.testing.assert_array_equal(dense(case.mask, queries, keys), by_loops(case, queries, keys))


@given(MIXED, MIXED, QUERIES, KEYS)
def test_de_morgan(left, right, queries, keys):
    left, right = left.mask, right.mask
    np.testing.assert_array_equal(
        dense(~(left & right), queries, keys), dense(~left | ~right, queries, keys)
    )
    np.testing.assert_array_equal(
        dense(~(left | right), queries, keys), dense(~left & ~right, queries, keys)
    )


@given(MIXED, QUERIES, KEYS)
@settings(max_examples=15)  # each expression is compiled
def test_a_mask_passes_through_jit_in_and_out(case, queries, keys):
    pairs, returned = jax.jit(lambda mask, *at: (allowed_pairs(mask, *at), mask))(
        case.mask, queries, keys
    )
    expected = by_loops(case, queries, keys)
    np.testing.assert_array_equal(np.broadcast_to(pairs, expected.shape), expected)
    np.testing.assert_array_equal(dense(returned, queries, keys), expected)


@given(MIXED)
def test_a_mask_is_rebuilt_from_its_leaves(case):
    leaves_before, structure = jax.tree.flatten(case.mask)
    rebuilt = jax.tree.unflatten(structure, leaves_before)
    leaves_after, structure_after = jax.tree.flatten(rebuilt)
    assert structure == structure_after
    assert all(before is after for before, after in zip(leaves_before, leaves_after, strict=True))


@given(expressions(leaves(B)).filter(lambda case: jax.tree.leaves(case.mask)), QUERIES, KEYS)
@settings(max_examples=20)
def test_vmap_over_the_leaves_equals_one_at_a_time(case, queries, keys):
    queries, keys = jnp.asarray(queries), jnp.asarray(keys)
    together = jax.vmap(lambda mask: allowed_pairs(mask, queries, keys))(case.mask)
    for b in range(B):
        one = jax.tree.map(lambda leaf, b=b: leaf[b], case.mask)
        np.testing.assert_array_equal(together[b], allowed_pairs(one, queries, keys))


@pytest.mark.parametrize("in_queries, in_keys", [(True, True), (True, False), (False, True)])
def test_each_example_may_have_its_own_positions(in_queries, in_keys):
    random = np.random.default_rng(0)
    queries, keys = random.integers(-3, 9, (B, T)), random.integers(-3, 9, (B, S))
    queries, keys = queries if in_queries else queries[0], keys if in_keys else keys[0]
    case = conjunction(disjunction(causal(), lengths([2, 5])), array(EVEN))
    actual = allowed_pairs(case.mask, jnp.asarray(queries), jnp.asarray(keys))
    rows, columns = np.broadcast_to(queries, (B, T)), np.broadcast_to(keys, (B, S))
    for b in range(B):
        expected = by_loops(case, rows[b], columns[b])[b]
        np.testing.assert_array_equal(actual[b], expected)


def test_masks_without_arrays_are_no_leaves():
    assert jax.tree.leaves(masks.causal() & masks.window(2) | ~masks.block(3)) == []


def test_attend_reads_a_mask_as_its_dense_form():
    query, key, value = query_key_value((B,))
    mask = masks.segments([0, 0, 1, 1, 2], [0, 0, 0, 1, 1, 2, 2]) & masks.lengths([6, 3])
    structured = attend(query, key, value, mask=mask)
    written_out = attend(query, key, value, mask=allowed_pairs(mask, np.arange(T), np.arange(S)))
    np.testing.assert_array_equal(structured, written_out)


def test_a_bool_array_follows_rows_and_columns_not_positions():
    """The same array means its rows wherever they stand; `from_array` means positions."""
    query, key, value = query_key_value()
    moved = (np.arange(T)[::-1].copy(), np.arange(S)[::-1].copy())
    rows = attend(query, key, value, mask=EVEN, positions=moved)
    np.testing.assert_array_equal(rows, attend(query, key, value, mask=EVEN))
    by_position = attend(query, key, value, mask=masks.from_array(EVEN), positions=moved)
    np.testing.assert_array_equal(by_position, attend(query, key, value, mask=EVEN[::-1, ::-1]))


PICTURED = {
    "causal": lambda query, key: key <= query,
    "window": lambda query, key: query - 2 <= key <= query + 1,
    "lengths": lambda query, key: key < 4,
    "segments": lambda query, key: "AAABBC"[query] == "AAABBC"[key],
    "prefix": lambda query, key: key < 3 or key <= query,
    "block": lambda query, key: query // 2 == key // 2,
    "from_array": lambda query, key: (query, key) in {(1, 5), (4, 0)},
    "from_function": lambda query, key: abs(query - key) in (0, 3),
}


def test_what_is_no_function_is_no_mask():
    with pytest.raises(TypeError, match="a mask function must be callable, got NoneType"):
        masks.from_function(None)


def test_every_mask_shows_a_picture():
    makers = {
        name
        for name, maker in inspect.getmembers(masks, inspect.isfunction)
        if not name.startswith("_") and inspect.signature(maker).return_annotation is masks.Mask
    }
    assert makers == set(PICTURED)


@pytest.mark.parametrize("name", PICTURED)
def test_the_picture_in_the_docstring_is_the_mask(name):
    rows = re.findall(r"^ *([01](?: [01]){5})$", getattr(masks, name).__doc__, re.MULTILINE)
    drawn = [[bool(int(digit)) for digit in row.split()] for row in rows]
    defined = [[PICTURED[name](query, key) for key in range(6)] for query in range(6)]
    assert drawn == defined


@pytest.mark.parametrize("module", [masks, attention], ids=lambda module: module.__name__)
def test_the_examples_in_the_docstrings_run(module):
    failed, attempted = doctest.testmod(module)
    assert attempted > 0
    assert failed == 0


def test_picture_of_other_than_square():
    assert masks.picture(masks.causal(), 2, 3) == "1 0 0\n1 1 0"
