"""Draws follow the filtered probabilities, token by token and row by row."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.decoding import Forced, MinP, Rules, Temperature, TopK, TopP, greedy, sample, stream
from tests.attention.decoding.markov import BOS, END, PAD, memory, pick, random_table, step_of

ROWS, LENGTH = 101, 50
PROBABILITIES = np.array([0.05, 0.3, 0.1, 0.25, 0.02, 0.2, 0.08])
V = len(PROBABILITIES)
NEVER = V  # an end that is no token


def keys(rows=ROWS, seed=0):
    return jax.random.split(jax.random.key(seed), rows)


@functools.partial(jax.jit, static_argnames="filters")
def draw(keys, filters=()):
    """Tokens drawn from the same probabilities each time."""
    logits = jnp.log(jnp.asarray(PROBABILITIES, jnp.float32))
    start = jnp.zeros(len(keys), jnp.int32)
    rules = Rules(NEVER, PAD, LENGTH)

    def step(state, tokens):
        return jnp.tile(logits[None], (len(tokens), 1)), state

    return sample(step, (), start, rules, keys, filters=filters)


def distance(counts, probabilities):
    """Pearson's chi-square over its degrees of freedom: about 1, and below 3 for any true draw."""
    assert counts[probabilities == 0].sum() == 0
    counts, probabilities = counts[probabilities > 0], probabilities[probabilities > 0]
    expected = counts.sum() * probabilities / probabilities.sum()
    return ((counts - expected) ** 2 / expected).sum() / (len(counts) - 1)


@pytest.mark.parametrize(
    ("filters", "weights"),
    [
        ((), PROBABILITIES),
        ((Temperature(0.5),), PROBABILITIES**2),
        ((Temperature(1e6),), np.ones(V)),
        ((TopK(3),), PROBABILITIES * (PROBABILITIES > 0.15)),
        ((TopP(0.6),), PROBABILITIES * (PROBABILITIES > 0.15)),
        ((MinP(0.3), Temperature(2.0)), np.sqrt(PROBABILITIES) * (PROBABILITIES > 0.09)),
    ],
    ids=str,
)
def test_tokens_are_drawn_as_often_as_they_should(filters, weights):
    said = np.asarray(draw(keys(), filters).tokens)
    assert distance(np.bincount(said.ravel(), minlength=V), weights) < 3


def test_every_token_and_every_row_has_chance_of_its_own():
    said = np.asarray(draw(keys()).tokens)
    pairs = np.outer(PROBABILITIES, PROBABILITIES).ravel()
    for first, second in ((said[:, :-1], said[:, 1:]), (said[:-1], said[1:])):
        counts = np.bincount((V * first + second).ravel(), minlength=V * V)
        assert distance(counts, pairs) < 1.6


def test_what_a_row_draws_depends_on_its_key_alone():
    said = np.asarray(draw(keys()).tokens)
    np.testing.assert_array_equal(draw(keys()[::-1]).tokens, said[::-1])
    assert (draw(keys(seed=1)).tokens != said).any(axis=1).all()


def test_log_probabilities_are_those_before_the_filters():
    answer = draw(keys(), (TopK(3),))
    expected = np.log(PROBABILITIES)[np.asarray(answer.tokens)]
    np.testing.assert_allclose(answer.log_probs, expected, rtol=1e-5)
    np.testing.assert_allclose(answer.scores, expected.sum(-1), rtol=1e-5)


B = 5
FORCED = Forced(
    np.array([[9, 9], [4, 9], [5, 3], [5, 5], [END, 9]], np.int32), np.array([0, 1, 2, 2, 1])
)
RULES = Rules(END, PAD, max_length=9, min_length=4)


@functools.partial(jax.jit, static_argnames=("filters", "rules"))
def say(table, keys, filters=(), rules=RULES):
    start = jnp.full(B, BOS, jnp.int32)
    options = {"forced": FORCED, "observe": lambda state: state.heard}
    return sample(step_of(table), memory(B), start, rules, keys, filters=filters, **options)


