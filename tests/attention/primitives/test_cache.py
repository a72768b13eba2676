"""The cache itself: which token stands in which slot, what a full one says, how much it holds."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import attend, masks
from attention.primitives.cache import NOWHERE, empty_cache, full_cache
from tests.attention.primitives.inputs import DIMS, draw, query_key_value

B, T, S, K, H, WIDTH = *DIMS["BTSKH"], DIMS["v"][0]
empty = functools.partial(empty_cache, num_kv_heads=K, head_width=H, value_width=WIDTH)


@functools.partial(jax.jit, static_argnames="num_tokens")
def extend(cache, start, lengths, num_tokens=T):
    """Writes keys and values that say their row and position: 100 b + p, and the negative."""
    names = 100 * jnp.arange(B)[:, None] + start[:, None] + jnp.arange(num_tokens)[None]
    names = names[..., None, None].astype(float)
    key = jnp.broadcast_to(names, (B, num_tokens, K, H))
    return cache.extend(key, -jnp.broadcast_to(names, (B, num_tokens, K, WIDTH)), lengths)


def test_a_ring_of_three_slots_by_hand():
    table = {
        0: [NOWHERE, NOWHERE, NOWHERE],
        1: [0, NOWHERE, NOWHERE],
        3: [0, 1, 2],
        4: [3, 1, 2],
        8: [6, 7, 5],
    }
    ring = empty((len(table),), 3, ring=True)
    ring = ring.advanced(8, lengths=jnp.array([*table]))
    np.testing.assert_array_equal(ring.positions, [*table.values()])
    np.testing.assert_array_equal(empty((2,), 3).positions, [0, 1, 2])


@pytest.mark.parametrize("ring", [False, True], ids=["growing", "ring"])
def test_slots_hold_what_was_read_last_whatever_the_pieces(ring):
    size = 7 if ring else 40
    cache, read = empty((B,), size, ring=ring), np.zeros(B, int)
    for lengths in [(T, 0), (1, 1), (T, T), (0, 3), (2, T), (T, T)]:
        before = cache
        cache, seen = extend(cache, jnp.asarray(read), jnp.array(lengths))
        read += lengths
        np.testing.assert_array_equal(cache.lengths, read)
        for row in range(B):
            standing = {p: p % size for p in range(max(0, read[row] - size), read[row])}
            for position, slot in standing.items():
                assert (cache.key[row, slot] == 100 * row + position).all()
                assert (cache.value[row, slot] == -100 * row - position).all()
            # The new tokens see each position of before and of now once, and nothing else.
            oldest = max(0, int(before.lengths[row]) - size)
            positions = np.broadcast_to(seen.positions, (B, seen.key.shape[1]))[row]
            found = positions[positions < read[row]]
            np.testing.assert_array_equal(np.sort(found), np.arange(oldest, read[row]))
            keys = np.asarray(seen.key[row, :, 0, 0])[positions < read[row]]
            np.testing.assert_array_equal(keys, 100 * row + found)


def test_a_ring_sees_its_window():
    ring, (query, key, value) = empty((B,), 3, ring=True), query_key_value((B,))
    key, value = key[:, :T], value[:, :T]
    start = ring.next_positions(T)
    _, seen = ring.extend(key, value)
    through = attend(query, *seen[:2], mask=seen.mask, positions=(start, seen.positions))
    windowed = attend(query, key, value, mask=masks.window(before=2))
    np.testing.assert_allclose(through, windowed, atol=1e-6)


class TestFull:
    """Past the end: an error where it is known, NaN where it is not, never a lost token."""

    def test_what_is_known_is_an_error(self):
        key, value = draw((B, T, K, H), (B, T, K, WIDTH))
        cache, _ = empty((B,), S).extend(key, value)
        with pytest.raises(ValueError, match="of 7 slots has no room for 10 tokens: make it larg"):
            cache.extend(key, value)
        with pytest.raises(ValueError, match="7 slots has no room for 8 tokens"):
            cache.extend(key, value, lengths=jnp.array([0, 3]))
        with pytest.raises(ValueError, match="lengths must lie in 0 to 5 tokens, got"):
            cache.extend(key, value, lengths=jnp.array([0, 6]))
        cache.extend(key, value, lengths=jnp.array([2, 0]))  # a cache may be filled to the brim

    def test_what_does_not_fit_is_refused(self):
        key, value = draw((B, T, K, H), (B, T, K, WIDTH))
        with pytest.raises(ValueError, match=r"reads keys \(3, 5, 3, 11\), got \(2, 5, 3, 11\)"):
            empty((3,), S).extend(key, value)
        with pytest.raises(ValueError, match=r"reads values \(2, 5, 3, 13\), got \(2, 5, 3, 11\)"):
            empty((B,), S).extend(key, key)
        with pytest.raises(TypeError, match="lengths must be integers, got float32"):
            empty((B,), S).extend(key, value, lengths=jnp.array([1.0, 2.0]))

    def test_jit_knows_shapes_and_constants(self):
        key, value = draw((B, T, K, H), (B, T, K, WIDTH))
        cache = empty((B,), S).advanced(3)
        with pytest.raises(ValueError, match="4 slots has no room for 5 tokens"):
            jax.eval_shape(lambda cache: cache.extend(key, value), empty((B,), 4))
        with pytest.raises(ValueError, match="7 slots has no room for 8 tokens"):
            jax.eval_shape(lambda key: cache.extend(key, value), key)

    def test_what_is_traced_is_nan_from_then_on_and_for_that_row_only(self):
        cache, (outputs,) = empty((B,), S), draw((B, T, 6, WIDTH))
        for read, lengths in [((0, 0), (T, 1)), ((5, 1), (3, T)), ((8, 6), (1, 1))]:
            cache, _ = extend(cache, jnp.array(read), jnp.array(lengths))
        lost = np.isnan(cache.poison(outputs)).all((1, 2, 3))
        np.testing.assert_array_equal(lost, [True, False])
        np.testing.assert_array_equal(cache.poison(outputs)[1], outputs[1])
        # What was written stays; what was too much is nowhere.
        np.testing.assert_array_equal(cache.key[:, :, 0, 0], [range(7), range(100, 107)])

    def test_a_ring_never_is(self):
        ring = empty((B,), 3, ring=True)
        ring, _ = extend(ring, jnp.zeros(B, int), None)
        (outputs,) = draw((B, T, 6, WIDTH))
        np.testing.assert_array_equal(ring.poison(outputs), outputs)

    def test_nothing_fits_into_no_slot(self):
        with pytest.raises(ValueError, match="a cache needs at least 1 slot, got 0"):
            empty((B,), 0)


def test_a_full_cache_is_read_and_never_written():
    key, value = draw((B, S, K, H), (B, S, K, WIDTH))
    cache = full_cache(key, value)
    np.testing.assert_array_equal(cache.lengths, [S, S])
    with pytest.raises(ValueError, match="7 slots has no room for 8 tokens"):
        cache.extend(key[:, :1], value[:, :1])


def test_what_is_not_finite_is_marked_and_kept_as_zero():
    key, value = draw((B, 3, K, H), (B, 3, K, WIDTH))
    bad_key = key.at[0, 1, 2, 5].set(jnp.inf)
    bad_value = value.at[1, 2, 0, 3].set(jnp.nan)
    broken = np.zeros((B, 3, K), bool)
    broken[0, 1, 2] = broken[1, 2, 0] = True
    full = full_cache(bad_key, bad_value)
    for ring in (False, True):
        cache, seen = empty((B,), 3, ring=ring).extend(bad_key, bad_value)
        for found in (cache, full):
            np.testing.assert_array_equal(found.broken, broken)
            np.testing.assert_array_equal(found.key, key.at[0, 1, 2, 5].set(0))
            np.testing.assert_array_equal(found.value, value.at[1, 2, 0, 3].set(0))
        np.testing.assert_array_equal(seen.broken[:, -3:], broken)
        cache, seen = cache.extend(key[:, :1], value[:, :1]) if ring else (cache, seen)
        np.testing.assert_array_equal(seen.broken[:, :3], broken)  # a ring forgets them later


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("size", [19, 40], ids=["with a rest", "in whole pieces"])
@pytest.mark.parametrize("lengths", [(0, 0), (2, 19), (5, 5)], ids=str)
def test_rearranged_is_what_every_row_has_read(monkeypatch, platform, size, lengths):
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    cache = empty((B,), size)
    cache, _ = extend(cache, jnp.zeros(B, int), jnp.array(lengths), num_tokens=19)
    swapped = cache.rearranged(lambda array: array[::-1])
    np.testing.assert_array_equal(swapped.lengths, lengths[::-1])
    for row in range(B):
        read = lengths[1 - row]
        np.testing.assert_array_equal(swapped.key[row, :read], cache.key[1 - row, :read])
        np.testing.assert_array_equal(swapped.value[row, :read], cache.value[1 - row, :read])
        np.testing.assert_array_equal(swapped.broken[row, :read], cache.broken[1 - row, :read])


def test_rows_come_first_so_that_any_can_be_chosen():
    cache, _ = extend(empty((B,), S), jnp.zeros(B, int), jnp.array([2, 4]))
    chosen = jax.tree.map(lambda array: array[jnp.array([1, 1, 0])], cache)
    chex.assert_shape(chosen.key, (3, S, K, H))
    chex.assert_shape(chosen.value, (3, S, K, WIDTH))
    np.testing.assert_array_equal(chosen.lengths, [4, 4, 2])


def test_bytes():
    cache = jax.eval_shape(lambda: empty((B,), S, dtype=jnp.bfloat16))
    assert cache.nbytes == B * S * K * (H + WIDTH) * 2
