"""Continuous batching gives the answers of a batch; caches that are too small."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.decoding import (
    GNMT,
    Beam,
    DecodingOptions,
    Greedy,
    History,
    Prefix,
    RepetitionPenalty,
    RowInputs,
    Sample,
    StoppingCriteria,
    decode,
)
from attention.decoding.loop import DecodingLoop, run_in_slots
from attention.primitives.cache import Constant, empty_cache
from tests.attention.decoding.markov import BOS, END, SourceModel, random_table
from tests.attention.primitives.inputs import jitted

Q, V = 37, 7  # 17 slots admit two rows at once, which do not divide 37
STOPPING = StoppingCriteria(9, END)
TABLE = jax.device_put(random_table(Q, V, branches=2, seed=3))
START = np.full(Q, BOS, np.int32)
HISTORY = History(START[:, None], np.ones(Q, np.int32))
PREFIX = Prefix(
    jnp.asarray(np.random.default_rng(0).integers(3, V, (Q, 3))), jnp.arange(Q, dtype=jnp.int32) % 4
)


ROWS = jnp.arange(Q)
MODEL = SourceModel(TABLE)
step = MODEL.step


def prefill(rows):
    """Return the state of these rows of the table, and the first tokens."""
    state, _ = MODEL.prefill(rows[:, None], jnp.ones_like(rows), max_tokens=STOPPING.max_tokens)
    return state, jnp.full_like(rows, BOS)


def run(prefill, requests, slots, step=step, strategy="greedy", **options):
    """Decode the requests in slots."""
    prefix, rng, active = (options.pop(name, None) for name in ("prefix", "rng", "active"))
    number = len(jax.tree.leaves(requests)[0])
    history = jax.tree.map(lambda leaf: leaf[:number], HISTORY)
    loop = DecodingLoop(step, DecodingOptions(STRATEGIES[strategy], STOPPING, **options))
    active = jnp.ones(number, bool) if active is None else active
    return run_in_slots(loop, prefill, requests, RowInputs(history, prefix, rng), active, slots)


STRATEGIES = {"greedy": Greedy(), "sample": Sample(top_k=2), "beam": Beam(3, 2, GNMT(0.6))}


@pytest.mark.parametrize(
    ("name", "slots"), [("greedy", 1), ("greedy", 50), ("sample", 17), ("beam", 17)]
)
def test_answers_equal_those_of_a_batch(name, slots):
    @jitted
    def both():
        given = STRATEGIES[name], STOPPING
        options = {
            "prefix": PREFIX,
            "rng": jax.random.split(jax.random.key(1), Q),
            "observe": lambda result: result.attention,
            "logit_processors": (RepetitionPenalty(1.1),),
        }
        batch = decode(step, *prefill(ROWS), *given, **options)
        return batch, run(prefill, ROWS, slots, strategy=name, **options)

    batch, continuous = both()
    for one, other in zip(*map(jax.tree.leaves, (batch, continuous)), strict=True):
        np.testing.assert_array_equal(one, other)
    lengths = np.asarray(batch.lengths).reshape(Q, -1)[:, 0]
    assert len({*lengths.tolist()}) > 3  # rows end at different steps


def test_short_rows_share_a_slot_beside_a_long_one():
    """Of two slots one decodes nine tokens, while all other rows share the other slot."""
    counted = []

    def counting(state, tokens):
        jax.debug.callback(lambda: counted.append(1))
        lengths, count = state
        ends = count + 1 >= lengths.value
        logits = jnp.where(ends[:, None] == (jnp.arange(V) == END)[None], 0.0, -1.0)
        return logits, (lengths, count + 1)

    def begin(lengths):
        return (Constant(lengths), jnp.zeros_like(lengths)), jnp.full_like(lengths, BOS)

    lengths = jnp.array([9, *[1] * 7], jnp.int32)
    find = jax.jit(lambda active: run(begin, lengths, 2, counting, active=active))
    for active, steps in (
        ([True] * 8, 9),
        ([False, *[True] * 7], 4),
        ([True, *[False] * 7], 9),
        ([False] * 8, 0),
    ):
        counted.clear()
        found = find(np.array(active))
        jax.effects_barrier()
        np.testing.assert_array_equal(found.lengths, np.where(active, lengths, 0))
        np.testing.assert_array_equal(found.scores == -np.inf, ~np.array(active))
        assert len(counted) == steps


def test_step_that_closes_over_all_rows_is_refused():
    with pytest.raises(ValueError, match=r"tokens \(1,\) returns logits \(1, V\), got \(37, 7\)"):
        run(prefill, ROWS, 1, lambda state, tokens: (TABLE[:, 0, 0], state))


B = 3
FIRST = np.full(B, BOS, np.int32)


@pytest.mark.parametrize("strategy", [Greedy(), Beam(2)], ids=str)
def test_cache_that_is_too_small_is_refused_before_the_step_is_called(strategy):
    def never(state, tokens):
        pytest.fail("it must not be called")

    def run(state):
        return decode(never, state, FIRST, strategy, StoppingCriteria(6, END))

    cache = empty_cache((B,), 7, num_kv_heads=1, head_width=2).advance(2)
    with pytest.raises(ValueError, match="a cache of 7 slots cannot hold 8 tokens"):
        run(cache)
    short = empty_cache((B,), 5, num_kv_heads=1, head_width=2)
    for part in (short, ({"a part": jnp.zeros(B)}, short)):
        with pytest.raises(ValueError, match="a cache of 5 slots cannot hold 6 tokens"):
            jax.eval_shape(run, part)
