"""Dropout depends only on (rng, head, query position, key position)."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import Dropout, attend
from attention.primitives.dropout import keep_factor
from tests import oracle
from tests.attention.primitives.inputs import (
    DIMS,
    GROUP,
    K,
    N,
    S,
    T,
    jitted,
    query_key_value,
)

RNG = jax.random.key(0)
ROWS, COLUMNS = np.arange(T, dtype=np.int32), np.arange(S, dtype=np.int32)
SIGMAS = 5  # one false alarm in two million, and the random keys are fixed

FACTOR = jax.jit(keep_factor)


def kept(rows, columns, rng=RNG, rate=0.3, num_heads=N):
    """Return whether each weight [..., N, T, S] is kept."""
    heads = np.arange(num_heads, dtype=np.int32)
    return np.asarray(FACTOR(Dropout(rng, rate), heads, rows, columns)) > 0


def correlation(one, other):
    return np.corrcoef(one.reshape(-1), other.reshape(-1))[0, 1]


# The kept set depends on positions.


def test_permuted_positions_permute_the_kept_set():
    random = np.random.default_rng(0)
    rows, columns = random.permutation(T), random.permutation(S)
    permuted = kept(rows.astype(np.int32), columns.astype(np.int32))
    np.testing.assert_array_equal(permuted, kept(ROWS, COLUMNS)[:, rows][:, :, columns])


def test_tile_of_positions_gives_a_tile_of_the_kept_set():
    whole = kept(ROWS, COLUMNS)
    for rows, columns in itertools.product((slice(0, 2), slice(2, T)), (slice(0, 4), slice(4, S))):
        np.testing.assert_array_equal(kept(ROWS[rows], COLUMNS[columns]), whole[:, rows, columns])


def test_kept_set_of_a_head_depends_on_its_number_only():
    whole = kept(ROWS, COLUMNS)
    np.testing.assert_array_equal(kept(ROWS, COLUMNS, num_heads=2), whole[:2])
    some = np.asarray(FACTOR(Dropout(RNG, 0.3), np.array([4, 1]), ROWS, COLUMNS)) > 0
    np.testing.assert_array_equal(some, whole[np.array([4, 1])])


@pytest.mark.parametrize("implementation", ["reference", "tiled"])
def test_heads_argument_selects_the_kept_set(implementation):
    """Heads 2 and 3 alone, with their global numbers, equal heads 2 and 3 of all."""
    query, key, value = query_key_value()
    run = functools.partial(attend, dropout=Dropout(RNG, 0.3), implementation=implementation)
    some = run(query[:, 2:4], key[:, 1:2], value[:, 1:2], heads=np.array([2, 3]))
    every = np.asarray(run(query, key, value))
    np.testing.assert_allclose(some, every[:, 2:4], rtol=1e-5, atol=1e-6)


def test_keys_of_four_words():
    """With keys and queries of 0 and values of 1, the output is the share of kept weights."""
    rng = jax.random.key(0, impl="rbg")
    query, key, value = (np.zeros_like(array) for array in query_key_value())
    dropout = Dropout(rng, 0.3)
    output = np.asarray(attend(query, key, value + 1, dropout=dropout, implementation="tiled"))
    share = np.where(kept(ROWS, COLUMNS, rng), 1 / 0.7, 0).mean(axis=-1)
    np.testing.assert_allclose(output[..., 0], share.T, rtol=1e-5)


def test_one_query_at_a_time_drops_the_same_weights():
    """With an identity matrix as values, the output is the weights: zero means dropped."""
    query, key, _ = query_key_value()
    value = np.broadcast_to(np.eye(S, dtype=np.float32)[:, None, :], (S, K, S))
    dropout = Dropout(RNG, 0.3)
    run = jitted(
        lambda query, rows: attend(query, key, value, positions=(rows, COLUMNS), dropout=dropout)
    )
    full = run(query, ROWS)
    np.testing.assert_array_equal(full.swapaxes(0, 1) != 0, kept(ROWS, COLUMNS))
    for t in range(T):
        row = run(query[t : t + 1], ROWS[t : t + 1])
        np.testing.assert_array_equal(row[0] != 0, full[t] != 0)
        np.testing.assert_allclose(row[0], full[t], rtol=1e-5)


def test_default_positions_count_from_zero():
    inputs = query_key_value()
    dropout = Dropout(RNG, 0.3)
    counted = attend(*inputs, dropout=dropout, positions=(ROWS, COLUMNS))
    np.testing.assert_array_equal(attend(*inputs, dropout=dropout), counted)


@pytest.mark.parametrize("query_batch, key_batch", [((2,), ()), ((), (2,)), ((2,), (2,))])
def test_examples_may_have_different_positions(query_batch, key_batch):
    random = np.random.default_rng(1)
    rows = random.integers(0, 99, (*query_batch, T), dtype=np.int32)
    columns = random.integers(0, 99, (*key_batch, S), dtype=np.int32)
    together = kept(rows, columns)
    for b in range(2):
        alone = kept(rows[b] if query_batch else rows, columns[b] if key_batch else columns)
        np.testing.assert_array_equal(together[b], alone)


# Random keys.


def test_examples_may_have_different_random_keys():
    keys = jax.random.split(RNG, 6).reshape(3, 2)
    together = kept(ROWS, COLUMNS, keys)
    assert together.shape == (3, 2, N, T, S)
    for i, j in np.ndindex(3, 2):
        np.testing.assert_array_equal(together[i, j], kept(ROWS, COLUMNS, keys[i, j]))
    assert not np.array_equal(together[0, 0], together[1, 0])


def test_examples_with_one_random_key_drop_the_same_pairs():
    query, key, value = query_key_value()
    same = [np.stack([array, array]) for array in (query, key, value)]
    output = np.asarray(attend(*same, dropout=Dropout(RNG, 0.3)))
    np.testing.assert_array_equal(output[0], output[1])
    output = np.asarray(attend(*same, dropout=Dropout(jax.random.split(RNG, 2), 0.3)))
    assert not np.allclose(output[0], output[1])


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_all_kinds_of_random_keys(implementation):
    first, second = (kept(ROWS, COLUMNS, jax.random.key(s, impl=implementation)) for s in (0, 1))
    assert not np.array_equal(first, second)


def test_dropout_is_a_pytree_with_static_rate():
    dropout = Dropout(RNG, 0.3)
    assert len(jax.tree.leaves(dropout)) == 1
    inputs = query_key_value()
    passed = jax.jit(lambda dropout: attend(*inputs, dropout=dropout))(dropout)
    np.testing.assert_allclose(passed, attend(*inputs, dropout=dropout), rtol=1e-5, atol=1e-6)


def colliding_words():
    """Return two random keys that a hash of both words into one 32-bit state confuses."""

    def step(word):
        return (word * 0x9E3779B9 + 0x85EBCA6B) % 2**32

    first = (123, 456)
    return first, (first[0] ^ step(first[1]) ^ step(789), 789)


FIRST, SECOND = colliding_words()


@pytest.mark.parametrize(
    "words",
    [SECOND, (124, 456), (123, 457), (456, 123), (123 ^ 1, 456 ^ 1), (123, 456 ^ 2**31)],
    ids=["equal 32-bit hash", "first word", "second word", "swapped", "both words", "highest bit"],
)
def test_all_64_bits_of_the_random_key_count(words):
    rows = np.arange(64, dtype=np.int32)
    one, other = (
        kept(rows, rows, jax.random.wrap_key_data(np.array(key, np.uint32)), 0.5)
        for key in (FIRST, words)
    )
    assert abs(correlation(one, other)) < SIGMAS / math.sqrt(one.size)


# Values.


def test_kept_weights_are_divided_by_one_minus_rate():
    query, key, value = query_key_value(DIMS["B"])
    keys = jax.random.split(RNG, 2)
    factor = kept(ROWS, COLUMNS, keys) / (1 - 0.3)
    expected = oracle.attention(query, key, value, keep=factor).output
    actual = attend(query, key, value, dropout=Dropout(keys, 0.3))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_dropout_keeps_the_dtype(float64, dtype):
    inputs = query_key_value(dtype=dtype)
    assert attend(*inputs, dropout=Dropout(RNG, 0.3)).dtype == jnp.dtype(dtype)


def test_rate_zero_keeps_all_weights():
    inputs = query_key_value()
    np.testing.assert_array_equal(attend(*inputs, dropout=Dropout(RNG, 0.0)), attend(*inputs))


def test_array_rate_raises():
    with pytest.raises(TypeError, match="dropout rate must be a Python number"):
        Dropout(RNG, jnp.float32(0.1))


@pytest.mark.parametrize("rng", [0, 1.5])
def test_number_as_random_key_raises(rng):
    with pytest.raises(TypeError, match="dropout rng must be a"):
        attend(*query_key_value(), dropout=Dropout(rng, 0.1))


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, math.nan])
def test_rate_outside_its_range_raises(rate):
    with pytest.raises(ValueError, match=r"dropout rate must lie in \[0, 1\), got"):
        Dropout(RNG, rate)


# Statistics.


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_fraction_of_dropped_pairs_is_the_rate(rate):
    bits = kept(np.arange(101, dtype=np.int32), np.arange(103, dtype=np.int32), rate=rate)
    spread = math.sqrt(rate * (1 - rate) / bits.size)
    assert abs(1 - rate - bits.mean()) < SIGMAS * spread


def test_heads_queries_keys_and_examples_are_uncorrelated():
    """Also at distances that are powers of two, where weak hashes repeat."""
    size = 128
    rows = np.arange(size, dtype=np.int32)
    bits = kept(rows, rows, jax.random.split(RNG, 3), rate=0.5, num_heads=4)
    allowed = SIGMAS / math.sqrt(size * (size - 64))
    for one, other in itertools.combinations(range(4), 2):
        assert abs(correlation(bits[:, one], bits[:, other])) < allowed
    for one, other in itertools.combinations(range(3), 2):
        assert abs(correlation(bits[one], bits[other])) < allowed
    for distance in (1, 2, 3, 4, 8, 16, 32, 64):
        assert abs(correlation(bits[..., distance:, :], bits[..., :-distance, :])) < allowed
        assert abs(correlation(bits[..., distance:], bits[..., :-distance])) < allowed
    assert abs(correlation(bits, bits.swapaxes(-1, -2))) < allowed


def test_consecutive_seeds_are_uncorrelated_at_large_positions():
    """Users choose seeds 0, 1, 2 ...; long texts have large positions."""
    near = np.arange(128, dtype=np.int32)
    far = near + 2**20
    sets = [kept(far, far, jax.random.key(seed), rate=0.5, num_heads=2) for seed in range(4)]
    sets.append(kept(near, near, rate=0.5, num_heads=2))
    for one, other in itertools.combinations(sets, 2):
        assert abs(correlation(one, other)) < SIGMAS / math.sqrt(one.size)


def test_each_query_and_each_key_keeps_its_share():
    """The overall mean would not show a hash that fails on one row."""
    places = np.arange(256, dtype=np.int32)
    bits = kept(places, places, rate=0.5, num_heads=8)
    for axes in ((0, 1), (0, 2), (1, 2)):
        means = bits.mean(axis=axes)
        spread = 0.5 / math.sqrt(bits.size / means.size)
        assert np.abs(means - 0.5).max() < SIGMAS * spread
        assert 0.7 * spread < means.std() < 1.4 * spread or means.size < 50


def test_mean_over_random_keys_is_one():
    keys, rate = jax.random.split(RNG, 4096), 0.25
    factors = np.asarray(FACTOR(Dropout(keys, rate), np.arange(2), ROWS, COLUMNS))
    spread = math.sqrt(rate / (1 - rate) / len(keys))
    assert np.abs(factors.mean(axis=0) - 1).max() < SIGMAS * spread


def test_dropout_is_numbered_by_query_head():
    """Query head n drops the same pairs with grouped and with repeated keys."""
    query, key, value = query_key_value()
    dropout = Dropout(RNG, 0.3)
    grouped = attend(query, key, value, dropout=dropout)
    repeated = (np.repeat(array, GROUP, axis=1) for array in (key, value))
    np.testing.assert_allclose(
        grouped, attend(query, *repeated, dropout=dropout), rtol=1e-5, atol=1e-6
    )
