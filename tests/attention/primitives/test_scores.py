"""Score functions against the loops of the oracle, and against numbers known by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import attend, masks, scores
from attention.primitives.scores import relative_buckets
from tests import oracle
from tests.attention.primitives.inputs import DIMS, K, N, S, T, draw, query_key_value

SLOPES, TABLE, BIAS, SINKS = draw((N,), (N, 8), (N, T, S), (N,))
POSITIONS = np.arange(T) + 1, np.arange(S)


def t5_bucket(distance, num_buckets, max_distance):
    """Of one distance in both directions, as section 2.1 of Raffel et al. tells it in words."""
    half = num_buckets // 2
    bucket = half if distance < 0 else 0
    distance = abs(distance)
    exact = half // 2
    if distance < exact:
        return bucket + distance
    way = math.log(distance / exact) / math.log(max_distance / exact)
    return bucket + min(half - 1, exact + int(way * (half - exact)))


def distance(row, column):
    return int(POSITIONS[0][row] - POSITIONS[1][column])


CASES = {
    "alibi": (
        scores.alibi(SLOPES),
        lambda score, t, s, n: score - float(SLOPES[n]) * abs(distance(t, s)),
    ),
    "relative_bias": (
        scores.relative_bias(TABLE, max_distance=6),
        lambda score, t, s, n: score + float(TABLE[n, t5_bucket(distance(t, s), 8, 6)]),
    ),
    "softcap": (scores.softcap(0.5), lambda score, t, s, n: 0.5 * math.tanh(score / 0.5)),
    "from_function": (
        scores.from_function(lambda score, q, k, head: jnp.where(head % 2 == 1, 2 * score, score)),
        lambda score, t, s, n: score * (1 + n % 2),
    ),
    "a tuple, in its order": (
        (scores.alibi(SLOPES), scores.softcap(0.5)),
        lambda score, t, s, n: (
            0.5 * math.tanh((score - float(SLOPES[n]) * abs(distance(t, s))) / 0.5)
        ),
    ),
}
IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["reference", "tiled"])


def check(expected, implementation, **arguments):
    output, extras = attend(
        *query_key_value(),
        returning=("weights", "logsumexp"),
        implementation=implementation,
        **arguments,
    )
    np.testing.assert_allclose(output, expected.output, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(extras["weights"], expected.weights, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(extras["logsumexp"], expected.logsumexp, rtol=1e-4, atol=1e-5)


@IMPLEMENTATIONS
@pytest.mark.parametrize("name", CASES)
def test_scores_are_what_the_oracle_says(name, implementation):
    score, by_hand = CASES[name]
    visible = np.arange(S) < S - 1
    expected = oracle.attention(
        *query_key_value(), allowed=lambda row, column: visible[column], score=by_hand
    )
    mask, positions = masks.lengths(S - 1), POSITIONS
    check(expected, implementation, score=score, mask=mask, positions=positions)


@IMPLEMENTATIONS
def test_a_bias_array_is_read_at_positions(implementation):
    def by_hand(score, row, column, head):
        return score + float(BIAS[head, row, column])

    expected = oracle.attention(*query_key_value(), score=by_hand)
    check(expected, implementation, score=scores.bias_array(BIAS))
    backwards = np.arange(T)[::-1].copy(), np.arange(S)

    def turned(score, row, column, head):
        return score + float(BIAS[head, T - 1 - row, column])

    expected = oracle.attention(*query_key_value(), score=turned)
    check(expected, implementation, score=scores.bias_array(BIAS), positions=backwards)


@IMPLEMENTATIONS
def test_a_sink_is_a_key_whose_value_is_zero(implementation):
    def allowed(row, column):
        return row != 2

    expected = oracle.attention(*query_key_value(), allowed=allowed, sinks=SINKS)
    mask = jnp.broadcast_to(jnp.arange(T)[:, None] != 2, (T, S))
    check(expected, implementation, score=scores.attention_sinks(SINKS), mask=mask)


@IMPLEMENTATIONS
def test_the_largest_score_is_that_of_a_key_however_large_a_sink(implementation):
    def largest(*score):
        _, extras = attend(
            *query_key_value(),
            score=score,
            returning=("largest_score",),
            implementation=implementation,
        )
        return extras["largest_score"]

    sinks = scores.attention_sinks(jnp.full(N, 200.0))
    np.testing.assert_allclose(largest(sinks), largest(), rtol=1e-5, atol=1e-5)


def test_slopes_of_the_paper():
    np.testing.assert_allclose(scores.alibi_slopes(8), [2.0**-n for n in range(1, 9)])
    three = [2**-4, 2**-8, 2**-2]  # of two heads, and every other one of four
    np.testing.assert_allclose(scores.alibi_slopes(3), three)


def test_buckets_by_hand():
    """32 buckets up to 128, both ways: 8 exact ones, then 8 that grow; the same again ahead."""
    distances = jnp.array([0, 1, 7, 8, 11, 12, 127, 128, 10_000, -1, -8, -10_000])
    expected = [0, 1, 7, 8, 8, 9, 15, 15, 15, 17, 24, 31]
    found = relative_buckets(distances, 32, max_distance=128, causal=False)
    np.testing.assert_array_equal(found, expected)
    behind_only = relative_buckets(distances[:4], 32, max_distance=128, causal=True)
    np.testing.assert_array_equal(behind_only, [0, 1, 7, 8])
    ahead = relative_buckets(jnp.array([-5]), 32, max_distance=128, causal=True)
    assert ahead == 0


@IMPLEMENTATIONS
def test_arrays_inside_receive_gradients(implementation):
    """The derivative of one weight by the bias it got: w (1 - w)."""

    def weight(bias):
        score = scores.bias_array(bias)
        _, extras = attend(
            *query_key_value(), score=score, returning=("weights",), implementation=implementation
        )
        return extras["weights"][1, 2, 3]

    value, gradient = jax.value_and_grad(weight)(BIAS)
    np.testing.assert_allclose(gradient[1, 2, 3], value * (1 - value), rtol=1e-4)
    assert not gradient[0].any()


@IMPLEMENTATIONS
def test_batched_arrays_are_one_score_for_each_example(implementation):
    B = DIMS["B"][0]
    inputs = query_key_value(DIMS["B"])
    slopes = jnp.stack([SLOPES * (b + 1) for b in range(B)])
    together = attend(
        *inputs, score=scores.alibi(slopes), positions=POSITIONS, implementation=implementation
    )
    for b in range(B):
        alone = attend(
            *(x[b] for x in inputs),
            score=scores.alibi(slopes[b]),
            positions=POSITIONS,
            implementation=implementation,
        )
        np.testing.assert_allclose(together[b], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "score, sentence",
    [
        (lambda s, q, k, n: s, "wrap a function in scores.from_function"),
        (jnp.ones((N, T, S)), "wrap an array that is added in scores.bias_array"),
        ("alibi", "score takes a scores.Score or a tuple of them, got str"),
    ],
)
def test_what_is_no_score(score, sentence):
    with pytest.raises(TypeError, match=sentence):
        attend(*query_key_value(), score=score)


@pytest.mark.parametrize(
    "score, sentence",
    [
        (scores.alibi(SLOPES[:-1]), f"a score describes {N - 1} heads .N., but there are {N}"),
        (scores.bias_array(BIAS[:, :-1]), f"{T - 1} queries .T., but there are {T}"),
        (scores.attention_sinks(SINKS[:K]), f"{K} heads"),
        (scores.alibi(jnp.ones((5, N))), "score has the leading axes"),
    ],
)
def test_arrays_of_another_size(score, sentence):
    with pytest.raises(ValueError, match=sentence):
        attend(*query_key_value(), score=score)


def test_a_function_must_return_scores():
    with pytest.raises(TypeError, match="must return scores as it got them"):
        attend(*query_key_value(), score=scores.from_function(lambda s, q, k, n: s.sum()))


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: scores.softcap(0.0), "softcap needs a finite limit above 0"),
        (lambda: scores.softcap(float("inf")), "softcap needs a finite limit above 0"),
        (lambda: scores.alibi_slopes(0), "num_heads must be at least 1, got 0"),
        (lambda: scores.relative_bias(jnp.ones((2, 32)), max_distance=8), "above the 8 distances"),
        (lambda: scores.relative_bias(jnp.ones((2, 32)), max_distance=16, causal=True), "the 16"),
        (lambda: scores.relative_bias(jnp.ones((2, 3))), "even number of 4 or more buckets"),
        (lambda: scores.bias_array(jnp.ones((2, 3))), "needs at least 3 axes"),
    ],
)
def test_scores_that_cannot_be(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
