"""Which entries are dropped, by how many, and what a dropped one sends on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.modules.dropout import drop

RATE = 0.3
KEY = jax.random.key(0)
ONES = jnp.ones((7, 111, 101))


def test_as_many_are_dropped_as_the_rate_says_in_rows_and_columns():
    dropped = np.asarray(drop(ONES, RATE, KEY)) == 0
    for axes in ((0, 1, 2), (0, 1), (0, 2)):
        shares = dropped.mean(axis=axes)
        deviation = np.sqrt(RATE * (1 - RATE) / (dropped.size / shares.size))
        assert np.abs(shares - RATE).max() < 5 * deviation
        if shares.size > 1:  # neither more alike than chance makes them, nor less
            assert 0.7 < shares.std() / deviation < 1.3


def test_what_stays_grows_and_keeps_its_dtype():
    kept = drop(ONES.astype(jnp.bfloat16), RATE, KEY)
    assert kept.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.unique(kept), jnp.array([0, 1 / (1 - RATE)], jnp.bfloat16))


def test_neighbours_rows_and_keys_are_dropped_apart():
    first, second = (np.asarray(drop(ONES, RATE, jax.random.key(seed))) == 0 for seed in (0, 1))
    for one, other in (
        (first, second),
        (first[:, 1:], first[:, :-1]),
        (first[..., 1:], first[..., :-1]),
    ):
        both = np.corrcoef(one.ravel(), other.ravel())[0, 1]
        assert abs(both) < 5 / np.sqrt(one.size)


def test_each_example_may_have_its_own_key():
    keys = jax.random.split(KEY, 3)
    inputs = jnp.ones((3, 5, 4))
    together = jax.jit(jax.vmap(lambda inputs, key: drop(inputs, RATE, key)))(inputs, keys)
    apart = [drop(each, RATE, key) for each, key in zip(inputs, keys, strict=True)]
    np.testing.assert_array_equal(together, apart)
    with pytest.raises(ValueError, match="drop takes one key, got \\(3,\\) of them"):
        drop(inputs, RATE, keys)


def test_nothing_is_left_of_what_is_dropped():
    slope = jax.grad(lambda inputs: drop(inputs, RATE, KEY).sum())
    dropped = np.asarray(drop(ONES, RATE, KEY)) == 0
    poisoned = jnp.where(dropped, jnp.nan, ONES)
    np.testing.assert_array_equal(drop(poisoned, RATE, KEY), drop(ONES, RATE, KEY))
    np.testing.assert_allclose(slope(poisoned), np.where(dropped, 0, 1 / (1 - RATE)))


def test_without_a_key_or_a_rate_nothing_is():
    assert drop(ONES, RATE, None) is ONES
    assert drop(ONES, 0.0, KEY) is ONES
