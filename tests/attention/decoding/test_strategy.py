"""Greedy decoding and sampling of scripted and random models."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.decoding import (
    AllowedTokens,
    Greedy,
    MinP,
    Prefix,
    RepetitionPenalty,
    Sample,
    StoppingCriteria,
    Temperature,
    TokenStrategy,
    TopK,
    decode,
)
from tests.attention.decoding.markov import (
    BOS,
    END,
    PAD,
    empty_state,
    jit,
    pick,
    random_table,
    step_of,
)
from tests.attention.primitives.inputs import jitted

V = 17


def scripted(script, max_tokens, *, stop=END, min_tokens=0, read=None, start=None):
    """Decode greedily with a step that prefers column i of the script at its i-th call."""
    script = jax.device_put(np.array(script, np.int32))

    def step(count, tokens):
        if read is not None:
            jax.debug.callback(lambda tokens: read.append(tokens.tolist()), tokens, ordered=True)
        likely = jnp.take_along_axis(script, count[:, None], axis=1)[:, 0]
        return 5.0 * jax.nn.one_hot(likely, V) - 7.0, count + 1

    start = jnp.full(len(script), BOS, jnp.int32) if start is None else start
    stopping = StoppingCriteria(max_tokens, stop, min_tokens)
    found = decode(step, jnp.zeros(len(script), jnp.int32), start, Greedy(), stopping)
    jax.effects_barrier()
    return found.tokens


def test_each_token_is_read_by_the_next_step():
    read = []
    found = scripted([[5, 6, 7], [8, 9, 3]], 3, read=read)
    np.testing.assert_array_equal(found, [[5, 6, 7], [8, 9, 3]])
    assert read == [[BOS, BOS], [5, 8], [6, 9]]


def test_ended_rows_are_padded_until_every_row_has_ended():
    read = []
    script = [[5, END, 6, 7, 8, 9], [8, 9, 3, END, 8, 9], [END, 4, END, 4, 8, 9]]
    found = scripted(script, 6, read=read)
    np.testing.assert_array_equal(found[:, :4], [[5, END, 0, 0], [8, 9, 3, END], [END, 0, 0, 0]])
    np.testing.assert_array_equal(found[:, 4:], np.full((3, 2), PAD))
    assert len(read) == 4


def test_start_token_that_is_the_end_does_not_end_the_row():
    found = scripted([[5, END]], 2, start=jnp.array([END], jnp.int32))
    np.testing.assert_array_equal(found, [[5, END]])


def test_several_ends_and_stop_sequences():
    script = [[7, 8, 9, 5, 4], [6, 5, 5, 5, 7], [5, 7, 8, 3, 7], [8, 7, 9, 7, 8]]
    found = scripted(script, 5, stop=(3, (7, 8), (5, 5, 5)))
    expected = [[7, 8, 0, 0, 0], [6, 5, 5, 5, 0], [5, 7, 8, 0, 0], [8, 7, 9, 7, 8]]
    np.testing.assert_array_equal(found, expected)


def test_stop_sequence_is_not_completed_before_min_tokens():
    """The token that would complete it is excluded, so the first token of all is chosen."""
    script = [[7, 8, 9, 7, 8], [7, 8, 7, 8, 9], [3, 8, 9, 9, 3]]
    found = scripted(script, 5, stop=(3, (7, 8)), min_tokens=4)
    np.testing.assert_array_equal(found, [[7, 0, 9, 7, 8], [7, 0, 7, 8, 0], [0, 8, 9, 9, 3]])


def test_first_of_equal_tokens_is_chosen():
    found = decode(
        lambda state, tokens: (jnp.array([[0.0, 0.0, 0.0, 3.0, 3.0]]), state),
        (),
        jnp.array([BOS], jnp.int32),
        Greedy(),
        StoppingCriteria(2, END),
    ).tokens
    np.testing.assert_array_equal(found, [[3, 3]])


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
        (Sample(temperature=0.5), (), PROBABILITIES**2),
        (Sample(temperature=1e6), (), np.ones(FEW)),
        (Sample(top_k=3), (), PROBABILITIES * (PROBABILITIES > 0.15)),
        (Sample(top_p=0.6), (), PROBABILITIES * (PROBABILITIES > 0.15)),
        (Sample(2.0, min_p=0.5), (), np.sqrt(PROBABILITIES) * (PROBABILITIES > 0.075)),
        (
            Sample(),
            (MinP(0.3), Temperature(2.0)),
            np.sqrt(PROBABILITIES) * (PROBABILITIES > 0.09),
        ),
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


def test_log_probs_are_those_before_processors():
    found = draw(keys(), Sample(temperature=0.5), (TopK(3),))
    expected = np.log(PROBABILITIES)[np.asarray(found.tokens)]
    np.testing.assert_allclose(found.log_probs, expected, rtol=1e-5)
    np.testing.assert_allclose(found.scores, expected.sum(-1), rtol=1e-5)


B = 5
PREFIX = Prefix(
    np.array([[9, 9], [4, 9], [5, 3], [5, 5], [END, 9]], np.int32), np.array([0, 1, 2, 2, 1])
)


@jit
def run(table, rng=None, *, strategy, stopping=StoppingCriteria(9, END, 4), options=()):  # noqa: B008 - frozen
    return decode(
        step_of(table),
        empty_state(B),
        jnp.full(B, BOS, jnp.int32),
        strategy,
        stopping,
        rng=rng,
        prefix=PREFIX,
        observe=lambda result: result.attention,
        **dict(options),
    )


@pytest.mark.parametrize("strategy", [Sample(top_k=1), Sample(temperature=1e-3)], ids=str)
def test_narrow_sampling_equals_greedy(strategy):
    table = random_table(B, 6, seed=7)
    sampled = run(table, keys(B), strategy=strategy)
    greedy = run(table, strategy=Greedy())
    for found, expected in zip(jax.tree.leaves(sampled), jax.tree.leaves(greedy), strict=True):
        np.testing.assert_array_equal(found, expected)


def never(logits, history):
    return jnp.full_like(logits, -jnp.inf).at[:, 0].set(0)


@pytest.mark.parametrize("processors", [(), (never,)])
def test_prefix_comes_first_and_the_end_not_too_early(processors):
    options = (("logit_processors", processors),)
    found = run(random_table(B, 6, seed=7), keys(B), strategy=Sample(), options=options)
    for row, (tokens, length) in enumerate(zip(*PREFIX, strict=True)):
        np.testing.assert_array_equal(found.tokens[row, :length], tokens[:length])
        np.testing.assert_array_equal(found.log_probs[row, :length], np.zeros(length))
    assert found.lengths[-1] == 1  # a prefix may end the answer before min_tokens
    if not processors:
        assert (found.lengths[:-1] >= 4).all() and (found.lengths[:-1] < 9).any()
    valid = np.arange(9) < np.asarray(found.lengths)[:, None]
    np.testing.assert_array_equal(np.asarray(found.tokens)[~valid], PAD)
    read = np.concatenate([np.full((B, 1), BOS), found.tokens[:, :-1]], axis=1)
    np.testing.assert_array_equal(found.observed, np.where(valid, read, 0))


def test_history_has_start_prefix_and_answer():
    """Only tokens that the history does not contain, until none is left."""

    def unseen(history):
        used = jax.nn.one_hot(history.tokens, 6, dtype=bool)
        valid = jnp.arange(history.tokens.shape[1])[None] < history.length[:, None]
        return ~(used & valid[..., None]).any(1)

    table = jnp.asarray(random_table(B, 6, seed=7)).at[..., BOS].set(99)
    options = (("logit_processors", (AllowedTokens(unseen),)),)
    found = run(jnp.maximum(table, -50), strategy=Greedy(), options=options)
    for tokens in np.asarray(found.tokens[:3, :4]).tolist():
        assert BOS not in tokens and len({*tokens}) == 4


def test_nan_stays_in_its_row_and_impossible_tokens_are_not_drawn():
    table = random_table(B, 6, branches=1, seed=7)  # two possible tokens at every step
    clean = run(table, keys(B), strategy=Sample())
    assert np.isfinite(clean.log_probs).all()
    table[1] = np.nan
    found = run(table, keys(B), strategy=Sample())
    np.testing.assert_array_equal(np.isnan(found.log_probs[1]), np.arange(9) > 0)
    assert np.isnan(found.scores[1])
    others = np.array([0, 2, 3, 4])
    kept, expected = (jax.tree.leaves(pick(one, others)) for one in (found, clean))
    for leaf, other in zip(kept, expected, strict=True):
        np.testing.assert_array_equal(leaf, other)


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
    "rng needs one random key for each of 2 rows": {"rng": jax.random.key(0)},
    r"tokens \[2, P\] and lengths \[2\]": {"prefix": Prefix(jnp.ones((3, 1)), jnp.ones(3))},
    "tokens of a prefix must be integers": {"prefix": Prefix(jnp.ones((2, 1)), jnp.ones(2))},
    "a prefix needs 1 to max_tokens 3 tokens, got 4": {"prefix": Prefix(ONES, ONES[:, 0])},
    "lengths must lie in 0 to 1": {"prefix": Prefix(ONES[:, :1], jnp.array([1, 2]))},
    r"start needs one integer token per row \[B\], got float32": {"start": jnp.zeros(2)},
    r"start needs one integer token per row \[B\], got int32 \(\)": {"start": jnp.int32(0)},
    "max_steps must be between 1 and max_tokens 3, got 0": {"max_steps": 0},
    "max_steps must be between 1 and max_tokens 3, got 4": {"max_steps": 4},
    r"returns logits \(2, V\)": {"step": lambda state, tokens: (jnp.zeros((3, V)), state)},
    r"state\['a'\] needs the batch of 2 rows in front": {"state": {"a": jnp.zeros(3)}},
}


@pytest.mark.parametrize("words", MISTAKES)
def test_arguments_that_do_not_fit_are_refused(words):
    given = {
        "step": lambda state, tokens: (jax.nn.one_hot(tokens, V), state),
        "state": (),
        "start": jnp.zeros(2, jnp.int32),
        "strategy": Greedy(),
        "stopping": StoppingCriteria(3, END),
    }
    with pytest.raises((TypeError, ValueError), match=words):
        decode(**given | MISTAKES[words])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"max_tokens": 3, "min_tokens": 4}, "between 0 and max_tokens 3, got 4"),
        ({"max_tokens": 3, "min_tokens": -1}, "between 0 and max_tokens 3, got -1"),
        ({"max_tokens": 3, "stop": (2, ())}, "a stop sequence needs at least 1 token"),
    ],
)
def test_impossible_stopping_criteria_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        StoppingCriteria(**options)
