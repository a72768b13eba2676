"""Beam search against all answers of small models, and on models with known probabilities."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.decoding import (
    GNMT,
    Beam,
    Greedy,
    NoRepeatNgram,
    Power,
    Prefix,
    RepetitionPenalty,
    StoppingCriteria,
    Temperature,
    beam,
    decode,
)
from tests.attention.decoding.markov import (
    BOS,
    END,
    PAD,
    Reference,
    assert_equals,
    empty_state,
    jit,
    pick,
    random_table,
    step_of,
)

B = 7
# Rows with a prefix of no, one and two tokens; that of the last row is the end.
PREFIXES = [[], [4], [5, 3], [4, 4], [], [3], [END]]
PREFIX = Prefix(
    np.array([[*row, 9, 9][:2] for row in PREFIXES], np.int32),
    np.array([len(row) for row in PREFIXES], np.int32),
)
CALLS = []


@jit
def search(table, prefix=None, *, strategy, stopping, options=()):
    """Decode a Markov model and observe the token that each step read."""
    step = step_of(table)

    def counted(state, tokens):
        jax.debug.callback(lambda count: CALLS.append(int(count[0])), state.count)
        return step(state, tokens)

    return decode(
        counted,
        empty_state(len(table)),
        jnp.full(len(table), BOS, jnp.int32),
        strategy,
        stopping,
        prefix=prefix,
        observe=lambda result: {"read": result.attention},
        **dict(options),
    )


@pytest.mark.parametrize(
    ("penalty", "min_tokens", "keep_width"),
    [(None, 0, False), (GNMT(1.3), 0, True), (Power(-0.9), 3, False)],
    ids=["none", "long", "short"],
)
def test_wide_beam_finds_the_best_of_all_answers(penalty, min_tokens, keep_width):
    stopping = StoppingCriteria(4, END, min_tokens)
    table = random_table(B, 17, branches=2, seed=3)
    found = search(table, PREFIX, strategy=Beam(17, 3, penalty, keep_width), stopping=stopping)
    lengths = set()
    for row in range(B):
        answers = Reference(table[row], PREFIXES[row], stopping, penalty).all_answers()
        for rank, expected in enumerate(answers[:3]):
            assert_equals(pick(found, row, rank), expected)
            lengths.add(len(expected[1]))
    assert len(lengths) > 2


@pytest.mark.parametrize(
    ("penalty", "stop", "keep_width"),
    [
        (GNMT(0.8), END, False),
        (Power(1.0), (END, 5), True),
        (GNMT(-0.8), (END, (3, 4)), True),
        (GNMT(-0.8), (END, (3, 4)), False),
    ],
    ids=["one end", "two ends", "sequence", "sequence of a shrinking beam"],
)
def test_narrow_beam_equals_loop_over_lists_without_early_stop(penalty, stop, keep_width):
    stopping, table = StoppingCriteria(8, stop, 3), random_table(B, 6, seed=5)
    found = search(table, PREFIX, strategy=Beam(4, 4, penalty, keep_width), stopping=stopping)
    for row in range(B):
        answers = Reference(table[row], PREFIXES[row], stopping, penalty).beam(
            4, keep_width=keep_width
        )
        for rank, expected in enumerate(answers[:4]):
            assert_equals(pick(found, row, rank), expected)


def test_prefix_does_not_count_in_the_length_penalty():
    """With the penalty of 4 and 5 tokens in place of 1 and 2, the shorter answer would win."""
    table = np.full((2, 7, 7, 7), -np.inf, np.float32)
    table[:, :, 3, [END, 6]] = np.log([0.5, 0.5])
    table[:, 3, 6, [END, 3, 4, 5]] = np.log([0.7, 0.1, 0.1, 0.1])
    table[:, 6, 3:6] = np.where(np.arange(7) == END, 0, -np.inf)
    table[:, BOS, BOS, 3] = 0
    prefix = Prefix(np.array([[3, 3, 3], [3, 0, 0]]), np.array([3, 1]))
    found = search(table, prefix, strategy=Beam(3, 2, Power(1.0)), stopping=StoppingCriteria(9, 2))
    np.testing.assert_array_equal(found.lengths, [[5, 4], [3, 2]])
    scores = [np.log(0.35) / 2, np.log(0.5)]
    np.testing.assert_allclose(found.scores, [scores, scores], rtol=1e-6)


@pytest.mark.parametrize("keep_width", [False, True])
def test_logit_processors_change_scores_but_not_log_probs(keep_width):
    def no_repeat(scores, answer):
        scores = np.where(np.isin(np.arange(6), [BOS, *answer]), scores * 1.5, scores) / 0.7
        history = [BOS, *answer]
        bigrams = {*itertools.pairwise(history)}
        return np.array(
            [-np.inf if (history[-1], token) in bigrams else scores[token] for token in range(6)]
        )

    processors = RepetitionPenalty(1.5), Temperature(0.7), NoRepeatNgram(2)
    stopping, table = StoppingCriteria(8, END, 3), random_table(B, 6, seed=5)
    found = search(
        table,
        PREFIX,
        strategy=Beam(4, 2, GNMT(0.6), keep_width),
        stopping=stopping,
        options=(("logit_processors", processors),),
    )
    for row in range(B):
        reference = Reference(table[row], PREFIXES[row], stopping, GNMT(0.6), no_repeat)
        for rank, expected in enumerate(reference.beam(4, keep_width=keep_width)[:2]):
            assert_equals(pick(found, row, rank), expected)


@pytest.mark.parametrize(("strategy", "max_steps"), [(Beam(4, 2, GNMT(0.8)), 6), (Greedy(), 3)])
def test_rows_unfinished_after_max_steps_are_discarded(strategy, max_steps):
    table, stopping = random_table(B, 6, seed=5), StoppingCriteria(8, END, 2)
    whole = search(table, PREFIX, strategy=strategy, stopping=stopping)
    options = (("max_steps", max_steps),)
    short = search(table, PREFIX, strategy=strategy, stopping=stopping, options=options)
    answered = np.asarray(short.lengths).reshape(B, -1)[:, 0] > 0
    assert 0 < answered.sum() < B
    for ours, theirs in zip(*map(jax.tree.leaves, (short, whole)), strict=True):
        theirs = theirs[..., :max_steps] if theirs.shape[-1] == 8 else theirs
        np.testing.assert_array_equal(ours[answered], theirs[answered])
    for name, value in (("tokens", PAD), ("lengths", 0), ("scores", -np.inf), ("log_probs", 0)):
        assert (getattr(short, name)[~answered] == value).all()
    assert not short.observed["read"][~answered].any()


def test_rows_with_a_prefix_longer_than_max_steps_are_discarded():
    given = {"strategy": Beam(2), "stopping": StoppingCriteria(8, END)}
    found = search(random_table(B, 6, seed=5), PREFIX, **given, options=(("max_steps", 1),))
    assert not found.lengths[np.array([1, 2, 3, 5])].any()
    np.testing.assert_array_equal(found.tokens[6], [END])


def test_beam_of_one_is_greedy_for_any_penalty():
    stopping, table = StoppingCriteria(8, END, 2), random_table(B, 6, seed=5)
    expected = search(table, PREFIX, strategy=Greedy(), stopping=stopping)
    found = search(table, PREFIX, strategy=Beam(1, None, GNMT(1.5)), stopping=stopping)
    for name in ("tokens", "lengths", "log_probs"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert len(set(found.lengths.tolist())) > 2
    free = np.maximum(np.asarray(expected.lengths) - PREFIX.lengths, 1).astype(np.float32)
    np.testing.assert_allclose(found.scores, expected.scores / GNMT(1.5)(free), rtol=1e-6)


@pytest.mark.parametrize(
    ("end", "keep_width"), [(125, True), (-1, False)], ids=["start of a block", "none"]
)
def test_large_vocabulary_in_blocks_equals_sorted_rows(monkeypatch, end, keep_width):
    """Few blocks of 25 are scored; most scores are equal, some -inf, some rows NaN."""
    random = np.random.default_rng(0)
    table = np.where(random.random((11, 1_000)) < 0.1, -np.inf, random.integers(0, 3, (11, 1_000)))
    table[7] = np.nan
    table[:, 125] = 4  # the end is likely, and too early
    table = jax.device_put(table.astype(np.float32))
    prefix = Prefix(np.array([[777, 3], [0, 0], [5, 124]]), np.array([2, 0, 1]))

    def run(few):
        monkeypatch.setattr(beam, "FEW", few)
        monkeypatch.setattr(beam, "LARGEST", 25)
        return jax.jit(
            lambda: decode(
                lambda state, tokens: (table[tokens % 11], state),
                jnp.zeros(3),
                jnp.full(3, BOS, jnp.int32),
                Beam(5, 3, keep_width=keep_width),
                StoppingCriteria(6, end, min_tokens=4),
                prefix=prefix,
            )
        )()

    in_blocks, in_sorted_rows = run(1), run(10**9)
    np.testing.assert_array_equal(in_blocks.tokens[0, :, :2], [[777, 3]] * 3)
    chex.assert_trees_all_equal(in_blocks, in_sorted_rows)


def known(script, **options):
    """Search one row with known probabilities `{last two tokens: {next: probability}}`.

    What follows other tokens is NaN.
    """
    table = np.full((1, 7, 7, 7), np.nan, np.float32)
    for (before, last), following in script.items():
        with np.errstate(divide="ignore"):
            table[0, before, last] = np.log([following.get(token, 0) for token in range(7)])
    CALLS.clear()
    strategy = Beam(**{"num_beams": 3, "n_best": 1} | options)
    found = search(table, strategy=strategy, stopping=StoppingCriteria(6, END))
    jax.effects_barrier()
    return pick(found, 0)


def calls():
    """Return the numbers of the steps that were run, once for all hypotheses."""
    return sorted({*CALLS})


# After 5 everything is certain, and long; the end alone is likelier.
CERTAIN = {
    (BOS, BOS): {END: 0.6, 5: 0.4},
    (BOS, 5): {6: 1},
    (5, 6): {6: 1},
    (6, 6): {END: 1},
}
KINDS = pytest.mark.parametrize("keep_width", [False, True])


@KINDS
@pytest.mark.parametrize(
    ("options", "lengths", "scores", "steps"),
    [
        ({}, [1], [np.log(0.6)], 1),  # 0.4 is less than 0.6, whatever follows
        ({"length_penalty": GNMT(2.0)}, [4], [np.log(0.4) / 1.5**2], 4),
        ({"n_best": 2}, [1, 4], np.log([0.6, 0.4]), 4),
    ],
    ids=["certain", "a long answer can win", "the last of the n best is not certain"],
)
def test_search_continues_until_the_n_best_are_certain(keep_width, options, lengths, scores, steps):
    found = known(CERTAIN, keep_width=keep_width, **options)
    np.testing.assert_array_equal(found.lengths, lengths)
    np.testing.assert_allclose(found.scores, scores, rtol=1e-6)
    answers = {1: [END], 4: [5, 6, 6, END]}
    for tokens, length in zip(found.tokens, lengths, strict=True):
        np.testing.assert_array_equal(tokens, answers[length] + [PAD] * (6 - length))
    assert calls() == [*range(steps)]


@pytest.mark.parametrize(
    ("probabilities", "alpha", "length", "expected"),
    [
        # Another token could still reach log(0.44) / (7 / 6) ** 2 = -0.60: above log(0.43) = -0.84.
        ({END: 0.43, 5: 0.44, 6: 0.13}, 2.0, 2, [0, 1]),
        # A negative alpha penalises length: log(0.44) * 7 / 6 = -0.96 is too low,
        ({END: 0.43, 5: 0.44, 6: 0.13}, -1.0, 1, [0]),
        # log(0.5) * 7 / 6 = -0.81 is not, although log(0.5) * 8 / 6 = -0.92 would be.
        ({END: 0.42, 5: 0.5, 6: 0.08}, -1.0, 2, [0, 1]),
    ],
)
def test_early_stop_with_a_length_penalty(probabilities, alpha, length, expected):
    ends = {END: 1}
    script = {(BOS, BOS): probabilities, (BOS, 5): ends, (BOS, 6): ends}
    found = known(script, length_penalty=GNMT(alpha))
    assert found.lengths == [length]
    assert calls() == expected


def test_longest_answer_can_win():
    # Six tokens reach log(0.2) / (11 / 6) ** 2 = -0.48, five only -0.58; the end has -0.51.
    on = {6: 1}
    script = {(BOS, BOS): {END: 0.6, 5: 0.2, 3: 0.2}, (BOS, 5): on, (5, 6): on, (6, 6): on}
    script |= {(BOS, 3): {END: 1}}
    found = known(script, length_penalty=GNMT(2.0))
    np.testing.assert_array_equal(found.tokens[0], [5, 6, 6, 6, 6, 6])
    np.testing.assert_allclose(found.scores, [np.log(0.2) / (11 / 6) ** 2], rtol=1e-6)


def test_only_a_beam_that_keeps_its_width_follows_the_second_branch():
    ends = {END: 1}
    script = {
        (BOS, BOS): {END: 0.5, 5: 0.3, 6: 0.2},
        (BOS, 5): {3: 0.25, 4: 0.25, 5: 0.25, 6: 0.25},
        (BOS, 6): ends,
    } | {(5, last): ends for last in (3, 4, 5, 6)}
    shrinking = known(script, num_beams=2, n_best=2)
    np.testing.assert_allclose(shrinking.scores, np.log([0.5, 0.3 * 0.25]), rtol=1e-6)
    keeping = known(script, num_beams=2, n_best=2, keep_width=True)
    np.testing.assert_allclose(keeping.scores, np.log([0.5, 0.2]), rtol=1e-6)


def test_fewer_answers_than_n_best_leave_empty_places():
    found = known({(BOS, BOS): {5: 1}, (BOS, 5): {END: 1}}, n_best=2)
    np.testing.assert_array_equal(found.lengths, [2, 0])
    np.testing.assert_array_equal(found.scores, [0, -np.inf])
    np.testing.assert_array_equal(found.tokens[1], np.full(6, PAD))
    np.testing.assert_array_equal(found.log_probs[1], np.zeros(6))


@KINDS
def test_a_hypothesis_without_a_possible_token_does_not_win(keep_width):
    table = np.full((2, 7, 7, 7), -np.inf, np.float32)
    table[:, BOS, BOS, [5, 6]] = np.log([0.6, 0.4])
    table[0, BOS, 6, END] = 0  # in row 1, no hypothesis has a token
    found = search(
        table, strategy=Beam(2, keep_width=keep_width), stopping=StoppingCriteria(4, END)
    )
    np.testing.assert_array_equal(found.tokens, [[6, END, PAD, PAD], [PAD] * 4])
    np.testing.assert_array_equal(found.lengths, [2, 0])
    np.testing.assert_allclose(found.scores, [np.log(0.4), -np.inf], rtol=1e-6)


@KINDS
def test_nan_logits_give_nan_scores(keep_width):
    script = {(BOS, BOS): {5: 0.9, 6: 0.1}, (BOS, 6): {END: 1}}
    found = known(script, n_best=2, keep_width=keep_width)
    assert np.isnan(found.scores[0]) and found.tokens[0, 0] == 5
    unknown = (np.arange(6) > 0) & (np.arange(6) < found.lengths[0])
    np.testing.assert_array_equal(np.isnan(found.log_probs[0]), unknown)


def test_nan_reaches_no_other_row_and_no_row_that_is_decided():
    # Row 0 is decided at once; its other hypothesis, 5, leads to NaN. Row 1 is longer.
    table = np.full((2, 7, 7, 7), -np.inf, np.float32)
    table[0, BOS, BOS, [END, 5]] = np.log([0.6, 0.4])
    table[0, :, 5] = np.nan
    table[1, :, :, 6] = 0
    found = search(table, strategy=Beam(2), stopping=StoppingCriteria(4, END))
    np.testing.assert_array_equal(found.tokens, [[END, PAD, PAD, PAD], [6, 6, 6, 6]])
    np.testing.assert_allclose(found.scores, [np.log(0.6), 0], rtol=1e-6)


MISTAKES = {
    "num_beams must be an integer of at least 1, got 0": lambda: Beam(0),
    "num_beams must be an integer of at least 1, got 2.5": lambda: Beam(2.5),
    r"length_penalty must be .* such as Power\(1.0\), got 1.0": lambda: Beam(2, None, 1.0),
    "n_best must be between 1 and num_beams 2, got 3": lambda: Beam(2, n_best=3),
    "alpha of a length penalty must be finite, got nan": lambda: GNMT(float("nan")),
    "exponent of a length penalty must be finite, got -inf": lambda: Power(float("-inf")),
    "num_beams must be at most the 7 tokens of the vocabulary, got 8": lambda: search(
        random_table(1, 7), strategy=Beam(8), stopping=StoppingCriteria(6, END)
    ),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_impossible_settings_are_refused(words):
    with pytest.raises((TypeError, ValueError), match=words):
        MISTAKES[words]()


@pytest.mark.parametrize("vocab_size", [7, 4 * beam.FEW])
def test_no_rows(vocab_size):
    table = jnp.zeros((0, 1, 1, vocab_size))
    found = jax.eval_shape(
        lambda: search(table, strategy=Beam(2, 2), stopping=StoppingCriteria(6, END))
    )
    assert found.tokens.shape == (0, 2, 6)


@pytest.mark.usefixtures("float64")
@KINDS
def test_double_precision_is_kept(keep_width):
    """The fixture widens default integers too, so it finds integers without a dtype."""
    table, stopping = jnp.asarray(random_table(B, 6, seed=5), jnp.float64), StoppingCriteria(6, 2)
    greedy = search(table, PREFIX, strategy=Greedy(), stopping=stopping)
    options = (("logit_processors", (RepetitionPenalty(1.0), NoRepeatNgram(9))),)
    strategy = Beam(1, keep_width=keep_width)
    found = search(table, PREFIX, strategy=strategy, stopping=stopping, options=options)
    assert greedy.scores.dtype == found.scores.dtype == jnp.float64
    assert keep_width or (found.tokens == greedy.tokens).all()
