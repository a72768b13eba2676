"""Beam search against everything a small model can say, and on models scripted by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.decoding import Forced, Rules, beam_search, greedy
from tests.attention.decoding.markov import (
    BOS,
    END,
    PAD,
    assert_says,
    everything,
    memory,
    narrow_beam,
    penalty,
    pick,
    random_table,
    step_of,
)

B = 7
# Rows that must say nothing, one and two tokens; the last may say none of its own.
FORCED = [[], [4], [5, 3], [4, 4], [], [3], [END]]
PADDED = Forced(
    np.array([[*row, 9, 9][:2] for row in FORCED], np.int32),
    np.array([len(row) for row in FORCED], np.int32),
)


@functools.partial(jax.jit, static_argnames=("rules", "beam", "n_best", "alpha"))
def search(table, rules, forced=None, **options):
    """Beam search of a Markov model; each token remembers what the step had heard before it."""
    start = jnp.full(len(table), BOS, jnp.int32)
    step, state = step_of(table), memory(len(table))
    look = {"observe": lambda state: {"heard": state.heard}, "forced": forced}
    return beam_search(step, state, start, rules, **look, **options)


@pytest.mark.parametrize(
    ("alpha", "min_length"), [(0.0, 0), (1.3, 0), (-0.9, 3)], ids=["none", "long", "short"]
)
def test_a_wide_beam_finds_the_best_of_all(alpha, min_length):
    rules = Rules(END, PAD, max_length=4, min_length=min_length)
    table = random_table(B, 17, branches=2, seed=3)
    found = search(table, rules, PADDED, beam=17, n_best=3, alpha=alpha)
    lengths = set()
    for row in range(B):
        limits = {"max_length": 4, "min_length": min_length, "alpha": alpha}
        answers = everything(table[row], FORCED[row], **limits)
        for rank, expected in enumerate(answers[:3]):
            assert_says(pick(found, row, rank), expected)
            lengths.add(len(expected[1]))
    assert len(lengths) > 2  # or this would prove little


@pytest.mark.parametrize("alpha", [0.8, -0.8])
def test_a_narrow_beam_is_a_loop_over_lists_that_never_stops_early(alpha):
    limits = {"max_length": 8, "min_length": 2, "alpha": alpha, "beam": 4}
    table = random_table(B, 6, seed=5)
    found = search(table, Rules(END, PAD, 8, 2), PADDED, beam=4, n_best=2, alpha=alpha)
    for row in range(B):
        answers = narrow_beam(table[row], FORCED[row], **limits)
        for rank, expected in enumerate(answers[:2]):
            assert_says(pick(found, row, rank), expected)


def test_what_was_observed_follows_its_hypothesis():
    found = search(
        random_table(B, 6, seed=5), Rules(END, PAD, 8, 2), PADDED, beam=4, n_best=2, alpha=0.8
    )
    heard = np.concatenate([np.full((B, 2, 1), BOS), found.tokens[..., :-1]], axis=-1)
    heard[np.arange(8) >= np.asarray(found.lengths)[..., None]] = 0
    np.testing.assert_array_equal(found.observed["heard"], heard)


def test_a_beam_of_one_is_greedy_whatever_the_penalty():
    rules, table = Rules(END, PAD, 8, 2), random_table(B, 6, seed=5)

    @jax.jit
    def likeliest(table):
        start = jnp.full(B, BOS, jnp.int32)
        return greedy(step_of(table), memory(B), start, rules, forced=PADDED)

    expected = likeliest(table)
    found = pick(search(table, rules, PADDED, beam=1, n_best=1, alpha=1.5), slice(None), 0)
    for name in ("tokens", "lengths", "log_probs"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert len(set(found.lengths.tolist())) > 2
    scores = expected.scores / penalty(np.asarray(expected.lengths), 1.5)
    np.testing.assert_allclose(found.scores, scores, rtol=1e-6)


def scripted(script, calls=None):
    """A step for one row that knows `{tokens said: {next: probability}}`; other text is NaN."""

    def step(state, token):
        if calls is not None:
            jax.debug.callback(lambda count: calls.append(int(count)), state["count"])
        read = jax.lax.dynamic_update_index_in_dim(state["read"], token, state["count"], axis=1)
        logits = jnp.full((1, 7), jnp.nan)
        for said, following in script.items():
            row = jnp.log(jnp.array([[following.get(token, 0.0) for token in range(7)]]))
            same = (read == jnp.array([[BOS, *said, *[PAD] * (7 - len(said))]])).all()
            logits = jnp.where(same, row, logits)
        return logits, {"read": read, "count": state["count"] + 1}

    return step


def say(script, max_length=6, calls=None, **options):
    state = {"read": jnp.full((1, 8), PAD, jnp.int32), "count": jnp.int32(0)}
    start = jnp.full(1, BOS, jnp.int32)
    rules = Rules(END, PAD, max_length)
    answer = beam_search(scripted(script, calls), state, start, rules, **options)
    jax.effects_barrier()
    return pick(answer, 0)


# After 5 everything is certain, and long; the end alone is likelier.
CERTAIN = {(): {END: 0.6, 5: 0.4}, (5,): {6: 1}, (5, 6): {6: 1}, (5, 6, 6): {END: 1}}


def test_without_penalty_the_search_stops_when_the_end_cannot_be_beaten():
    calls = []
    found = say(CERTAIN, beam=2, calls=calls)
    np.testing.assert_array_equal(found.tokens[0], [END, *[PAD] * 5])
    np.testing.assert_allclose(found.scores, [np.log(0.6)], rtol=1e-6)
    assert calls == [0]  # 0.4 is less than 0.6, whatever comes


def test_a_long_answer_may_still_win_and_the_search_goes_on():
    calls = []
    found = say(CERTAIN, beam=2, alpha=2.0, calls=calls)
    np.testing.assert_array_equal(found.tokens[0], [5, 6, 6, END, PAD, PAD])
    np.testing.assert_allclose(found.scores, [np.log(0.4) / 1.5**2], rtol=1e-6)
    np.testing.assert_allclose(found.log_probs[0], [np.log(0.4), *[0.0] * 5], atol=1e-6)
    assert calls == [0, 1, 2, 3]


def test_the_search_goes_on_until_the_worst_of_the_best_is_safe():
    calls = []
    found = say(CERTAIN, beam=3, n_best=2, calls=calls)
    np.testing.assert_array_equal(found.lengths, [1, 4])
    np.testing.assert_allclose(found.scores, np.log([0.6, 0.4]), rtol=1e-6)
    assert calls == [0, 1, 2, 3]


def test_a_penalty_on_length_stops_at_what_the_next_token_could_reach():
    # The next length is 2: log(0.44) * 6 / 7 = -0.70 could still beat log(0.45) = -0.80, and does.
    script = {(): {END: 0.45, 5: 0.44, 6: 0.11}, (5,): {END: 1}, (6,): {END: 1}}
    assert say(script, beam=3, alpha=1.0).lengths == [2]
    calls = []
    # With a negative alpha length is paid for: log(0.44) * 7 / 6 cannot.
    assert say(script, beam=3, alpha=-1.0, calls=calls).lengths == [1]
    assert calls == [0]


def test_where_there_are_fewer_answers_the_places_stay_empty():
    found = say({(): {5: 1}, (5,): {END: 0.7, 6: 0.3}, (5, 6): {END: 1}}, beam=4, n_best=4)
    np.testing.assert_array_equal(found.lengths, [2, 3, 0, 0])
    np.testing.assert_array_equal(found.scores[2:], [-np.inf, -np.inf])
    np.testing.assert_array_equal(found.tokens[2:], np.full((2, 6), PAD))
    np.testing.assert_array_equal(found.log_probs[2:], np.zeros((2, 6)))


def test_nan_stands_where_the_step_said_nan():
    found = say({(): {5: 0.9, 6: 0.1}, (6,): {END: 1}}, max_length=3, beam=2, n_best=2)
    assert np.isnan(found.scores[0]) and found.tokens[0, 0] == 5  # nothing is known after 5
    np.testing.assert_array_equal(np.isnan(found.log_probs[0]), [False, True, True])


def test_nan_reaches_no_other_row_and_no_row_that_is_decided():
    # Row 0 is decided at once; its other hypothesis, 5, leads to NaN. Row 1 goes on for long.
    table = np.full((2, 7, 7, 7), -np.inf, np.float32)
    table[0, BOS, BOS, [END, 5]] = np.log([0.6, 0.4])
    table[0, :, 5] = np.nan
    table[1, :, :, 6] = 0
    found = search(table, Rules(END, PAD, 4), beam=2, n_best=1, alpha=0.0)
    np.testing.assert_array_equal(found.tokens[:, 0], [[END, PAD, PAD, PAD], [6, 6, 6, 6]])
    np.testing.assert_allclose(found.scores[:, 0], [np.log(0.6), 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"beam": 0}, "n_best must be between 1 and the beam of 0, got 1"),
        ({"beam": 2, "n_best": 3}, "n_best must be between 1 and the beam of 2, got 3"),
        ({"beam": 8}, "beam must be at most the vocabulary's 7 tokens, got 8"),
        ({"beam": 2, "alpha": float("nan")}, "alpha must be finite, got nan"),
    ],
)
def test_a_search_that_cannot_be_is_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        say(CERTAIN, **options)
