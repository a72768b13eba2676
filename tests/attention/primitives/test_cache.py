"""Key/value cache: positions of slots, writing past the end, non-finite keys, gathering rows."""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import attend, masks
from attention.primitives.cache import EMPTY_SLOT, empty_cache, full_cache
from tests.attention.primitives.inputs import DIMS, changed, draw, jitted

B, T, S, N, K, H, WIDTH = *DIMS["BTSNKH"], DIMS["v"][0]
empty = functools.partial(empty_cache, num_kv_heads=K, head_width=H, value_width=WIDTH)


@functools.partial(jitted, static_argnames="num_tokens")
def extend(cache, start, lengths, num_tokens=T):
    """Write keys that contain 100 · row + position, and values that contain its negative."""
    names = 100 * jnp.arange(B)[:, None] + start[:, None] + jnp.arange(num_tokens)[None]
    names = names[..., None, None].astype(float)
    key = jnp.broadcast_to(names, (B, num_tokens, K, H))
    return cache.extend(key, -jnp.broadcast_to(names, (B, num_tokens, K, WIDTH)), lengths)


def test_positions_of_a_ring_of_three_slots():
    table = {
        0: [EMPTY_SLOT, EMPTY_SLOT, EMPTY_SLOT],
        1: [0, EMPTY_SLOT, EMPTY_SLOT],
        3: [0, 1, 2],
        4: [3, 1, 2],
        8: [6, 7, 5],
    }
    ring = empty((len(table),), 3, ring=True)
    ring = ring.advance(8, lengths=np.array([*table]))
    np.testing.assert_array_equal(ring.positions, [*table.values()])
    np.testing.assert_array_equal(empty((2,), 3).positions, [[0, 1, 2], [0, 1, 2]])


@pytest.mark.parametrize("ring", [False, True], ids=["growing", "ring"])
def test_slots_contain_the_newest_tokens(ring):
    size = 7 if ring else 40
    cache, read = empty((B,), size, ring=ring), np.zeros(B, int)
    for lengths in [(T, 0), (1, 1), (T, T), (0, 3), (2, T), (T, T)]:
        before = cache
        cache, view = extend(cache, read, np.array(lengths))
        read += lengths
        np.testing.assert_array_equal(cache.lengths, read)
        for row in range(B):
            stored = {p: p % size for p in range(max(0, read[row] - size), read[row])}
            for position, slot in stored.items():
                assert (cache.key[row, slot] == 100 * row + position).all()
                assert (cache.value[row, slot] == -100 * row - position).all()
            # The view contains each position of before and of now once, and no other.
            oldest = max(0, int(before.lengths[row]) - size)
            positions = np.asarray(view.positions[1])[row]
            found = positions[positions < read[row]]
            np.testing.assert_array_equal(np.sort(found), np.arange(oldest, read[row]))
            keys = np.asarray(view.key[row, :, 0, 0])[positions < read[row]]
            np.testing.assert_array_equal(keys, 100 * row + found)


def test_a_piece_longer_than_the_cache_with_few_valid_tokens():
    cache, _ = extend(empty((B,), 4), np.zeros(B, int), np.array([1, 0]))
    cache, view = extend(cache, np.array([1, 0]), np.array([2, 4]))
    chex.assert_shape(view.key, (B, 4, K, H))
    for row, length in enumerate([3, 4]):
        np.testing.assert_array_equal(cache.key[row, :length, 0, 0] % 100, range(length))
    assert not view.nonfinite_keys.any()


QUERY_MASKS = {
    "none": None,
    "causal": masks.causal(),
    "window": masks.window(before=1),
    "block": masks.causal() & masks.block(2),
    "earlier": masks.causal() & ~masks.window(before=0),
    "prefix": masks.lengths(2),
    "function": masks.from_function(lambda query, key: (key <= query) & ((query - key) % 2 == 0)),
}


def attend_to_cache(cache, piece, lengths, mask=None, implementation=None):
    """Attend from one more piece of tokens; return the output and the new cache."""
    query, key, value = piece
    cache, view = cache.extend(key, value, lengths)
    output = attend(query, view, mask=QUERY_MASKS.get(mask), implementation=implementation)
    return output, cache


