"""Beam search against all answers of small models, and on models with known probabilities."""

import itertools

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
)
from attention.decoding.beam import top_indices
from tests.attention.decoding.markov import (
    BOS,
    CALLS,
    END,
    PAD,
    Reference,
    assert_equals,
    pick,
    random_table,
    search,
)
from tests.attention.primitives.inputs import changed, jitted

B = 7
# Rows with a prefix of no, one and two tokens; that of the last row is the end.
PREFIXES = [[], [4], [5, 3], [4, 4], [], [3], [END]]
PREFIX = Prefix(
    np.array([[*row, 9, 9][:2] for row in PREFIXES], np.int32),
    np.array([len(row) for row in PREFIXES], np.int32),
)


@pytest.mark.parametrize(
    ("penalty", "min_tokens", "keep_width"),
    [(None, 0, False), (GNMT(1.3), 0, True), (Power(-0.9), 3, False)],
    ids=["none", "long", "short"],
)
def test_wide_beam_finds_the_best_of_all_answers(penalty, min_tokens, keep_width):
    """There are more beams than tokens."""
    stopping = StoppingCriteria(4, END, min_tokens)
    table = random_table(B, 9, branches=2, seed=3)
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
        reference = Reference(table[row], PREFIXES[row], stopping, penalty)
        for rank, expected in enumerate(reference.beam(4, keep_width=keep_width)[:4]):
            assert_equals(pick(found, row, rank), expected)


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
    strategy, options = Beam(4, 2, GNMT(0.6), keep_width), (("logit_processors", processors),)
    found = search(table, PREFIX, strategy=strategy, stopping=stopping, options=options)
    for row in range(B):
        reference = Reference(table[row], PREFIXES[row], stopping, GNMT(0.6), no_repeat)
        for rank, expected in enumerate(reference.beam(4, keep_width=keep_width)[:2]):
            assert_equals(pick(found, row, rank), expected)


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
    assert {*CALLS} == {*range(steps)}  # once for all hypotheses


@KINDS
def test_nan_logits_give_nan_scores(keep_width):
    script = {(BOS, BOS): {5: 0.9, 6: 0.1}, (BOS, 6): {END: 1}}
    found = known(script, n_best=2, keep_width=keep_width)
    assert np.isnan(found.scores[0]) and found.tokens[0, 0] == 5
    unknown = (np.arange(6) > 0) & (np.arange(6) < found.lengths[0])
    np.testing.assert_array_equal(np.isnan(found.log_probs[0]), unknown)


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
    assert len({*found.lengths.ravel().tolist()}) > 2
    assert keep_width or (found.tokens == greedy.tokens).all()


@pytest.mark.parametrize("length", [12_800, 16 * 607, 7_919, 20])
def test_top_indices_equal_those_of_top_k(length):
    """Blocks of 128 and of 16, a prime length, and one that is sorted; NaN comes first."""
    random, shape = np.random.default_rng(0), (2, 3, length)
    equal = random.integers(0, 3, shape)
    few = np.where(random.random(shape) < 0.999, -np.inf, np.inf)
    values = np.stack([random.standard_normal(shape), equal, few]).astype(np.float32)
    with_nan, with_inf = (changed(values, np.s_[0, 0, 0, 5], new) for new in (np.nan, np.inf))
    found = jitted(lambda values: top_indices(values, 7))(with_nan)
    expected = jitted(lambda values: jax.lax.top_k(values, 7)[1])(with_inf)
    np.testing.assert_array_equal(found, expected)


NAN = float("nan")
MISTAKES = {
    "num_beams must be at least 1, got 0": lambda: Beam(0),
    r"length_penalty must be .* such as Power\(1.0\), got nan": lambda: Beam(2, None, NAN),
    "n_best must be at least 1 and at most 2, got 3": lambda: Beam(2, n_best=3),
    "alpha must be finite and at least -5 and at most 5, got nan": lambda: GNMT(NAN),
    "exponent must be at least -5 and at most 5, got 300.0": lambda: Power(300.0),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_impossible_settings_are_refused(words):
    with pytest.raises((TypeError, ValueError), match=words):
        MISTAKES[words]()
