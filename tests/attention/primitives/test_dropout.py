"""Dropout as a function of (key, head, query position, key position) and of nothing else."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import Dropout, attend
from attention.primitives.dropout import keep_factor
from tests import oracle
from tests.attention.primitives.inputs import DIMS, GROUP, K, N, S, T, query_key_value

KEY = jax.random.key(0)
ROWS, COLUMNS = jnp.arange(T), jnp.arange(S)
SIGMAS = 5  # one false alarm in two million, and the keys are fixed

FACTOR = jax.jit(keep_factor, static_argnums=1)


def kept(rows, columns, key=KEY, rate=0.3, num_heads=N):
    """Whether each weight [..., N, T, S] survives."""
    return np.asarray(FACTOR(Dropout(key, rate), num_heads, rows, columns)) > 0


def correlation(one, other):
    return np.corrcoef(one.reshape(-1), other.reshape(-1))[0, 1]


# The kept set is a function of positions.


def test_moved_positions_move_the_kept_set_along():
    random = np.random.default_rng(0)
    rows, columns = random.permutation(T), random.permutation(S)
    moved = kept(jnp.asarray(rows), jnp.asarray(columns))
    np.testing.assert_array_equal(moved, kept(ROWS, COLUMNS)[:, rows][:, :, columns])


def test_a_block_of_the_rows_and_columns_is_a_block_of_the_kept_set():
    whole = kept(ROWS, COLUMNS)
    for rows, columns in itertools.product((slice(0, 2), slice(2, T)), (slice(0, 4), slice(4, S))):
        np.testing.assert_array_equal(kept(ROWS[rows], COLUMNS[columns]), whole[:, rows, columns])


def test_fewer_heads_keep_what_they_kept():
    np.testing.assert_array_equal(kept(ROWS, COLUMNS, num_heads=2), kept(ROWS, COLUMNS)[:2])


def test_row_by_row_attention_drops_the_same_weights():
    """Values that are a unit matrix show the weights behind the output: zero means dropped."""
    query, key, _ = query_key_value()
    value = jnp.broadcast_to(jnp.eye(S)[:, None, :], (S, K, S))
    dropout = Dropout(KEY, 0.3)
    run = jax.jit(
        lambda query, rows: attend(query, key, value, positions=(rows, COLUMNS), dropout=dropout)
    )
    full = run(query, ROWS)
    np.testing.assert_array_equal(full.swapaxes(0, 1) != 0, kept(ROWS, COLUMNS))
    for t in range(T):
        row = run(query[t : t + 1], ROWS[t : t + 1])
        np.testing.assert_array_equal(row[0] != 0, full[t] != 0)
        np.testing.assert_allclose(row[0], full[t], rtol=1e-5)


def test_positions_count_from_zero_where_none_are_given():
    inputs = query_key_value()
    dropout = Dropout(KEY, 0.3)
    counted = attend(*inputs, dropout=dropout, positions=(ROWS, COLUMNS))
    np.testing.assert_array_equal(attend(*inputs, dropout=dropout), counted)


@pytest.mark.parametrize("query_batch, key_batch", [((2,), ()), ((), (2,)), ((2,), (2,))])
def test_each_example_may_have_its_own_positions(query_batch, key_batch):
    random = np.random.default_rng(1)
    rows = jnp.asarray(random.integers(0, 99, (*query_batch, T)))
    columns = jnp.asarray(random.integers(0, 99, (*key_batch, S)))
    together = kept(rows, columns)
    for b in range(2):
        alone = kept(rows[b] if query_batch else rows, columns[b] if key_batch else columns)
        np.testing.assert_array_equal(together[b], alone)


# Keys.


def test_each_example_may_have_its_own_key():
    keys = jax.random.split(KEY, 6).reshape(3, 2)
    together = kept(ROWS, COLUMNS, keys)
    assert together.shape == (3, 2, N, T, S)
    for i, j in np.ndindex(3, 2):
        np.testing.assert_array_equal(together[i, j], kept(ROWS, COLUMNS, keys[i, j]))
    assert not np.array_equal(together[0, 0], together[1, 0])


def test_examples_that_share_a_key_share_the_dropped_positions():
    query, key, value = query_key_value()
    same = [jnp.stack([array, array]) for array in (query, key, value)]
    output = attend(*same, dropout=Dropout(KEY, 0.3))
    np.testing.assert_array_equal(output[0], output[1])
    output = attend(*same, dropout=Dropout(jax.random.split(KEY, 2), 0.3))
    assert not np.allclose(output[0], output[1])


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_any_kind_of_jax_key(implementation):
    first, second = (kept(ROWS, COLUMNS, jax.random.key(s, impl=implementation)) for s in (0, 1))
    assert not np.array_equal(first, second)


def test_dropout_is_a_pytree_whose_rate_is_static():
    dropout = Dropout(KEY, 0.3)
    assert len(jax.tree.leaves(dropout)) == 1
    inputs = query_key_value()
    passed = jax.jit(lambda dropout: attend(*inputs, dropout=dropout))(dropout)
    np.testing.assert_allclose(passed, attend(*inputs, dropout=dropout), rtol=1e-5, atol=1e-6)


# Values.


def test_kept_weights_grow_by_the_rate_and_dropped_ones_vanish():
    query, key, value = query_key_value(DIMS["B"])
    keys = jax.random.split(KEY, 2)
    factor = kept(ROWS, COLUMNS, keys) / (1 - 0.3)
    expected = oracle.attention(query, key, value, keep=factor).output
    actual = attend(query, key, value, dropout=Dropout(keys, 0.3))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_dropout_keeps_the_dtype(float64, dtype):
    inputs = query_key_value(dtype=dtype)
    assert attend(*inputs, dropout=Dropout(KEY, 0.3)).dtype == jnp.dtype(dtype)


def test_rate_zero_is_no_dropout():
    inputs = query_key_value()
    np.testing.assert_array_equal(attend(*inputs, dropout=Dropout(KEY, 0.0)), attend(*inputs))


def test_an_array_is_no_rate():
    with pytest.raises(TypeError, match="dropout rate must be a number of Python"):
        Dropout(KEY, jnp.float32(0.1))


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, math.nan])
def test_a_bad_rate_is_refused(rate):
    with pytest.raises(ValueError, match=r"dropout rate must lie in \[0, 1\), got"):
        Dropout(KEY, rate)


# Statistics.


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_the_rate_is_honoured(rate):
    bits = kept(jnp.arange(101), jnp.arange(103), rate=rate)
    spread = math.sqrt(rate * (1 - rate) / bits.size)
    assert abs(1 - rate - bits.mean()) < SIGMAS * spread


def test_heads_rows_columns_and_keys_are_uncorrelated():
    """Also at a distance of powers of two, where weak hashes repeat themselves."""
    size = 128
    rows = jnp.arange(size)
    bits = kept(rows, rows, jax.random.split(KEY, 3), rate=0.5, num_heads=4)
    allowed = SIGMAS / math.sqrt(size * (size - 64))
    for one, other in itertools.combinations(range(4), 2):
        assert abs(correlation(bits[:, one], bits[:, other])) < allowed
    for one, other in itertools.combinations(range(3), 2):
        assert abs(correlation(bits[one], bits[other])) < allowed
    for distance in (1, 2, 3, 4, 8, 16, 32, 64):
        assert abs(correlation(bits[..., distance:, :], bits[..., :-distance, :])) < allowed
        assert abs(correlation(bits[..., distance:], bits[..., :-distance])) < allowed
    assert abs(correlation(bits, bits.swapaxes(-1, -2))) < allowed


def test_neighbouring_keys_far_positions_and_single_bits_do_not_matter():
    """Seeds 0, 1, 2 ... are what people use; a long text has positions of many digits."""
    far = jnp.arange(2**20, 2**20 + 128)
    sets = [kept(far, far, jax.random.key(seed), rate=0.5, num_heads=2) for seed in range(4)]
    sets.append(kept(jnp.arange(128), jnp.arange(128), rate=0.5, num_heads=2))
    for one, other in itertools.combinations(sets, 2):
        assert abs(correlation(one, other)) < SIGMAS / math.sqrt(one.size)


def test_every_row_and_every_column_keeps_its_share():
    """A hash that fails on one row would hide in the average."""
    bits = kept(jnp.arange(256), jnp.arange(256), rate=0.5, num_heads=8)
    for axes in ((0, 1), (0, 2), (1, 2)):
        means = bits.mean(axis=axes)
        spread = 0.5 / math.sqrt(bits.size / means.size)
        assert np.abs(means - 0.5).max() < SIGMAS * spread
        assert 0.7 * spread < means.std() < 1.4 * spread or means.size < 50


def test_the_expectation_is_that_of_no_dropout():
    keys, rate = jax.random.split(KEY, 4096), 0.25
    factors = np.asarray(FACTOR(Dropout(keys, rate), 2, ROWS, COLUMNS))
    spread = math.sqrt(rate / (1 - rate) / len(keys))
    assert np.abs(factors.mean(axis=0) - 1).max() < SIGMAS * spread


def test_groups_of_heads_are_numbered_like_heads():
    """Query head n drops what head n drops, whatever key head it reads."""
    query, key, value = query_key_value()
    dropout = Dropout(KEY, 0.3)
    grouped = attend(query, key, value, dropout=dropout)
    repeated = (jnp.repeat(array, GROUP, axis=1) for array in (key, value))
    np.testing.assert_allclose(
        grouped, attend(query, *repeated, dropout=dropout), rtol=1e-5, atol=1e-6
    )