decode = jitted(attend_to_cache, static_argnames=("mask", "implementation"))


def pieces(num_tokens, number):
    """Random (query, key, value) of pieces of tokens."""
    shapes = (B, num_tokens, N, H), (B, num_tokens, K, H), (B, num_tokens, K, WIDTH)
    return [draw(*shapes, seed=seed) for seed in range(number)]


class TestPastTheEnd:
    """An error where lengths are known, NaN where they are traced, never a dropped token."""

    @pytest.mark.parametrize(
        "mask, num_tokens, implementation",
        [
            *zip(QUERY_MASKS, itertools.cycle([3, 1]), itertools.repeat("reference"), strict=False),
            ("none", 1, "tiled"),
            ("causal", 3, "tiled"),
        ],
    )
    def test_attend_gives_nan_for_traced_lengths(self, mask, num_tokens, implementation):
        cache = empty((B,), S)
        for number, piece in enumerate(pieces(num_tokens, 15 // num_tokens)):
            lengths = np.array([num_tokens, 1 if number < S else 0])  # the second row just fits
            output, cache = decode(cache, piece, lengths, mask, implementation)
            overflowed = (number + 1) * num_tokens > S
            np.testing.assert_array_equal(np.isnan(output[0]), overflowed)
            assert np.isfinite(output[1]).all()
        np.testing.assert_array_equal(cache.lengths, [15, min(S, 15 // num_tokens)])

    def test_gradients_are_nan_too(self):
        first, second = pieces(T, 2)
        lengths = np.array([T, 1])
        _, cache = decode(empty((B,), S), first, lengths, "causal")

        def loss(query, cache, lengths):
            return attend_to_cache(cache, (query, *second[1:]), lengths, "causal")[0].sum()

        gradient = jitted(jax.grad(loss))(second[0], cache, lengths)
        np.testing.assert_array_equal(np.isnan(gradient).all((1, 2, 3)), [True, False])
        assert np.isfinite(gradient[1]).all()

    @pytest.mark.parametrize("mask", ["causal", "window"])
    def test_a_piece_longer_than_the_cache(self, mask):
        (piece,) = pieces(T, 1)
        output, _ = decode(empty((B,), 4), piece, np.array([T, 4]), mask)
        np.testing.assert_array_equal(np.isnan(output).all((2, 3))[0], [True] * T)
        assert np.isfinite(output[1, :4]).all()

    def test_stored_keys_are_kept_and_flagged(self):
        cache = empty((B,), S)
        for read, lengths in [((0, 0), (T, 1)), ((5, 1), (3, T)), ((8, 6), (1, 1))]:
            cache, view = extend(cache, np.array(read), np.array(lengths))
        np.testing.assert_array_equal(cache.key[:, :, 0, 0], [range(7), range(100, 107)])
        for flags in (cache.nonfinite_keys, view.nonfinite_keys):
            np.testing.assert_array_equal(flags.all((1, 2)), [True, False])
            np.testing.assert_array_equal(flags.any((1, 2)), [True, False])

    def test_known_lengths_give_an_error(self):
        """Also those that jit knows, from shapes and constants."""
        key, value = draw((B, T, K, H), (B, T, K, WIDTH))
        cache = empty((B,), S).advance(3)
        with pytest.raises(ValueError, match="cache of 7 slots cannot hold 8 tokens: make it lar"):
            jax.eval_shape(lambda key: cache.extend(key, value), key)
        with pytest.raises(ValueError, match="7 slots cannot hold 8 tokens"):
            cache.extend(key, value, lengths=np.array([0, 5]))
        with pytest.raises(ValueError, match="4 slots cannot hold 5 tokens"):
            jax.eval_shape(lambda cache: cache.extend(key, value), empty((B,), 4))
        # Every slot may be used.
        jax.eval_shape(lambda: cache.extend(key, value, lengths=np.array([4, 0])))


def test_wrong_arguments_are_refused():
    key, value = draw((B, T, K, H), (B, T, K, WIDTH))
    with pytest.raises(ValueError, match=r"keys of shape \(3, 5, 3, 11\), got \(2, 5, 3, 11\)"):
        empty((3,), S).extend(key, value)
    with pytest.raises(ValueError, match="lengths must lie in 0 to 5 tokens, got"):
        empty((B,), S).extend(key, value, lengths=np.array([0, 6]))
    with pytest.raises(ValueError, match="a cache needs at least 1 slot, got 0"):
        empty((B,), 0)


def test_lengths_of_int64(float64):
    key, value = draw((B, T, K, H), (B, T, K, WIDTH))
    lengths, cache = jnp.array([3, 1], jnp.int64), empty((B,), S)
    extend = jax.jit(lambda cache, lengths: cache.extend(key, value, lengths))
    views = [cache.extend(key, value, lengths)[1]]
    for _ in range(2):
        cache, view = extend(cache, lengths)
        views.append(view)
    np.testing.assert_array_equal(cache.lengths, [6, 2])
    one_more, _ = jax.eval_shape(lambda cache: cache.extend(key[:, :1], value[:, :1]), cache)
    arrays = (cache.lengths, one_more.lengths, *(view.positions[1] for view in views))
    assert {array.dtype for array in arrays} == {jnp.dtype("int32")}


def test_nonfinite_numbers_are_flagged_and_stored_as_zero():
    key, value = draw((B, 3, K, H), (B, 3, K, WIDTH))
    bad_key = changed(key, (0, 1, 2, 5), np.inf)
    bad_value = changed(value, (1, 2, 0, 3), np.nan)
    flags = np.zeros((B, 3, K), bool)
    flags[0, 1, 2] = flags[1, 2, 0] = True
    full = jitted(full_cache)(bad_key, bad_value)
    extend = jitted(lambda cache, *pair: cache.extend(*pair))
    for ring in (False, True):
        cache, view = extend(empty((B,), 3, ring=ring), bad_key, bad_value)
        for found in (cache, full):
            np.testing.assert_array_equal(found.nonfinite_keys, flags)
            np.testing.assert_array_equal(found.key, changed(key, (0, 1, 2, 5), 0))
            np.testing.assert_array_equal(found.value, changed(value, (1, 2, 0, 3), 0))
        np.testing.assert_array_equal(view.nonfinite_keys[:, -3:], flags)
        cache, view = extend(cache, key[:, :1], value[:, :1]) if ring else (cache, view)
        np.testing.assert_array_equal(view.nonfinite_keys[:, :3], flags)  # replaced later in a ring


def swap_rows(cache):
    return cache.gather_rows(lambda array: array[::-1])


compiled_swap = jax.jit(swap_rows)


@pytest.mark.parametrize("size", [19, 40, 5], ids=["with a rest", "whole chunks", "ring"])
@pytest.mark.parametrize("lengths", [(0, 0), (2, 19), (5, 5)], ids=str)
def test_gather_rows(size, lengths):
    cache = empty((B,), size, ring=size == 5)
    cache, _ = extend(cache, np.zeros(B, int), np.array(lengths), num_tokens=19)
    for function in (compiled_swap, swap_rows) if lengths == (2, 19) else (compiled_swap,):
        swapped = jax.device_get(function(cache))
        np.testing.assert_array_equal(swapped.lengths, lengths[::-1])
        for row in range(B):
            for name in ("key", "value", "nonfinite_keys"):
                ours, theirs = (getattr(each, name) for each in (swapped, cache))
                used = min(lengths[1 - row], size)
                np.testing.assert_array_equal(ours[row, :used], theirs[1 - row, :used])


@pytest.mark.parametrize("platform, loops", [("cpu", 1), ("cuda", 0), ("tpu", 0)])
def test_gather_rows_in_place_on_cpu_only(platform, loops):
    lowered = compiled_swap.trace(empty((B,), 40)).lower(lowering_platforms=(platform,))
    assert lowered.as_text().count("stablehlo.while") == loops
