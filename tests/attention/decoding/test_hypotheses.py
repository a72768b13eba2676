"""States of every form follow their hypotheses; ragged prompts in a batch are as each alone."""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import attend
from attention.decoding import Rules, TopK, beam_search, greedy, sample
from attention.primitives.cache import empty_cache

LAYERS, B, S, H, V = 2, 3, 11, 5, 7
PAD, BOS, END = 0, 1, 2
PROMPTS = [[BOS, 4, 5, 3], [BOS], [BOS, 6]]
RULES = Rules(END, PAD, max_length=5, min_length=2)
RANDOM = np.random.default_rng(0)
EMBEDDING = jnp.asarray(RANDOM.normal(size=(LAYERS, V, H)), jnp.float32)
PLACE = jnp.asarray(RANDOM.normal(size=(LAYERS, S, H)), jnp.float32)
OUTPUT = jnp.asarray(RANDOM.normal(size=(LAYERS, H, V)), jnp.float32)
# Layers come first, as in a scanned decoder; the table, the scalar and the None have no batch.
AXES = {"cache": 1, "lengths": 0, "table": None, "count": 0, "none": None}


def step(state, tokens):
    """Writes to a cache where each row stands, and scores from all that the row has read."""
    rows = jnp.arange(len(tokens))
    cache = state["cache"].at[:, rows, state["lengths"]].set(state["table"][:, tokens])
    lengths = state["lengths"] + 1
    seen = jnp.arange(S)[None] < lengths[:, None]
    features = jnp.tanh(cache * PLACE[:, None])
    summed = jnp.where(seen[None, :, :, None], features, 0).sum(2)
    logits = 2 * jnp.einsum("lbh,lhv->bv", summed, OUTPUT)
    return logits, {**state, "cache": cache, "lengths": lengths, "count": state["count"] + 1}


def prefilled(prompts):
    """The state after all of each prompt but its last token; what stands behind is garbage."""
    cache = np.full((LAYERS, len(prompts), S, H), 99, np.float32)
    for row, prompt in enumerate(prompts):
        cache[:, row, : len(prompt) - 1] = EMBEDDING[:, np.array(prompt[:-1], int)]
    lengths = np.array([len(prompt) - 1 for prompt in prompts], np.int32)
    state = {"cache": cache, "lengths": lengths, "table": EMBEDDING}
    state |= {"count": np.int32(0), "none": None}
    return jax.tree.map(jnp.asarray, state), jnp.array([p[-1] for p in prompts], jnp.int32)


@jax.jit
def every_way(state, start, keys):
    return {
        "greedy": greedy(step, state, start, RULES),
        "sample": sample(step, state, start, RULES, keys, filters=(TopK(5),)),
        "beam": beam_search(
            step, state, start, RULES, beam=4, n_best=3, alpha=0.6, state_axes=AXES
        ),
    }


@functools.cache
def together():
    return every_way(*prefilled(PROMPTS), jax.random.split(jax.random.key(5), B))


def test_ragged_prompts_in_a_batch_are_as_each_alone():
    keys = jax.random.split(jax.random.key(5), B)
    assert len(np.unique(together()["beam"].tokens[:, 0], axis=0)) == B
    for row in range(B):
        alone = every_way(*prefilled(PROMPTS[row : row + 1]), keys[row : row + 1])
        for whole, single in zip(jax.tree.leaves(together()), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(single[0], whole[row], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rank", range(3))
def test_each_token_is_scored_by_the_state_of_its_own_hypothesis(rank):
    found = jax.tree.map(lambda leaf: leaf[:, rank], together()["beam"])
    state, last = prefilled(PROMPTS)
    for index in range(RULES.max_length):
        logits, state = jax.jit(step)(state, last)
        last = found.tokens[:, index]
        expected = jax.nn.log_softmax(logits)[jnp.arange(B), last]
        said = index < np.asarray(found.lengths)
        np.testing.assert_allclose(
            found.log_probs[:, index][said], expected[said], rtol=1e-4, atol=1e-5
        )


def test_a_leaf_without_the_batch_is_refused():
    state, start = prefilled(PROMPTS)
    with pytest.raises(ValueError, match=r"state\['cache'\] must have the batch of 3 at axis 0"):
        beam_search(step, state, start, RULES, beam=2)
    with pytest.raises(ValueError, match="at axis 7, got shape"):
        beam_search(step, state, start, RULES, beam=2, state_axes={**AXES, "cache": 7})
    with pytest.raises(ValueError, match="state_axes count from the front, from 0 on"):
        beam_search(step, state, start, RULES, beam=2, state_axes=-1)


@pytest.mark.parametrize("ring", [False, True], ids=["growing", "ring"])
@pytest.mark.parametrize("size", [5, 11])
def test_a_cache_follows_as_plain_arrays_do(size, ring):
    """`gather_rows` of a cache equals gathering its arrays as plain leaves."""
    size = size if ring else 11

    def attending(state, tokens):
        key = EMBEDDING[0][tokens][:, None, None]
        cache, view = state.extend(key, key)
        output = attend(
            key,
            *view[:2],
            mask=view.mask,
            positions=(cache.lengths[:, None] - 1, view.positions),
            nonfinite_keys=view.nonfinite_keys,
        )
        return 3 * output[:, 0, 0] @ OUTPUT[1], cache

    class Held(NamedTuple):
        leaves: list

    def held(state, tokens):
        logits, cache = attending(jax.tree.unflatten(structure, state.leaves), tokens)
        return logits, Held(jax.tree.leaves(cache))

    cache = empty_cache((B,), size, num_kv_heads=1, head_width=H, ring=ring)
    leaves, structure = jax.tree.flatten(cache)
    rules, start = Rules(END, PAD, max_length=9), jnp.array([4, 5, 6], jnp.int32)
    search = functools.partial(beam_search, beam=4, n_best=2)
    both = search(attending, cache, start, rules), search(held, Held(leaves), start, rules)
    chex.assert_trees_all_equal(*both)
    assert len(np.unique(both[0].tokens)) > 3
