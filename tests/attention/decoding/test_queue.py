"""Rows that take turns say what they say in a batch, and nobody waits for the longest."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from attention.decoding import (
    Forced,
    Queue,
    Rules,
    TopK,
    WithMemory,
    beam_search,
    greedy,
    recompute,
    sample,
    stream,
)
from attention.decoding.hypotheses import batch_axes
from attention.primitives.cache import empty_cache
from tests.attention.decoding.markov import BOS, END, PAD, random_table

Q, V = 37, 7
RULES = Rules(END, PAD, max_length=9)
TABLE = jnp.asarray(random_table(Q, V, branches=2, seed=3))
KEYS = jax.random.split(jax.random.key(1), Q)
FORCED = Forced(
    jnp.asarray(np.random.default_rng(0).integers(3, V, (Q, 3))), jnp.arange(Q, dtype=jnp.int32) % 4
)
START = jnp.full(Q, BOS, jnp.int32)  # 17 places admit two rows at once, which 37 are not


class Read(NamedTuple):
    """The token before the last `[B]`, and how many were read `[B]`."""

    before: Array
    count: Array


def prefill(tables):
    """Of the memory nothing is ever changed; the search reads it at two tokens."""
    rows = len(tables)
    return WithMemory(tables, Read(jnp.full(rows, BOS, jnp.int32), jnp.zeros(rows, jnp.int32)))


def step(known, tokens):
    rows = jnp.arange(len(tokens))
    logits = known.memory[rows, known.state.before, tokens]
    return logits, known._replace(state=Read(tokens, known.state.count + 1))


WAYS = {
    "greedy": greedy,
    "sample": functools.partial(sample, keys=KEYS, filters=(TopK(2),)),
    "beam": functools.partial(beam_search, beam=3, n_best=2, alpha=0.6),
}


@pytest.mark.parametrize("places", [1, 17, 50])
@pytest.mark.parametrize("way", WAYS)
def test_rows_that_take_turns_say_what_they_say_in_a_batch(way, places):
    @jax.jit
    def both():
        decode = functools.partial(
            WAYS[way],
            step,
            start=START,
            rules=RULES,
            forced=FORCED,
            observe=lambda known: known.state.count,
            room=7,
        )
        return decode(state=prefill(TABLE)), decode(state=Queue(prefill, TABLE, places))

    together, in_turn = both()
    for one, other in zip(*map(jax.tree.leaves, (together, in_turn)), strict=True):
        np.testing.assert_array_equal(one, other)
    lengths = np.asarray(together.lengths).reshape(Q, -1)[:, 0]
    assert len({*lengths.tolist()}) > 3  # so that they end at different times
    assert way == "sample" or 0 in lengths  # one of them for want of room


@pytest.mark.parametrize("absent", [[0, 4], [35, 36], [0, 1, 2, 3]])
def test_who_is_absent_is_given_up(absent):
    present = jnp.ones(Q, bool).at[jnp.array(absent)].set(False)
    found, everyone = jax.jit(
        lambda present: [
            greedy(step, Queue(prefill, TABLE, 3, each), START, RULES) for each in (present, None)
        ]
    )(present)
    np.testing.assert_array_equal(found.lengths[jnp.array(absent)], 0)
    np.testing.assert_array_equal(found.scores[jnp.array(absent)], -jnp.inf)
    np.testing.assert_array_equal(found.tokens[present], everyone.tokens[present])


@pytest.mark.parametrize(
    ("present", "steps"),
    [([True] * 8, 9), ([False, *[True] * 7], 4), ([True, *[False] * 7], 9), ([False] * 8, 0)],
)
def test_nobody_waits_for_the_longest(present, steps):
    """Of two places one says nine tokens, while all the others say one each at the other."""
    counted = []

    def speak(known, tokens):
        jax.debug.callback(lambda: counted.append(1))
        ends = known.state + 1 >= known.memory
        logits = jnp.where(ends[:, None] == (jnp.arange(V) == END)[None], 0.0, -1.0)
        return logits, known._replace(state=known.state + 1)

    lengths = jnp.array([9, *[1] * 7])
    queue = Queue(
        lambda lengths: WithMemory(lengths, jnp.zeros_like(lengths)), lengths, 2, jnp.array(present)
    )
    said = jax.jit(lambda: greedy(speak, queue, START[:8], RULES).lengths)()
    jax.effects_barrier()
    np.testing.assert_array_equal(said, np.where(present, lengths, 0))
    assert len(counted) == steps


def test_a_queue_needs_a_place():
    with pytest.raises(ValueError, match="a queue needs at least 1 place, got 0"):
        Queue(prefill, TABLE, 0)


def test_a_stream_is_of_a_batch():
    with pytest.raises(TypeError, match="the rows of a Queue do not go on together"):
        stream(step, Queue(prefill, TABLE, 3), START, RULES)


def test_requests_and_the_start_are_of_the_same_rows():
    with pytest.raises(ValueError, match=r"start has 37 rows.*got shape \(36, 7, 7, 7\)"):
        greedy(step, Queue(prefill, TABLE[1:], 3), START, RULES)


@pytest.mark.parametrize("present", [jnp.full(Q, 2), jnp.ones((Q, 2), bool)])
def test_whether_a_row_is_present_is_a_bool(present):
    with pytest.raises(ValueError, match=r"needs bool \[37\], got"):
        greedy(step, Queue(prefill, TABLE, 3, present), START, RULES)


def test_a_queue_of_nothing_is_refused():
    with pytest.raises(ValueError, match="a queue needs an array of what is known of each row"):
        Queue(prefill, (), 3)


def test_a_step_that_closes_over_all_rows_is_refused():
    def all_of_them(known, tokens):
        return TABLE[:, 0, 0], known

    with pytest.raises(ValueError, match=r"tokens \(1,\) that it reads, got logits \(37, 7\)"):
        greedy(all_of_them, Queue(prefill, TABLE, 1), START, RULES)


def test_hypotheses_of_a_queue_stand_behind_its_rows():
    queue = Queue(lambda tables: tables[:, :1], TABLE, 3)
    with pytest.raises(ValueError, match="state_axes must be 0, or None"):
        beam_search(step, queue, START, RULES, beam=2, state_axes=1)


def test_nobody_is_a_queue_too():
    said = greedy(step, Queue(prefill, TABLE[:0], 3), START[:0], RULES)
    assert said.tokens.shape == (0, 9)


def test_memory_belongs_to_all_hypotheses_of_a_row():
    state = WithMemory({"a": TABLE, "b": None}, (START, WithMemory(START, START)))
    assert batch_axes(state, 0, Q) == [None, 0, None, 0]


def test_what_enters_has_its_rows_in_front():
    def whole(tables):
        _, prefix = recompute(lambda tokens, index: tokens, batch_size=len(tables), max_length=9)
        return prefix

    with pytest.raises(ValueError, match=r"rows in front, got shape \(\) for 1 rows at .index"):
        greedy(step, Queue(whole, TABLE, 3), START, RULES)


def test_a_cache_that_is_too_short_is_refused_and_a_memory_is_not():
    def short(tables, memory=4, size=9):
        new = functools.partial(empty_cache, (len(tables),), num_kv_heads=1, head_width=2)
        return WithMemory((tables, new(memory)), (new(size), prefill(tables).state))

    def read(known, tokens):
        tables, state = known.memory[0], known.state[1]
        logits, inner = step(WithMemory(tables, state), tokens)
        return logits, known._replace(state=(known.state[0], inner.state))

    said = greedy(read, Queue(short, TABLE, 3), START, RULES)
    np.testing.assert_array_equal(said.tokens, greedy(step, prefill(TABLE), START, RULES).tokens)
    with pytest.raises(ValueError, match="a cache of 8 slots cannot hold 9 tokens"):
        greedy(read, Queue(functools.partial(short, size=8), TABLE, 3), START, RULES)
