"""Score functions against the float64 oracle and against numbers computed by hand."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import attend, masks, scores
from attention.primitives.pytree_dataclass import array_field, pytree_dataclass
from attention.primitives.scores import relative_buckets
from tests import oracle
from tests.attention.primitives.inputs import DIMS, N, S, T, draw, in_tiles, jitted, query_key_value

SLOPES, TABLE, BIAS, SINKS = draw((N,), (N, 8), (N, T, S), (N,))
POSITIONS = np.arange(T)[::-1].copy(), np.arange(S)


DISTANCES = np.subtract.outer(*POSITIONS)
BUCKETS = np.asarray(relative_buckets(jnp.asarray(DISTANCES), 8, max_distance=6, causal=False))


CASES = {
    "relative_bias": (
        scores.relative_bias(TABLE, max_distance=6),
        lambda score, t, s, n: score + float(TABLE[n, BUCKETS[t, s]]),
    ),
    "from_function": (
        scores.from_function(lambda score, q, k, head: jnp.where(head % 2 == 1, 2 * score, score)),
        lambda score, t, s, n: score * (1 + n % 2),
    ),
    "a tuple, in its order": (
        (scores.alibi(SLOPES), scores.softcap(0.5)),
        lambda score, t, s, n: (
            0.5 * math.tanh((score - float(SLOPES[n]) * abs(int(DISTANCES[t, s]))) / 0.5)
        ),
    ),
    "attention_sinks": (scores.attention_sinks(SINKS), lambda score, t, s, n: score),
    "bias_array, indexed by positions": (
        scores.bias_array(BIAS),
        lambda score, t, s, n: score + float(BIAS[n, POSITIONS[0][t], s]),
    ),
}


@pytest.mark.parametrize("implementation", ["reference", "tiled"])
@pytest.mark.parametrize("name", CASES)
def test_scores_equal_the_oracle(name, implementation):
    score, by_hand = CASES[name]
    options = {"mask": masks.lengths(S - 1), "positions": POSITIONS}
    output, extras = attend(
        *query_key_value(),
        **options,
        score=score,
        returning=("weights", "logsumexp"),
        implementation=implementation,
    )
    sinks = SINKS if name == "attention_sinks" else None
    expected = oracle.attention(
        *query_key_value(), lambda row, column: column < S - 1, score=by_hand, sinks=sinks
    )
    np.testing.assert_allclose(output, expected.output, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(extras["weights"], expected.weights, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(extras["logsumexp"], expected.logsumexp, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("implementation", ["reference", "tiled"])
def test_masked_keys_beside_a_nan_in_a_sink_have_weight_0(implementation):
    _, extras = attend(
        *(jnp.ones((size, 1, 2)) for size in (1, 3, 3)),
        mask=jnp.array([[True, True, False]]),
        score=scores.attention_sinks(jnp.full(1, jnp.nan)),
        returning=("weights",),
        implementation=implementation,
    )
    np.testing.assert_array_equal(extras["weights"][0, 0], [jnp.nan, jnp.nan, 0])


def test_largest_score_excludes_sinks():
    def largest(*score):
        output, extras = attend(*query_key_value(), score=score, returning=("largest_score",))
        np.testing.assert_array_equal(output, attend(*query_key_value(), score=score))
        return extras["largest_score"]

    sinks = scores.attention_sinks(np.full(N, 200, np.float32))
    np.testing.assert_allclose(largest(sinks), largest(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("implementation", ["reference", "tiled"])
def test_score_function_that_is_finite_at_masked_pairs(implementation):
    """As documented: the argument of the logarithm is chosen, so that no gradient is NaN."""

    def loss(query, score, implementation):
        options = {"mask": masks.causal(), "score": score, **in_tiles(implementation, 2, 2)}
        key, value = query_key_value()[1:]
        return attend(query, key[:T], value[:T], **options).sum()

    def distant(score, q, k, head):
        return score - 0.5 * jnp.log(jnp.where(k <= q, q - k + 1, 1).astype(score.dtype))

    query, places = query_key_value()[0], np.arange(T)
    distances = np.maximum(np.subtract.outer(places, places), 0) + 1
    bias = scores.bias_array(-0.5 * np.log(distances).astype(np.float32))
    gradient = jax.grad(loss)
    actual = gradient(query, scores.from_function(distant), implementation)
    np.testing.assert_allclose(actual, gradient(query, bias, "reference"), rtol=1e-4, atol=1e-5)


def test_alibi_slopes_equal_the_paper():
    np.testing.assert_allclose(scores.alibi_slopes(8), [2.0**-n for n in range(1, 9)])
    three = [2**-4, 2**-8, 2**-2]  # those of two heads, then every other one of four
    np.testing.assert_allclose(scores.alibi_slopes(3), three)


def test_buckets_equal_numbers_by_hand():
    """32 buckets up to 128: per direction, 8 of one distance each and 8 that grow."""
    distances = np.array([0, 1, 7, 8, 11, 12, 127, 128, 10_000, -1, -8, -10_000], np.int32)
    expected = [0, 1, 7, 8, 8, 9, 15, 15, 15, 17, 24, 31]
    names = "num_buckets", "max_distance", "causal"
    run = jitted(relative_buckets, static_argnames=names)
    found = run(distances, num_buckets=32, max_distance=128, causal=False)
    np.testing.assert_array_equal(found, expected)
    causal = run(distances[[0, 1, 2, 3, -2, -1]], num_buckets=32, max_distance=128, causal=True)
    np.testing.assert_array_equal(causal, [0, 1, 7, 8, 0, 0])


@pytest.mark.parametrize(
    "num_buckets, max_distance",
    [(4, 3), (6, 648), (8, 6), (12, 1000), (16, 128), (32, 128), (32, 20), (64, 4096)],
)
def test_buckets_equal_exact_arithmetic(num_buckets, max_distance):
    """Those of T5, too: the largest b with (d / exact)^n >= (max_distance / exact)^b."""
    exact = num_buckets // 2
    n = num_buckets - exact
    distances = [*range(exact), *range(exact, max_distance + 2)]
    expected = [
        d
        if d < exact
        else exact + max(b for b in range(n) if d**n >= max_distance**b * exact ** (n - b))
        for d in distances
    ]
    found = relative_buckets(
        jnp.array(distances), num_buckets, max_distance=max_distance, causal=True
    )
    np.testing.assert_array_equal(found, expected)


def test_batched_arrays_equal_one_score_per_example():
    run = functools.partial(attend, positions=POSITIONS, implementation="tiled")
    B = DIMS["B"][0]
    inputs = query_key_value(DIMS["B"])
    slopes = np.stack([SLOPES * np.float32(b + 1) for b in range(B)])
    together = np.asarray(run(*inputs, score=scores.alibi(slopes)))
    for b in range(B):
        alone = run(*(x[b] for x in inputs), score=scores.alibi(slopes[b]))
        np.testing.assert_allclose(together[b], alone, rtol=1e-5, atol=1e-6)


def attended(score):
    return attend(*query_key_value(), score=score)


RECEIVES = "a score function receives (score, query_position, key_position, head)"
RETURNS = f"{RECEIVES} and must return float32[], got"


@pytest.mark.parametrize(
    "call, argument, error, words",
    [
        (attended, lambda s, q, k, n: s, TypeError, "wrap a function in scores.from_function"),
        (attended, jnp.ones((N, T, S)), TypeError, "an array that is added in"),
        (attended, scores.alibi(SLOPES[:-1]), ValueError, "describes 5 heads (N), but there are 6"),
        (attended, scores.bias_array(BIAS[:, :-1]), ValueError, "4 queries (T), but there are 5"),
        (attended, scores.alibi(jnp.ones((5, N))), ValueError, "score has the leading axes"),
        (scores.from_function, lambda s, q, k: s, TypeError, f"{RECEIVES}, and raised"),
        (scores.from_function, lambda s, q, k, n: s if q > k else -s, TypeError, "Python's if"),
        (scores.from_function, lambda s, q, k, n: q, TypeError, f"{RETURNS} int32"),
        (scores.from_function, lambda s, q, k, n: s * len(range(q)), TypeError, "range(...) do"),
        (scores.softcap, math.inf, ValueError, "softcap needs a finite limit above 0"),
        (scores.alibi_slopes, 0, ValueError, "num_heads must be at least 1, got 0"),
        (scores.relative_bias, jnp.ones((2, 512)), ValueError, "above the 128 distances"),
        (scores.relative_bias, jnp.ones((2, 3)), ValueError, "even number of 4 or more buckets"),
        (scores.bias_array, jnp.ones(3), ValueError, "needs at least 2 axes"),
    ],
)
def test_wrong_arguments_raise(call, argument, error, words):
    with pytest.raises(error, match=re.escape(words)):
        call(argument)


@pytest.mark.parametrize(
    "shape, implementation",
    [((T, S), "reference"), ((1, S), "tiled"), ((N, T, 1), "tiled"), ((1, T, S), "tiled")],
)
def test_broadcast_bias(shape, implementation):
    """Axes of 1, and no axis of heads; the gradient is a sum over these."""
    (bias,) = draw(shape, seed=4)

    def loss(bias, implementation):
        options = in_tiles(implementation, 2, 4)
        output = attend(*query_key_value(), score=scores.bias_array(bias), **options)
        return jnp.sum(jnp.sin(output)), output

    run = jitted(jax.grad(loss, has_aux=True), static_argnums=1)
    found, output = run(bias, implementation)
    full, pull = jax.vjp(lambda bias: jnp.broadcast_to(bias, (N, T, S)), bias)
    gradient, expected = run(full, "reference")
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found, pull(gradient)[0], rtol=1e-4, atol=1e-5)


def test_one_entry_serves_all_heads():
    def output(slopes, table, logits):
        score = (
            scores.alibi(slopes),
            scores.relative_bias(table, max_distance=6),
            scores.attention_sinks(logits),
        )
        options = in_tiles("tiled", 2, 4)
        return attend(*query_key_value(), score=score, positions=POSITIONS, **options)

    one = SLOPES[:1], TABLE[:1], SINKS[:1]
    repeated = (np.repeat(array, N, axis=0) for array in one)
    np.testing.assert_allclose(output(*one), output(*repeated), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "score", [scores.alibi(SLOPES[2:]), scores.attention_sinks(SINKS[2:])], ids=["alibi", "sinks"]
)
def test_array_without_the_global_number_of_a_head_gives_nan(score):
    """As where an array that is one shard of all heads is passed with `heads`."""
    query, key, value = query_key_value()
    some = query[:, 2:4], key[:, 1:2], value[:, 1:2]
    output = attend(*some, score=score, positions=POSITIONS, heads=np.array([3, 4]))
    np.testing.assert_array_equal(np.isnan(output).all(axis=(0, 2)), [False, True])


@pytest.mark.usefixtures("float64")
def test_score_functions_receive_float64():
    def double(score, query, key, head):
        return score + score * jnp.asarray(1 + 1e-10, score.dtype)

    inputs = query_key_value(dtype="float64")
    output = attend(*inputs, score=scores.from_function(double))
    expected = oracle.attention(*inputs, score=lambda score, *_: score * (2 + 1e-10))
    np.testing.assert_allclose(output, expected.output, rtol=1e-13)


@pytree_dataclass
class SlopeAndFactor(scores.Score):
    """A number per head `[N]`, and one for all `[1]`."""

    slopes: jax.Array = array_field("N")
    factor: jax.Array = array_field("N")

    def __call__(self, values, query, key, head):
        return values + self.factor[0] * self.slopes[head]


@pytree_dataclass
class LastAxis(scores.Score):
    """A table `[distances, N]`, whose heads are no leading axis."""

    table: jax.Array = array_field("pp")

    def __call__(self, values, query, key, head):
        return values + self.table[jnp.abs(query - key), head]


@pytest.mark.parametrize("implementation", ["reference", "tiled"])
def test_score_classes_of_a_user_whose_arrays_are_indexed_by_head(implementation):
    inputs = draw((1, N, 3), (S, N, 3), (S, N, 3))
    slopes, factor, table = draw((N,), (1,), (S, N))
    positions = np.zeros(1, np.int32), np.arange(S)
    for score, bias in (
        (SlopeAndFactor(slopes, factor), np.tile(factor * slopes, (S, 1))),
        (LastAxis(table), table),
    ):
        bias = scores.bias_array(np.ascontiguousarray(bias.T[:, None, :]))
        for options in ({}, {"heads": np.arange(N)}):
            options |= {"positions": positions, "implementation": implementation}
            ours, theirs = (attend(*inputs, score=each, **options) for each in (score, bias))
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_score_function_made_without_float64_refuses_it():
    with jax.enable_x64(False):
        single = scores.from_function(lambda s, q, k, n: 2 * s)
    with jax.enable_x64(True), pytest.raises(TypeError, match="takes no scores of float64"):
        attend(*draw(*[(3, 1, 2)] * 3, dtype="float64"), score=single)
