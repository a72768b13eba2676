"""Logit processors with values computed by hand; greedy decoding and sampling of small models."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.decoding import (
    AllowedTokens,
    Greedy,
    History,
    MinP,
    NoRepeatNgram,
    Prefix,
    RepetitionPenalty,
    Sample,
    StoppingCriteria,
    Temperature,
    TokenStrategy,
    TopK,
    TopP,
    decode,
)
from tests.attention.decoding.markov import BOS, END, PAD, random_table, search
from tests.attention.primitives.inputs import jitted

NAN, INFINITY = float("nan"), float("inf")
# Ties at the second place; the order is neither rising nor falling.
CHANCES = np.array([[0.1, 0.2, 0.4, 0.2, 0.1], [0.0, 0.96, 0.03, 0.01, 0.0]], np.float32)
with np.errstate(divide="ignore"):
    LOGITS = np.log(CHANCES) + np.float32(3)
# What is behind the length of a history has no meaning.
HISTORY = History(
    np.array([[1, 4, 1, 4, 2, 3], [3, 0, 3, 0, 3, 9]], np.int32), np.array([4, 5], np.int32)
)


@pytest.mark.parametrize(
    ("processor", "kept"),
    [
        (TopK(2), [[1, 2], [1, 2]]),  # of equal ones the first
        (TopK(3), [[1, 2, 3], [1, 2, 3]]),
        (TopK(10**12), [[0, 1, 2, 3, 4], [1, 2, 3]]),
        (TopP(0.5), [[1, 2], [1]]),
        (TopP(0.7), [[1, 2, 3], [1]]),
        (TopP(0.98), [[0, 1, 2, 3, 4], [1, 2]]),
        (MinP(0.4), [[1, 2, 3], [1]]),
        (MinP(0.02), [[0, 1, 2, 3, 4], [1, 2]]),
        (NoRepeatNgram(1), [[0, 2, 3], [1, 2]]),
        (NoRepeatNgram(2), [[0, 2, 3, 4], [1, 2, 3]]),  # 4 1 and 3 0 occurred
        (NoRepeatNgram(4), [[0, 1, 2, 3, 4], [1, 2, 3]]),
        (NoRepeatNgram(7), [[0, 1, 2, 3, 4], [1, 2, 3]]),
        (
            AllowedTokens(lambda past: jnp.arange(5)[None] < past.length[:, None] - 1),
            [[0, 1, 2], [1, 2, 3]],
        ),
    ],
)
def test_kept_logits_are_unchanged_and_others_excluded(processor, kept):
    found = jitted(processor)(LOGITS, HISTORY)
    expected = np.full_like(found, -np.inf)
    for row, tokens in enumerate(kept):
        expected[row, tokens] = LOGITS[row, np.array(tokens)]
    np.testing.assert_array_equal(found, expected)


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits():
    logits = np.float32([[2.0, 2.0, -3.0, -3.0, -3.0], [2.0, 2.0, -3.0, -3.0, -np.inf]])
    expected = [[2.0, 1.0, -3.0, -3.0, -6.0], [1.0, 2.0, -3.0, -6.0, -np.inf]]
    np.testing.assert_array_equal(jitted(RepetitionPenalty(2.0))(logits, HISTORY), expected)


def test_top_p_1_keeps_what_rounding_would_lose():
    certain = np.float32([0.0, -30.0])  # the first has probability 1 in float32
    np.testing.assert_array_equal(jitted(TopP(1))(certain), certain)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("processor", [TopP(1e-40), TopP(1e-8), MinP(1.0), TopK(1)], ids=str)
def test_the_most_likely_token_is_kept_alone(processor, dtype):
    """Small shares are 0 in the dtype of the logits; processors compute in float32 at least."""
    found = np.asarray(jitted(processor)(LOGITS.astype(dtype), HISTORY))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found > -np.inf, np.arange(5) == np.array([[2], [1]]))


@pytest.mark.parametrize("temperature", [1e-30, 0.5, 1e30])
def test_temperature_divides(temperature):
    logits = np.float16([[-3.0, -1.0, -2.0], [-np.inf, -np.inf, 5.0], [-np.inf] * 3])
    found = jitted(Temperature(temperature))(logits)
    expected = logits.astype(np.float32) / np.float32(temperature)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_array_equal(found[:2].argmax(-1), [1, 2])


NUMBERS = [
    *[(Temperature, "temperature", number) for number in (0, 1e-39, NAN, INFINITY)],
    *[(TopK, "top_k", number) for number in (0, 2.5, True)],
    *[(TopP, "top_p", number) for number in (0, 1.1, NAN)],
    *[(MinP, "min_p", number) for number in (0, 1.1, NAN)],
    *[(RepetitionPenalty, "penalty", number) for number in (0, NAN, INFINITY)],
    *[(NoRepeatNgram, "size", number) for number in (0, 2.0, NAN)],
]


@pytest.mark.parametrize(("kind", "name", "number"), NUMBERS)
def test_numbers_out_of_range_are_refused(kind, name, number):
    """The arguments of the processors that `Sample` applies have its names and limits."""
    assert getattr(kind(**{name: 1}), name) == 1
    for refusing in (kind, Sample) if name in Sample.__dataclass_fields__ else (kind,):
        with pytest.raises(ValueError, match=f"must be .* got {number}"):
            refusing(**{name: number})


V = 17
SCRIPTS = {
    "rows end": (
        {"stop": jnp.array([END])},
        [[5, END, 6, 7, 8, 9], [8, 9, 3, END, 8, 9], [END, 4, END, 4, 8, 9]],
        [[5, END], [8, 9, 3, END], [END]],
    ),
    "several ends and stop sequences": (
        {"stop": (3, (7, 8), (5, 5, 5))},
        [[7, 8, 9, 5, 4, 4], [6, 5, 5, 5, 7, 4], [5, 7, 8, 3, 7, 4], [8, 7, 9, 7, 8, 4]],
        [[7, 8], [6, 5, 5, 5], [5, 7, 8], [8, 7, 9, 7, 8]],
    ),
    "the end is excluded before min_tokens": (
        {"stop": (3, (7, 8)), "min_tokens": 4},
        [[7, 8, 9, 7, 8, 4], [7, 8, 7, 8, 9, 3], [3, 8, 9, 9, 3, 4]],
        [[7, 0, 9, 7, 8], [7, 0, 7, 8], [0, 8, 9, 9, 3]],
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripted_answers(name):
    """Step i prefers column i of a script, then token 0; each token is read by the next step."""
    limits, script, expected = SCRIPTS[name]
    script, read = jax.device_put(np.array(script, np.int32)), []

    def step(count, tokens):
        jax.debug.callback(lambda tokens: read.append(tokens.tolist()), tokens, ordered=True)
        likely = jnp.take_along_axis(script, count[:, None], axis=1)[:, 0]
        return 5.0 * jax.nn.one_hot(likely, V) - 7.0, count + 1

    start = jnp.full(len(script), END, jnp.int32)  # it does not end an answer
    stopping = StoppingCriteria(6, **limits)
    found = decode(step, jnp.zeros(len(script), jnp.int32), start, Greedy(), stopping)
    jax.effects_barrier()
    padded = np.array([row + [PAD] * (6 - len(row)) for row in expected])
    np.testing.assert_array_equal(found.tokens, padded)
    steps = max(map(len, expected))
    np.testing.assert_array_equal(np.transpose(read)[:, 1:], padded[:, : steps - 1])


ROWS, LENGTH = 101, 50
PROBABILITIES = np.array([0.05, 0.3, 0.1, 0.25, 0.02, 0.2, 0.08])
FEW = len(PROBABILITIES)


def keys(rows=ROWS, seed=0):
    return jax.random.split(jax.random.key(seed), rows)


@functools.partial(jitted, static_argnames=("strategy", "processors"))
def draw(rng, strategy=Sample(), processors=()):  # noqa: B008 - frozen
    """Draw tokens with the same probabilities at every step."""
    logits = jnp.log(jnp.asarray(PROBABILITIES, jnp.float32))

    def step(state, tokens):
        return jnp.tile(logits[None], (len(tokens), 1)), state

    start = jnp.zeros(len(rng), jnp.int32)
    stopping = StoppingCriteria(LENGTH)
    return decode(step, (), start, strategy, stopping, rng=rng, logit_processors=processors)


def distance(counts, probabilities):
    """Return Pearson's chi-square per degree of freedom: about 1, below 3 for any true draw."""
    assert counts[probabilities == 0].sum() == 0
    counts, probabilities = counts[probabilities > 0], probabilities[probabilities > 0]
    expected = counts.sum() * probabilities / probabilities.sum()
    return ((counts - expected) ** 2 / expected).sum() / (len(counts) - 1)