@pytest.mark.parametrize("narrow", [TopK(1), Temperature(1e-3)], ids=str)
def test_the_narrowest_filters_leave_what_greedy_says(narrow):
    table = random_table(B, 6, seed=7)

    @jax.jit
    def likeliest(table):
        start = jnp.full(B, BOS, jnp.int32)
        return greedy(
            step_of(table), memory(B), start, RULES, forced=FORCED, observe=lambda s: s.heard
        )

    for found, expected in zip(say(table, keys(B), (narrow,)), likeliest(table), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_forced_tokens_come_first_and_the_end_not_too_early():
    found = say(random_table(B, 6, seed=7), keys(B))
    for row, (tokens, length) in enumerate(zip(*FORCED, strict=True)):
        np.testing.assert_array_equal(found.tokens[row, :length], tokens[:length])
        np.testing.assert_array_equal(found.log_probs[row, :length], np.zeros(length))
    said = say(
        random_table(B, 6, seed=7), keys(B), (lambda logits: logits.at[:, 1:].set(-jnp.inf),)
    )
    for row, (tokens, length) in enumerate(zip(*FORCED, strict=True)):  # whatever a filter leaves
        np.testing.assert_array_equal(said.tokens[row, :length], tokens[:length])
    assert found.lengths[-1] == 1  # what is forced is forced, an early end too
    assert (found.lengths[:-1] >= 4).all() and (found.lengths[:-1] < 9).any()
    said = np.arange(9) < np.asarray(found.lengths)[:, None]
    np.testing.assert_array_equal(np.asarray(found.tokens)[~said], PAD)
    heard = np.concatenate([np.full((B, 1), BOS), found.tokens[:, :-1]], axis=1)
    np.testing.assert_array_equal(found.observed, np.where(said, heard, 0))


def test_nan_is_seen_in_its_own_row_and_impossible_tokens_are_never_said():
    table = random_table(B, 6, branches=1, seed=7)  # two possible tokens at every step
    clean = say(table, keys(B))
    assert np.isfinite(clean.log_probs).all()
    table[1] = np.nan
    found = say(table, keys(B))
    np.testing.assert_array_equal(np.isnan(found.log_probs[1]), np.arange(9) > 0)
    assert np.isnan(found.scores[1])
    others = np.array([0, 2, 3, 4])
    for leaf, expected in zip(pick(found, others), pick(clean, others), strict=True):
        np.testing.assert_array_equal(leaf, expected)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"keys": jax.random.key(0)}, r"one key for each of the 2 rows of start"),
        ({"forced": Forced(jnp.ones((3, 1)), jnp.ones(3))}, r"tokens \[2, P\] and lengths \[2\]"),
        ({"forced": Forced(jnp.ones((2, 4)), jnp.ones(2))}, "forced has 4 tokens, .* at most 3"),
        ({"forced": Forced(jnp.ones((2, 1)), jnp.array([1, 2]))}, "lengths must lie in 0 to 1"),
        (
            {"forced": Forced(jnp.array([[9], [V]]), jnp.array([0, 1]))},
            f"forced tokens must lie in 0 to {V - 1}",
        ),
    ],
)
def test_what_does_not_fit_is_refused(options, sentence):
    def step(state, tokens):
        return jax.nn.one_hot(tokens, V), state

    options = {"keys": keys(2)} | options
    with pytest.raises(ValueError, match=sentence):
        sample(step, (), jnp.zeros(2, jnp.int32), Rules(END, PAD, 3), **options)


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        (jnp.zeros(2), "start holds the first token of each row, got float32"),
        (jnp.int32(0), r"start needs one token for each row \[B\], got shape \(\)"),
        (jnp.zeros(2, jnp.int8), "the dtype of start, and int8 holds no token 299"),
    ],
)
def test_a_start_that_begins_no_row_is_refused(start, sentence):
    for decode in (greedy, stream):
        with pytest.raises((TypeError, ValueError), match=sentence):
            decode(lambda state, token: (jnp.zeros((2, 300)), state), (), start, Rules(END, PAD, 3))


def test_a_start_may_be_as_narrow_as_the_vocabulary():
    step = lambda state, tokens: (jax.nn.one_hot(jnp.full(2, 255), 256), state)  # noqa: E731
    said = greedy(step, (), jnp.zeros(2, jnp.uint8), Rules(END, PAD, 1))
    np.testing.assert_array_equal(said.tokens, [[255], [255]])


@pytest.mark.parametrize(
    ("lengths", "sentence"),
    [
        ((0, 0), "max_length must be at least 1, got 0"),
        ((3, 4), "min_length must be between 0 and max_length 3, got 4"),
        ((3, -1), "min_length must be between 0 and max_length 3, got -1"),
    ],
)
def test_rules_that_no_answer_can_obey_are_refused(lengths, sentence):
    with pytest.raises(ValueError, match=sentence):
        Rules(END, PAD, *lengths)


def test_without_keys_the_likeliest_of_what_may_be_drawn_is_said():
    def never_the_likeliest(log_probs):
        return jnp.where(log_probs == log_probs.max(-1, keepdims=True), -jnp.inf, log_probs)

    def step(state, tokens):
        return jnp.broadcast_to(jnp.log(PROBABILITIES), (*tokens.shape, V)), state

    rules = Rules(end=-1, pad=PAD, max_length=2)
    said = sample(step, (), jnp.zeros(1, jnp.int32), rules, None, filters=(never_the_likeliest,))
    assert said.tokens.tolist() == [[int(np.argsort(PROBABILITIES)[-2])] * 2]
