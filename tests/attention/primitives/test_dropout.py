"""Dropout depends only on (rng, head, query position, key position)."""

import itertools
import math

import jax
import numpy as np
import pytest

from attention import Dropout, attend
from attention.primitives.dropout import keep_factor
from tests import oracle
from tests.attention.primitives.inputs import DIMS, N, S, T, query_key_value

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


def test_kept_set_depends_on_positions_and_numbers_of_heads():
    """Some heads, rows and columns, in another order, equal those of the whole set."""
    random = np.random.default_rng(0)
    heads, rows, columns = (random.permutation(size)[: size - 2] for size in (N, T, S))
    some = np.asarray(FACTOR(Dropout(RNG, 0.3), heads, rows, columns)) > 0
    np.testing.assert_array_equal(some, kept(ROWS, COLUMNS)[np.ix_(heads, rows, columns)])


def test_keys_of_four_words():
    """With keys and queries of 0 and values of 1, the output is the share of kept weights."""
    rng = jax.random.key(0, impl="rbg")
    query, key, value = (np.zeros_like(array) for array in query_key_value())
    dropout = Dropout(rng, 0.3)
    output = np.asarray(attend(query, key, value + 1, dropout=dropout, implementation="tiled"))
    share = np.where(kept(ROWS, COLUMNS, rng), 1 / 0.7, 0).mean(axis=-1)
    np.testing.assert_allclose(output[..., 0], share.T, rtol=1e-5)
    other = kept(ROWS, COLUMNS, jax.random.key(1, impl="rbg"))
    assert not np.array_equal(other, kept(ROWS, COLUMNS, rng))


@pytest.mark.parametrize("batched", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_examples_may_have_different_positions_and_random_keys(batched):
    random = np.random.default_rng(1)
    rows, columns = (random.integers(0, 99, (2, size), dtype=np.int32) for size in (T, S))
    given = [rows, columns, jax.random.split(RNG, 2)]
    together = kept(*(array if n in batched else array[0] for n, array in enumerate(given)))
    for b in range(2):
        alone = (array[b if n in batched else 0] for n, array in enumerate(given))
        np.testing.assert_array_equal(together[b], kept(*alone))
    assert not np.array_equal(*together)


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


@pytest.mark.parametrize("rng", [RNG, jax.random.split(RNG, 2)], ids=["shared", "per example"])
def test_examples_drop_the_weights_of_their_random_key(rng):
    query, key, value = query_key_value(DIMS["B"])
    keep = np.broadcast_to(kept(ROWS, COLUMNS, rng), (2, N, T, S)) / (1 - 0.3)
    expected = oracle.attention(query, key, value, keep=keep).output
    actual = attend(query, key, value, dropout=Dropout(rng, 0.3))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


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
