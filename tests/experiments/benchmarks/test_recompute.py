"""A step without a cache against the model on the whole answer."""

import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.models.recompute import recompute


def test_logits_are_those_of_the_whole_answer():
    seen = []

    def score(tokens, index):
        seen.append((tokens.tolist(), index.tolist()))
        return tokens.astype(jnp.float32)

    step, state = recompute(score, batch_size=2, max_length=3)
    for tokens, read in (([4, 5], [[4, 0, 0], [5, 0, 0]]), ([6, 7], [[4, 6, 0], [5, 7, 0]])):
        scores, state = step(state, jnp.array(tokens, jnp.int32))
        np.testing.assert_array_equal(state.tokens, read)
        np.testing.assert_array_equal(scores, np.array(read, np.float32))
    assert [index for _, index in seen] == [[0, 0], [1, 1]]
    np.testing.assert_array_equal(state.index, [2, 2])


def test_logits_behind_the_end_are_nan():
    step, state = recompute(lambda tokens, index: tokens.astype(float), batch_size=1, max_length=2)
    for expected in (False, False, True):
        scores, state = step(state, jnp.array([4], jnp.int32))
        assert bool(jnp.isnan(scores).all()) == expected
