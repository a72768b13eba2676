"""States of hypotheses: constants, caches that are gathered, and caches that are too small."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import attend
from attention.decoding import GNMT, Beam, Greedy, StoppingCriteria, decode
from attention.primitives.cache import Constant, empty_cache
from tests.attention.decoding.markov import BOS, END, SourceModel, random_table
from tests.attention.primitives.inputs import draw, jitted

B, H, V = 3, 5, 7
START = np.full(B, BOS, np.int32)
MODEL = SourceModel(jax.device_put(random_table(B, V)))


def test_step_may_change_a_constant_without_effect():
    def changing(state, tokens):
        result, (source, read) = MODEL.step(state, tokens)
        return result, (Constant(source.value + 1), read)

    state, _ = MODEL.prefill(jnp.arange(B)[:, None], jnp.ones(B, jnp.int32), max_tokens=5)
    given = state, START, Beam(4, 3, GNMT(0.6)), StoppingCriteria(5, END, 2)
    both = jitted(lambda: [decode(step, *given) for step in (changing, MODEL.step)])()
    chex.assert_trees_all_equal(*both)


@pytest.mark.parametrize(("size", "ring"), [(11, False), (5, True)], ids=["growing", "ring"])
def test_gather_rows_of_a_cache_equals_gathering_plain_arrays(size, ring):
    embedding, output = draw((V, H), (H, V))

    def attending(state, tokens):
        key = jnp.asarray(embedding)[tokens][:, None, None]
        cache, view = state.extend(key, key)
        return 3 * attend(key, view)[:, 0, 0] @ output, cache

    class Plain(NamedTuple):
        leaves: list

    def plain(state, tokens):
        logits, cache = attending(jax.tree.unflatten(structure, state.leaves), tokens)
        return logits, Plain(jax.tree.leaves(cache))

    cache = empty_cache((B,), size, num_kv_heads=1, head_width=H, ring=ring)
    leaves, structure = jax.tree.flatten(cache)
    options = np.array([4, 5, 6], np.int32), Beam(4, 2), StoppingCriteria(9, END)
    both = jitted(
        lambda: (decode(attending, cache, *options), decode(plain, Plain(leaves), *options))
    )()
    chex.assert_trees_all_equal(*both)
    assert len(np.unique(both[0].tokens)) > 3


@pytest.mark.parametrize("strategy", [Greedy(), Beam(2)], ids=str)
def test_cache_that_is_too_small_is_refused_before_the_step_is_called(strategy):
    def never(state, tokens):
        pytest.fail("it must not be called")

    def run(state, step=never):
        return decode(step, state, START, strategy, StoppingCriteria(6, END))

    cache = empty_cache((B,), 7, num_kv_heads=1, head_width=2).advance(2)
    with pytest.raises(ValueError, match="a cache of 7 slots cannot hold 8 tokens"):
        run(cache)
    short = empty_cache((B,), 5, num_kv_heads=1, head_width=2)
    for part in (short, ({"a part": jnp.zeros(B)}, short)):
        with pytest.raises(ValueError, match="a cache of 5 slots cannot hold 6 tokens"):
            jax.eval_shape(run, part)
    found = run(
        (Constant(short), np.zeros(B, np.float32)),
        lambda state, tokens: (jax.nn.one_hot(tokens + 1, V), state),
    )
    np.testing.assert_array_equal(found.lengths, np.ones(B))


@pytest.mark.parametrize("strategy", [Greedy(), Beam(1)], ids=str)
def test_cache_needs_to_hold_max_steps_only(strategy):
    """A step that counts up reaches the end, 3, after one token, after two, and too late."""

    def counting(cache, tokens):
        return 9 * jax.nn.one_hot(tokens + 1, V), cache.advance(1)

    cache = empty_cache((3,), 2, num_kv_heads=1, head_width=2)
    start = np.array([2, 1, 0], np.int32)
    found = decode(counting, cache, start, strategy, StoppingCriteria(6, 3), max_steps=2)
    np.testing.assert_array_equal(found.lengths, [1, 2, 0])
