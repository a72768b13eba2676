"""Beam search against everything a small model can say, and on models scripted by hand."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.decoding import Forced, Rules, beam_search, greedy, top
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


@functools.partial(jax.jit, static_argnames=("rules", "beam", "n_best", "alpha", "room"))
def search(table, rules, forced=None, **options):
    """Beam search of a Markov model; each token remembers what the step had heard before it."""
    start = jnp.full(len(table), BOS, jnp.int32)
    state = memory(len(table))

    def step(state, tokens):
        jax.debug.callback(lambda count: CALLS.append(int(count)), state.count)
        return step_of(table)(state, tokens)

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


def assert_answered_or_given_up(short, whole, room):
    """Some rows are answered as with all the room there is, and nothing is left of the others."""
    answered = np.asarray(short.lengths).reshape(B, -1)[:, 0] > 0
    assert 0 < answered.sum() < B
    for ours, theirs in zip(jax.tree.leaves(short), jax.tree.leaves(whole), strict=True):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        inside = (slice(None),) * (theirs.ndim - 1) + (slice(room),)
        theirs = theirs[inside] if theirs.shape[-1] == 8 else theirs
        np.testing.assert_array_equal(ours[answered], theirs[answered])
    for name, nothing in (("tokens", PAD), ("lengths", 0), ("scores", -np.inf), ("log_probs", 0)):
        assert (np.asarray(getattr(short, name))[~answered] == nothing).all()


def test_with_less_room_a_row_is_answered_the_same_or_not_at_all():
    table, options = random_table(B, 6, seed=5), {"beam": 4, "n_best": 2, "alpha": 0.8}
    whole = search(table, Rules(END, PAD, 8, 2), PADDED, **options)
    short = search(table, Rules(END, PAD, 8, 2), PADDED, **options, room=6)
    assert_answered_or_given_up(short, whole, 6)
    assert not short.observed["heard"][short.lengths == 0].any()


def test_greedy_with_less_room():
    table, start = random_table(B, 6, seed=5), jnp.full(B, BOS, jnp.int32)
    step = step_of(jnp.asarray(table))
    say = functools.partial(greedy, step, memory(B), start, Rules(END, PAD, 8, 2))
    assert_answered_or_given_up(say(room=3), say(), 3)


def test_what_is_forced_and_finds_no_room_is_given_up():
    """The sixth row must say one token, which ends nothing, and the last the end."""
    table = random_table(B, 6, seed=5)
    said = search(table, Rules(END, PAD, 8), PADDED, beam=2, alpha=-0.5, room=1)
    assert not said.lengths[jnp.array([1, 2, 3, 5])].any()
    np.testing.assert_array_equal(said.tokens[6, 0], [END])


def test_what_was_observed_keeps_its_kind():
    table, start = jnp.asarray(random_table(B, 6, seed=5)), jnp.full(B, BOS, jnp.int32)
    heard = greedy(
        step_of(table),
        memory(B),
        start,
        Rules(END, PAD, 8),
        observe=lambda state: state.heard > 3,
        room=3,
    ).observed
    assert heard.dtype == bool and heard.any()


@pytest.mark.parametrize("room", [0, 9])
def test_room_that_nobody_has(room):
    with pytest.raises(ValueError, match=f"room must be between 1 and max_length 8, got {room}"):
        search(random_table(B, 6), Rules(END, PAD, 8), beam=2, room=room)


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


@pytest.mark.parametrize("end", [125, -1], ids=["where a block begins", "nowhere"])
def test_a_large_vocabulary_is_searched_as_if_it_were_sorted(monkeypatch, end):
    """Of blocks of 25 few are looked into; most scores are equal, some -inf, some rows NaN."""
    random = np.random.default_rng(0)
    table = np.where(random.random((11, 1_000)) < 0.1, -np.inf, random.integers(0, 3, (11, 1_000)))
    table[7] = np.nan
    table[:, 125] = 4  # the end is likely, and comes too early
    table = jnp.asarray(table, jnp.float32)
    forced = Forced(jnp.array([[777, 3], [0, 0], [5, 124]]), jnp.array([2, 0, 1]))

    def search(few):
        monkeypatch.setattr(top, "FEW", few)
        monkeypatch.setattr(top, "LARGEST", 25)
        rules, start = Rules(end, PAD, max_length=6, min_length=4), jnp.full(3, BOS, jnp.int32)
        return jax.jit(
            lambda: beam_search(
                lambda state, tokens: (table[tokens % 11], state),
                jnp.zeros(3),
                start,
                rules,
                beam=5,
                n_best=3,
                forced=forced,
            )
        )()

    in_blocks, in_sorted_rows = search(1), search(10**9)
    np.testing.assert_array_equal(in_blocks.tokens[0, :, :2], [[777, 3]] * 3)
    chex.assert_trees_all_equal(in_blocks, in_sorted_rows)


CALLS = []  # what a search has called its step for


def say(script, **options):
    """Searches one row whose probabilities `{last two tokens: {next: probability}}` are known.

    What follows other tokens is NaN.
    """
    table = np.full((1, 7, 7, 7), np.nan, np.float32)
    for (before, last), following in script.items():
        with np.errstate(divide="ignore"):
            table[0, before, last] = np.log([following.get(token, 0) for token in range(7)])
    CALLS.clear()
    answer = search(table, Rules(END, PAD, max_length=6), beam=3, **options)
    jax.effects_barrier()
    return pick(answer, 0)


# After 5 everything is certain, and long; the end alone is likelier.
CERTAIN = {
    (BOS, BOS): {END: 0.6, 5: 0.4},
    (BOS, 5): {6: 1},
    (5, 6): {6: 1},
    (6, 6): {END: 1},
}


def test_without_penalty_the_search_stops_when_the_end_cannot_be_beaten():
    found = say(CERTAIN)
    np.testing.assert_array_equal(found.tokens[0], [END, *[PAD] * 5])
    np.testing.assert_allclose(found.scores, [np.log(0.6)], rtol=1e-6)
    assert CALLS == [0]  # 0.4 is less than 0.6, whatever comes


def test_a_long_answer_may_still_win_and_the_search_goes_on():
    found = say(CERTAIN, alpha=2.0)
    np.testing.assert_array_equal(found.tokens[0], [5, 6, 6, END, PAD, PAD])
    np.testing.assert_allclose(found.scores, [np.log(0.4) / 1.5**2], rtol=1e-6)
    np.testing.assert_allclose(found.log_probs[0], [np.log(0.4), *[0.0] * 5], atol=1e-6)
    assert CALLS == [0, 1, 2, 3]


def test_the_search_goes_on_until_the_worst_of_the_best_is_safe():
    found = say(CERTAIN, n_best=2)
    np.testing.assert_array_equal(found.lengths, [1, 4])
    np.testing.assert_allclose(found.scores, np.log([0.6, 0.4]), rtol=1e-6)
    assert CALLS == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("probabilities", "alpha", "length", "calls"),
    [
        # Another token could still reach log(0.44) / (7 / 6) ** 2 = -0.60: above log(0.43) = -0.84.
        ({END: 0.43, 5: 0.44, 6: 0.13}, 2.0, 2, [0, 1]),
        # With a negative alpha length is paid for: log(0.44) * 7 / 6 = -0.96 cannot,
        ({END: 0.43, 5: 0.44, 6: 0.13}, -1.0, 1, [0]),
        # and log(0.5) * 7 / 6 = -0.81 can, though log(0.5) * 8 / 6 = -0.92, one later, could not.
        ({END: 0.42, 5: 0.5, 6: 0.08}, -1.0, 2, [0, 1]),
    ],
)
def test_a_penalty_on_length_stops_at_what_the_next_token_could_reach(
    probabilities, alpha, length, calls
):
    ends = {END: 1}
    found = say({(BOS, BOS): probabilities, (BOS, 5): ends, (BOS, 6): ends}, alpha=alpha)
    assert found.lengths == [length]
    assert calls == CALLS


def test_the_longest_answer_of_all_may_still_win():
    # Six tokens reach log(0.2) / (11 / 6) ** 2 = -0.48, five only -0.58; the end has -0.51.
    on = {6: 1}
    script = {(BOS, BOS): {END: 0.6, 5: 0.2, 3: 0.2}, (BOS, 5): on, (5, 6): on, (6, 6): on}
    script |= {(BOS, 3): {END: 1}}
    found = say(script, alpha=2.0)
    np.testing.assert_array_equal(found.tokens[0], [5, 6, 6, 6, 6, 6])
    np.testing.assert_allclose(found.scores, [np.log(0.2) / (11 / 6) ** 2], rtol=1e-6)


def test_where_there_are_fewer_answers_the_places_stay_empty():
    found = say({(BOS, BOS): {5: 1}, (BOS, 5): {END: 1}}, n_best=2)
    np.testing.assert_array_equal(found.lengths, [2, 0])
    np.testing.assert_array_equal(found.scores, [0, -np.inf])
    np.testing.assert_array_equal(found.tokens[1], np.full(6, PAD))
    np.testing.assert_array_equal(found.log_probs[1], np.zeros(6))


def test_nan_stands_where_the_step_said_nan():
    found = say({(BOS, BOS): {5: 0.9, 6: 0.1}, (BOS, 6): {END: 1}}, n_best=2)
    assert np.isnan(found.scores[0]) and found.tokens[0, 0] == 5  # nothing is known after 5
    unknown = (np.arange(6) > 0) & (np.arange(6) < found.lengths[0])
    np.testing.assert_array_equal(np.isnan(found.log_probs[0]), unknown)


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
        ({"beam": 2, "n_best": 1, "alpha": float("nan")}, "alpha must be finite, got nan"),
        ({"beam": 2, "n_best": 1, "alpha": float("-inf")}, "alpha must be finite, got -inf"),
    ],
)
def test_a_search_that_cannot_be_is_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        search(random_table(1, 7), Rules(END, PAD, 6), **options)


@pytest.mark.parametrize("vocab_size", [7, 4 * top.FEW])
def test_no_rows_have_no_answers(vocab_size):
    table = jnp.zeros((0, 1, 1, vocab_size))
    found = jax.eval_shape(lambda: search(table, Rules(END, PAD, 6), beam=2, n_best=2))
    assert found.tokens.shape == (0, 2, 6)


@pytest.mark.usefixtures("float64")
def test_double_precision_stays_double():
    """And says the same; a fixture that widens every integer too finds what is not meant to be."""
    table = jnp.asarray(random_table(B, 6, seed=5), jnp.float64)
    start, rules = jnp.full(B, BOS, jnp.int32), Rules(END, PAD, 6)
    said = greedy(step_of(table), memory(B), start, rules, forced=PADDED)
    found = beam_search(step_of(table), memory(B), start, rules, beam=1, forced=PADDED)
    for name in ("tokens", "lengths", "log_probs"):
        ours, theirs = pick(found, slice(None), 0), said
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    assert said.scores.dtype == found.scores.dtype == jnp.float64
