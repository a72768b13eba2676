"""A step with a cache says what a step without one says, for prompts of any length."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention import masks
from attention.decoding import Rules, beam_search, cached, greedy, prefill, recompute, stream
from attention.modules import LanguageModel
from attention.primitives.cache import empty_cache
from tests.attention.modules.inputs import (
    DIMS,
    LENGTHS,
    B,
    S,
    filled,
    small_config,
    small_translator,
    tokens,
)

(V,) = DIMS["V"]
BOS, END, PAD, LONGEST = 1, 3, 0, 6
RULES = Rules(end=END, pad=PAD, max_length=LONGEST)


def say(step, state, start):
    return greedy(step, state, start, RULES).tokens


def test_a_translation_with_a_cache_is_the_one_without():
    model = small_translator(seed=13, positions="rotary", tie="none", decoder_layers=1)
    source, mask = tokens(B, S, seed=1), masks.lengths(LENGTHS)
    start = jnp.full(B, BOS, jnp.int32)

    @jax.jit
    def both(model):
        memory = model.encode(source, mask=mask)
        remembered = model.remember(memory)

        def score(target, index):
            features, _ = model.decode(target, memory, memory_mask=mask)
            return model.logits(features[:, index])

        def read(target, cache):
            features, _, cache = model.decode(target, remembered, memory_mask=mask, cache=cache)
            return model.logits(features), cache

        without = say(*recompute(score, batch_size=B, max_length=LONGEST), start)
        return say(cached(read), model.new_cache((B,), LONGEST), start), without

    ours, without = both(model)
    np.testing.assert_array_equal(ours, without)
    assert len({*ours.ravel().tolist()}) > 3  # it says something, and in one row it ends
    assert (ours == END).any()


def test_ragged_prompts_go_on_as_each_alone():
    config = small_config(positions="alibi", tie="none", decoder_layers=1)
    model = filled(lambda: LanguageModel(config, vocab_size=V, rngs=nnx.Rngs(0)), seed=14)
    prompts, lengths = tokens(B, 5, seed=2), np.array([5, 1, 3])

    @jax.jit
    def together(model, lengths):
        def read(tokens, cache, lengths=None):
            return model(tokens, cache=cache, lengths=lengths)

        return say(cached(read), *prefill(read, model.new_cache((B,), 20), prompts, lengths))

    score = jax.jit(LanguageModel.__call__)
    said = together(model, lengths)
    for row in range(B):
        text = np.asarray(prompts[row])
        for position in range(LONGEST):
            # One shape for all: what stands behind the end has no say.
            known = [*text[: lengths[row]], *said[row, :position]]
            padded = jnp.array([known + [PAD] * (12 - len(known))], jnp.int32)
            likeliest = int(score(model, padded)[0, len(known) - 1].argmax())
            assert likeliest == int(said[row, position])
            if likeliest == END:
                break
    assert len({*said.ravel().tolist()}) > 3
    assert (said == END).any()


WAYS = {"greedy": greedy, "stream": stream, "beam": lambda *given: beam_search(*given, beam=2)}


@pytest.mark.parametrize("say", WAYS.values(), ids=WAYS)
def test_a_state_without_room_for_the_answer_is_refused_before_the_step_is_called(say):
    def step(state, tokens):
        pytest.fail("it must not be called")

    start = jnp.full(B, BOS, jnp.int32)
    cache = empty_cache((B,), LONGEST + 1, num_kv_heads=1, head_width=2).advanced(2)
    with pytest.raises(ValueError, match="a cache of 7 slots has no room for 8 tokens"):
        say(step, cache, start, RULES)
    short = empty_cache((B,), LONGEST - 1, num_kv_heads=1, head_width=2)
    with pytest.raises(ValueError, match="a cache of 5 slots has no room for 6 tokens"):
        jax.eval_shape(lambda cache: list(say(step, cache, start, RULES)), short)
    _, prefix = recompute(step, batch_size=B, max_length=LONGEST - 1)
    with pytest.raises(ValueError, match="a prefix of at most 5 tokens has no room for 6"):
        say(step, prefix, start, RULES)
