"""A step with a cache says what a step without one says, for prompts of any length."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention import masks
from attention.decoding import (
    Rules,
    attending,
    beam_search,
    cached,
    greedy,
    nothing_seen,
    prefill,
    recompute,
    stream,
)
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

        def best(step, state, start):
            return beam_search(step, state, start, RULES, beam=3, n_best=2).tokens

        without = recompute(score, batch_size=B, max_length=LONGEST)
        with_cache = cached(read), model.new_cache((B,), LONGEST)
        return [(find(*with_cache, start), find(*without, start)) for find in (say, best)]

    (ours, without), (best, best_without) = both(model)
    np.testing.assert_array_equal(ours, without)
    np.testing.assert_array_equal(best, best_without)
    assert len({*ours.ravel().tolist()}) > 3  # it says something, and in one row it ends
    assert (ours == END).any()


def test_each_token_of_a_beam_has_the_weights_it_was_said_from():
    """Those of one pass over the whole hypothesis, whichever hypotheses it was followed beside."""
    model = small_translator(seed=13, positions="rotary", tie="none", decoder_layers=1)
    source, mask = tokens(B, S, seed=1), masks.lengths(LENGTHS)
    start = jnp.full(B, BOS, jnp.int32)

    def weights(features, extras):
        del features
        return jnp.moveaxis(extras["cross"]["weights"], 1, 0)  # [B, L, N, T, S]

    @jax.jit
    def search(model):
        memory = model.encode(source, mask=mask)

        def read(target, cache):
            features, extras, cache = model.decode(
                target, memory, memory_mask=mask, cache=cache, returning=("weights",)
            )
            return model.logits(features), weights(features, extras)[..., 0, :], cache

        step, state = attending(read), nothing_seen(read, model.new_cache((B,), LONGEST), B)
        answer = beam_search(
            step, state, start, RULES, beam=3, n_best=2, observe=lambda state: state.seen
        )
        heard = jnp.concatenate([jnp.full((B, 2, 1), BOS), answer.tokens[..., :-1]], axis=-1)
        decode = jax.vmap(
            lambda heard: model.decode(heard, memory, memory_mask=mask, returning=("weights",)),
            in_axes=1,
        )
        return answer, jax.vmap(weights)(*decode(heard))  # [n_best, B, L, N, T, S]

    answer, expected = search(model)
    expected = jnp.moveaxis(expected, (1, 4), (0, 2))  # [B, n_best, T, L, N, S]
    said = np.arange(LONGEST) < np.asarray(answer.lengths)[..., None]
    assert answer.observed.shape == expected.shape
    np.testing.assert_allclose(answer.observed[said], expected[said], rtol=1e-4, atol=1e-5)
    assert (np.asarray(answer.observed)[~said] == 0).all()
    assert (answer.tokens[:, 0] != answer.tokens[:, 1]).any()


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


WAYS = {"greedy": greedy, "stream": stream, "beam": functools.partial(beam_search, beam=2)}


@pytest.mark.parametrize("say", WAYS.values(), ids=WAYS)
def test_a_state_without_room_for_the_answer_is_refused_before_the_step_is_called(say):
    def step(state, tokens):
        pytest.fail("it must not be called")

    start = jnp.full(B, BOS, jnp.int32)
    cache = empty_cache((B,), LONGEST + 1, num_kv_heads=1, head_width=2).advance(2)
    with pytest.raises(ValueError, match="a cache of 7 slots cannot hold 8 tokens"):
        say(step, cache, start, RULES)
    short = empty_cache((B,), LONGEST - 1, num_kv_heads=1, head_width=2)
    with pytest.raises(ValueError, match="a cache of 5 slots cannot hold 6 tokens"):
        jax.eval_shape(lambda cache: list(say(step, cache, start, RULES)), short)
    with pytest.raises(ValueError, match="a cache of 5 slots cannot hold 6 tokens"):
        say(step, ({"a part": start}, short), start, RULES)
    _, prefix = recompute(step, batch_size=B, max_length=LONGEST - 1)
    with pytest.raises(ValueError, match="a prefix of at most 5 tokens has no room for 6"):
        say(step, prefix, start, RULES)


def test_a_cache_holds_no_more_than_the_room():
    """A step that counts up says the end, 3, after one token, after two, and too late."""

    def step(cache, tokens):
        return 9 * jax.nn.one_hot(tokens + 1, V), cache.advance(1)

    cache = empty_cache((3,), 2, num_kv_heads=1, head_width=2)
    for say in (greedy, functools.partial(beam_search, beam=1)):
        said = say(step, cache, jnp.array([2, 1, 0], jnp.int32), RULES, room=2)
        np.testing.assert_array_equal(np.ravel(said.lengths), [1, 2, 0])


def test_an_empty_prompt_has_no_last_token():
    with pytest.raises(ValueError, match=r"lengths must lie in 1 to 2 tokens, got \[2 0\]"):
        prefill(None, None, np.ones((2, 2), int), np.array([2, 0]))
