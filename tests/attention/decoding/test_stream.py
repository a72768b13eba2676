"""The stream says what the loop says, one token at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.decoding import Forced, Rules, TopK, sample, stream
from tests.attention.decoding.markov import BOS, END, PAD, memory, random_table, step_of

B, L = 3, 7
RULES = Rules(END, PAD, L, min_length=2)
FORCED = Forced(jnp.array([[4], [0], [5]], jnp.int32), jnp.array([1, 0, 1]))
START = jnp.full(B, BOS, jnp.int32)
TABLE = jnp.asarray(random_table(B, 6, seed=2))
STEP = step_of(TABLE)
KEYS = jax.random.split(jax.random.key(3), B)


@pytest.mark.parametrize("keys", [None, KEYS], ids=["greedy", "sample"])
def test_the_stream_says_what_the_loop_says(keys):
    options = {"filters": (TopK(3),), "forced": FORCED}
    expected = jax.jit(lambda: sample(STEP, memory(B), START, RULES, keys, **options))()
    said = np.stack([*stream(STEP, memory(B), START, RULES, keys, **options)], axis=1)
    longest = expected.lengths.max()
    assert said.shape == (B, longest) and longest > expected.lengths.min()
    np.testing.assert_array_equal(said, expected.tokens[:, :longest])


def test_a_token_comes_before_the_next_is_thought_of_and_the_step_compiles_once():
    read, traced = [], []

    def step(state, tokens):
        traced.append(None)
        jax.debug.callback(lambda words: read.append(words.tolist()), tokens, ordered=True)
        return STEP(state, tokens)

    for _ in range(2):
        read.clear()
        words = stream(step, memory(B), START, RULES, forced=FORCED)
        first = next(words).tolist()
        jax.effects_barrier()
        assert read == [[BOS] * B]
        next(words)
        jax.effects_barrier()
        assert read == [[BOS] * B, first]
    assert len(traced) == 1


def test_what_does_not_fit_is_refused_before_the_first_token():
    with pytest.raises(ValueError, match="keys must hold one key"):
        stream(STEP, memory(B), START, RULES, KEYS[:2])
