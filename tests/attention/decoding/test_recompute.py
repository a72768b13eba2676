"""A step without a cache says at each call what the model says of the prefix from scratch."""

import jax
import jax.numpy as jnp
import numpy as np

from attention.decoding import recompute
from tests.attention.modules.inputs import B, S, T, small_translator, tokens

SOURCE, TARGET = tokens(B, S, seed=1), tokens(B, T, seed=2)


def test_a_step_is_the_model_on_the_prefix():
    model = small_translator(encoder_layers=1, decoder_layers=1)

    @jax.jit
    def logits(target):
        return model(SOURCE, target, source_mask=None, memory_mask=None)

    step, state = recompute(
        lambda target, index: logits(target)[:, index], batch_size=B, max_length=T
    )
    for read in range(1, T + 1):
        scores, state = step(state, TARGET[:, read - 1])
        if read not in (1, 2, T):  # each length compiles anew
            continue
        expected = logits(TARGET[:, :read])[:, -1]
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)


def test_the_state_is_what_was_read():
    step, state = recompute(lambda tokens, index: tokens.astype(float), batch_size=2, max_length=3)
    np.testing.assert_array_equal(state.tokens, np.zeros((2, 3)))
    for words, read in (([4, 5], [[4, 0, 0], [5, 0, 0]]), ([6, 7], [[4, 6, 0], [5, 7, 0]])):
        scores, state = step(state, jnp.array(words, jnp.int32))
        np.testing.assert_array_equal(state.tokens, read)
        np.testing.assert_array_equal(scores, np.array(read))
    assert state.index == 2


def test_tokens_may_be_of_any_integers():
    step, state = recompute(lambda tokens, index: tokens.astype(float), batch_size=1, max_length=2)
    _, state = step(state, jnp.array([200], jnp.uint8))
    np.testing.assert_array_equal(state.tokens, [[200, 0]])


def test_a_token_without_a_place_is_not_lost_silently():
    step, state = recompute(lambda tokens, index: tokens.astype(float), batch_size=1, max_length=2)
    for expected in (False, False, True):
        scores, state = step(state, jnp.array([4], jnp.int32))
        assert bool(jnp.isnan(scores).all()) == expected
