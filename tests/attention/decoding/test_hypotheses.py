"""States follow their hypotheses; rows of a batch are decoded as each alone."""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import attend
from attention.decoding import GNMT, Beam, Greedy, Sample, StoppingCriteria, decode
from attention.decoding.hypotheses import constant_leaves
from attention.primitives.cache import Constant, empty_cache
from tests.attention.primitives.inputs import jitted

B, S, H, V = 3, 11, 5, 7
PAD, BOS, END = 0, 1, 2
PROMPTS = [[BOS, 4, 5, 3], [BOS], [BOS, 6]]
STOPPING = StoppingCriteria(5, END, 2)
RANDOM = np.random.default_rng(0)
EMBEDDING, PLACE, OUTPUT = (
    jax.device_put(RANDOM.normal(size=shape).astype(np.float32))
    for shape in ((V, H), (S, H), (H, V))
)


def step(state, tokens):
    """Write to the next place of each row, and score from all that the row has read."""
    rows = jnp.arange(len(tokens))
    cache = state["cache"].at[rows, state["lengths"]].set(state["table"].value[tokens])
    lengths = state["lengths"] + 1
    seen = jnp.arange(S)[None] < lengths[:, None]
    features = jnp.where(seen[..., None], jnp.tanh(cache * PLACE[None]), 0).sum(1)
    return 3 * features @ OUTPUT, {**state, "cache": cache, "lengths": lengths}


def prefilled(prompts):
    """Return the state after all tokens but the last of each prompt; 99 in empty places."""
    cache = np.full((len(prompts), S, H), 99, np.float32)
    for row, prompt in enumerate(prompts):
        cache[row, : len(prompt) - 1] = np.asarray(EMBEDDING)[np.array(prompt[:-1], int)]
    lengths = np.array([len(prompt) - 1 for prompt in prompts], np.int32)
    state = {"cache": cache, "lengths": lengths, "table": Constant(EMBEDDING), "none": None}
    return state, np.array([p[-1] for p in prompts], np.int32)


@jitted
def every_strategy(state, start, rng):
    return {
        "greedy": decode(step, state, start, Greedy(), STOPPING),
        "sample": decode(step, state, start, Sample(top_k=5), STOPPING, rng=rng),
        "beam": decode(step, state, start, Beam(4, 3, GNMT(0.6)), STOPPING),
    }


@functools.cache
def together():
    return every_strategy(*prefilled(PROMPTS), jax.random.split(jax.random.key(5), B))


def test_ragged_prompts_are_decoded_as_each_alone():
    keys = jax.random.split(jax.random.key(5), B)
    assert len(np.unique(together()["beam"].tokens[:, 0], axis=0)) == B
    for row in range(B):
        alone = every_strategy(*prefilled(PROMPTS[row : row + 1]), keys[row : row + 1])
        for whole, single in zip(jax.tree.leaves(together()), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(single[0], whole[row], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rank", range(3))
def test_each_token_is_scored_by_the_state_of_its_hypothesis(rank):
    found = jax.tree.map(lambda leaf: leaf[:, rank], together()["beam"])
    state, last = prefilled(PROMPTS)

    @jitted
    def scored(state, last):
        logits, state = step(state, last)
        return jax.nn.log_softmax(logits), state

    for index in range(STOPPING.max_tokens):
        log_probs, state = scored(state, last)
        last = found.tokens[:, index]
        expected = log_probs[np.arange(B), last]
        valid = index < np.asarray(found.lengths)
        np.testing.assert_allclose(
            found.log_probs[:, index][valid], expected[valid], rtol=1e-4, atol=1e-5
        )


def test_leaf_without_the_batch_is_refused():
    state, start = prefilled(PROMPTS)
    state["cache"] = state["cache"][:2]
    with pytest.raises(ValueError, match=r"state\['cache'\] needs the batch of 3 rows in front"):
        decode(step, state, start, Beam(2), STOPPING)


def test_constants_are_found():
    state = [Constant({"a": BOS, "b": None}), (BOS, Constant(Constant(BOS))), BOS]
    assert constant_leaves(state) == [True, False, True, False]


def test_step_may_change_a_constant_without_effect():
    def changing(state, tokens):
        logits, new = step(state, tokens)
        return logits, {**new, "table": Constant(jnp.zeros_like(EMBEDDING))}

    found = jitted(lambda *given: decode(changing, *given, Beam(4, 3, GNMT(0.6)), STOPPING))(
        *prefilled(PROMPTS)
    )
    np.testing.assert_array_equal(found.tokens, together()["beam"].tokens)


@pytest.mark.parametrize(("size", "ring"), [(11, False), (5, True)], ids=["growing", "ring"])
def test_gather_rows_of_a_cache_equals_gathering_plain_arrays(size, ring):
    def attending(state, tokens):
        key = EMBEDDING[tokens][:, None, None]
        cache, view = state.extend(key, key)
        output = attend(key, view)
        return 3 * output[:, 0, 0] @ OUTPUT, cache

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
        return decode(step, state, np.full(B, BOS, np.int32), strategy, StoppingCriteria(6, END))

    cache = empty_cache((B,), 7, num_kv_heads=1, head_width=2).advance(2)
    with pytest.raises(ValueError, match="a cache of 7 slots cannot hold 8 tokens"):
        run(cache)
    short = empty_cache((B,), 5, num_kv_heads=1, head_width=2)
    with pytest.raises(ValueError, match="a cache of 5 slots cannot hold 6 tokens"):
        jax.eval_shape(run, short)
    with pytest.raises(ValueError, match="a cache of 5 slots cannot hold 6 tokens"):
        run(({"a part": jnp.zeros(B)}, short))
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