@pytest.mark.parametrize(
    ("strategy", "processors", "weights"),
    [
        (Sample(), (), PROBABILITIES),
        (Sample(temperature=jnp.float32(0.5)), (), PROBABILITIES**2),
        (Sample(top_k=3), (), PROBABILITIES * (PROBABILITIES > 0.15)),
        (Sample(top_p=0.6), (), PROBABILITIES * (PROBABILITIES > 0.15)),
        (Sample(2.0, min_p=0.5), (), np.sqrt(PROBABILITIES) * (PROBABILITIES > 0.075)),
        (Sample(), (MinP(0.3), Temperature(2.0)), np.sqrt(PROBABILITIES) * (PROBABILITIES > 0.09)),
    ],
    ids=str,
)
def test_frequencies_equal_probabilities(strategy, processors, weights):
    tokens = np.asarray(draw(keys(), strategy, processors).tokens)
    assert distance(np.bincount(tokens.ravel(), minlength=FEW), weights) < 3


def test_tokens_and_rows_are_independent():
    tokens = np.asarray(draw(keys()).tokens)
    pairs = np.outer(PROBABILITIES, PROBABILITIES).ravel()
    for first, second in ((tokens[:, :-1], tokens[:, 1:]), (tokens[:-1], tokens[1:])):
        counts = np.bincount((FEW * first + second).ravel(), minlength=FEW**2)
        assert distance(counts, pairs) < 1.6


def test_draws_of_a_row_depend_on_its_key_alone():
    tokens = np.asarray(draw(keys()).tokens)
    np.testing.assert_array_equal(draw(keys()[::-1]).tokens, tokens[::-1])
    assert (draw(keys(seed=1)).tokens != tokens).any(axis=1).all()


B, STOPPING = 5, StoppingCriteria(9, END, 4)
PREFIX = Prefix(
    np.array([[9, 9], [4, 9], [5, 3], [5, 5], [END, 9]], np.int32), np.array([0, 1, 2, 2, 1])
)


def test_prefix_comes_first_and_the_end_not_too_early():
    given = {"strategy": Sample(), "stopping": STOPPING}
    found = search(random_table(B, 6, seed=7), PREFIX, keys(B), **given)
    for row, (tokens, length) in enumerate(zip(*PREFIX, strict=True)):
        np.testing.assert_array_equal(found.tokens[row, :length], tokens[:length])
        np.testing.assert_array_equal(found.log_probs[row, :length], np.zeros(length))
    assert found.lengths[-1] == 1  # a prefix may end the answer before min_tokens
    assert (found.lengths[:-1] >= 4).all() and (found.lengths[:-1] < 9).any()
    valid = np.arange(9) < np.asarray(found.lengths)[:, None]
    np.testing.assert_array_equal(np.asarray(found.tokens)[~valid], PAD)
    read = np.concatenate([np.full((B, 1), BOS), found.tokens[:, :-1]], axis=1)
    np.testing.assert_array_equal(found.observed["read"], np.where(valid, read, 0))


@dataclass(frozen=True)
class SecondBest(TokenStrategy):
    """A strategy of a user."""

    def choose(self, logits, rng):
        return jnp.argsort(-logits, axis=-1)[:, 1]


def test_user_defined_strategy():
    found = draw(keys(2), SecondBest(), (RepetitionPenalty(1.0),))
    assert (found.tokens == np.argsort(-PROBABILITIES)[1]).all()


ONES = jnp.ones((2, 4), int)
MISTAKES = {
    "sampling needs random numbers: pass rng": {"strategy": Sample()},
    "rng needs one random key for each of 2 rows, got": {"rng": jax.random.key(0)},
    r"tokens \[2, P\] and lengths \[2\]": {"prefix": Prefix(ONES[:1], jnp.array([1]))},
    "prefix must be integers, got float32": {"prefix": Prefix(jnp.ones((2, 1)), jnp.array([1, 1]))},
    "start must be integers, got float32": {"start": jnp.array([1.7, 2.9])},
    "lengths must lie in 0 to 4": {"history": History(ONES, jnp.array([4, 5]))},
    "must return bool .* got float32": {"logit_processors": [AllowedTokens(lambda _: jnp.ones(V))]},
    "lengths must lie in 0 to 1": {"prefix": Prefix(ONES[:, :1], jnp.array([1, 2]))},
    "min_tokens must be at least 0 and at most 3, got 4": {"stopping": lambda: (3, END, 4)},
    "a stop sequence needs at least 1 token": {"stopping": lambda: (3, (2, ()))},
    r"state\['a'\] needs the batch of 2 rows in front": {"state": {"a": jnp.zeros(3)}},
}


@pytest.mark.parametrize("words", MISTAKES)
def test_arguments_that_do_not_fit_are_refused(words):
    given = {
        "step": lambda state, tokens: (jax.nn.one_hot(tokens, V), state),
        "state": (),
        "start": jnp.zeros(2, jnp.int32),
        "strategy": Greedy(),
        "stopping": lambda: (3, END),
    }
    given |= MISTAKES[words]
    with pytest.raises((TypeError, ValueError), match=words):
        decode(**given | {"stopping": StoppingCriteria(*given["stopping"]())})
