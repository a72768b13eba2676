"""What attention promises at its edges: empty rows, NaN, causality and asking for more."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import Dropout, attend, masks
from attention.primitives.softmax import softmax
from tests import oracle
from tests.attention.primitives.inputs import (
    CAUSAL,
    DIMS,
    GROUP,
    POSITIONS,
    K,
    N,
    S,
    T,
    query_key_value,
)

INPUTS = ("query", "key", "value")
POISONS = [np.nan, np.inf, -np.inf]


@jax.jit
def attend_all(query, key, value, mask):
    output, extras = attend(query, key, value, mask=mask, returning=("weights", "logsumexp"))
    return output, extras["weights"], extras["logsumexp"]


@jax.jit
def gradients(query, key, value, mask, rows):
    """Of a loss that looks at some rows of output, weights and logsumexp."""

    def loss(inputs):
        output, weights, logsumexp = attend_all(*inputs, mask)
        logsumexp = jnp.where(jnp.isneginf(logsumexp), 0, logsumexp)
        output = jnp.where(rows[:, None, None], output, 0)
        weights, logsumexp = jnp.where(rows[:, None], weights, 0), jnp.where(rows, logsumexp, 0)
        return sum(jnp.sum(jnp.sin(array)) for array in (output, weights, logsumexp))

    return jax.grad(loss)((query, key, value))


@jax.jit
def directional(query, key, value, mask):
    """Output, weights and logsumexp with their derivatives as all inputs grow by one."""
    inputs = (query, key, value)
    return jax.jvp(
        lambda *inputs: attend_all(*inputs, mask), inputs, tuple(map(jnp.ones_like, inputs))
    )


ALL_ROWS = np.ones(T, bool)


# A query that may see nothing.


def test_an_empty_row_is_zero_and_its_logsumexp_minus_infinity():
    mask = CAUSAL & (np.arange(T) != 2)[:, None]
    output, weights, logsumexp = attend_all(*query_key_value(), mask)
    assert not output[2].any()
    assert not weights[:, 2].any()
    assert jnp.isneginf(logsumexp[:, 2]).all()
    others = np.arange(T) != 2
    full = attend_all(*query_key_value(), CAUSAL)
    np.testing.assert_array_equal(output[others], full[0][others])
    np.testing.assert_array_equal(weights[:, others], full[1][:, others])
    np.testing.assert_array_equal(logsumexp[:, others], full[2][:, others])


def test_an_empty_row_has_and_gives_no_gradient():
    mask = CAUSAL & (np.arange(T) != 2)[:, None]
    with_the_row = gradients(*query_key_value(), mask, ALL_ROWS)
    without_it = gradients(*query_key_value(), CAUSAL, np.arange(T) != 2)
    assert not with_the_row[0][2].any()
    chex.assert_trees_all_equal(with_the_row, without_it)


def test_an_empty_row_does_not_move():
    _, tangents = directional(*query_key_value(), np.zeros((T, S), bool))
    chex.assert_trees_all_equal(tangents, jax.tree.map(jnp.zeros_like, tangents))


def test_an_empty_row_has_no_second_derivative():
    query, key, value = query_key_value()
    nobody = np.zeros((T, S), bool)
    hessian = jax.jit(jax.hessian(lambda query: attend(query, key, value, mask=nobody).sum()))
    assert not hessian(query).any()


def test_softmax_alone_has_no_derivative_where_nothing_is_seen():
    """Not even before the mask of `attend` cuts it off."""
    scores = jnp.array([[-jnp.inf] * S, [0.5] * (S - 1) + [-jnp.inf]])
    weights, logsumexp = softmax(scores)
    np.testing.assert_allclose(weights, [[0] * S, [1 / (S - 1)] * (S - 1) + [0]], rtol=1e-6)
    np.testing.assert_allclose(logsumexp, [-np.inf, 0.5 + np.log(S - 1)], rtol=1e-6)
    for derivative in (jax.jacfwd(softmax), jax.jacrev(softmax), jax.jacfwd(jax.jacrev(softmax))):
        for jacobian in derivative(scores):
            assert not jacobian[0].any()
            assert jnp.isfinite(jacobian).all()


def test_nothing_passes_a_weight_of_zero_in_either_direction():
    """Not even NaN: 0 · NaN would be NaN."""
    scores = jnp.array([[0.25, -jnp.inf, 1.5], [-jnp.inf, -jnp.inf, -jnp.inf]])
    hidden = jnp.isneginf(scores)
    dirty, clean = jnp.where(hidden, jnp.nan, 2.0), jnp.where(hidden, 0.0, 2.0)
    (_, logsumexp), pull = jax.vjp(softmax, scores)
    for direction in (dirty, clean):
        _, (d_weights, d_logsumexp) = jax.jvp(softmax, (scores,), (direction,))
        np.testing.assert_allclose(d_weights, jnp.zeros_like(scores), atol=1e-6)
        np.testing.assert_allclose(d_logsumexp, [2, 0], rtol=1e-6)
    back = (pull((tilt, jnp.ones_like(logsumexp)))[0] for tilt in (dirty, clean))
    chex.assert_trees_all_equal(*back)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_an_empty_row_in_narrow_dtypes(dtype):
    output, weights, logsumexp = attend_all(*query_key_value(dtype=dtype), np.zeros((T, S), bool))
    assert not output.any()
    assert not weights.any()
    assert jnp.isneginf(logsumexp).all()


def test_an_example_whose_keys_are_all_padding():
    query, key, value = query_key_value(DIMS["B"])
    mask = masks.lengths([0, 4])
    actual = attend(query, key, value, mask=mask)
    assert not actual[0].any()
    expected = oracle.attention(query[1], key[1], value[1], lambda query, key: key < 4).output
    np.testing.assert_allclose(actual[1], expected, rtol=1e-5, atol=1e-6)


# A NaN or an infinity where nobody may look.


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("where", ["key", "value"])
def test_poison_in_a_hidden_key_or_value_reaches_nothing(where, poison):
    """Bit for bit what a zero in its place would give, in output, gradients and tangents."""
    mask = CAUSAL & (np.arange(S) != 1)
    inputs = dict(zip(INPUTS, query_key_value(), strict=True))
    spots = inputs[where].at[1, 0].set(poison).at[1, :, 3].set(poison)  # one head, one column
    poisoned = inputs | {where: spots}
    clean = inputs | {where: jnp.where(jnp.isfinite(spots), spots, 0)}
    for function in (attend_all, directional):
        chex.assert_trees_all_equal(function(**poisoned, mask=mask), function(**clean, mask=mask))
    actual = gradients(**poisoned, mask=mask, rows=ALL_ROWS)
    chex.assert_trees_all_equal(actual, gradients(**clean, mask=mask, rows=ALL_ROWS))
    assert not actual[INPUTS.index(where)][1].any()


@pytest.mark.parametrize("poison", POISONS)
def test_poison_everywhere_reaches_nobody_who_sees_nothing(poison):
    inputs = [jnp.full_like(array, poison) for array in query_key_value()]
    nobody = np.zeros((T, S), bool)
    output, weights, logsumexp = attend_all(*inputs, nobody)
    assert not output.any()
    assert not weights.any()
    assert jnp.isneginf(logsumexp).all()
    assert not any(gradient.any() for gradient in gradients(*inputs, nobody, ALL_ROWS))


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("where", ["key", "value"])
def test_poison_reaches_exactly_those_who_may_see_it(where, poison):
    """Key position 4 of key head 1, under causality: queries at 4 and later, in one group."""
    inputs = dict(zip(INPUTS, query_key_value(), strict=True))
    head = 1
    clean = inputs | {where: inputs[where].at[4, head, 3].set(0)}
    poisoned = inputs | {where: inputs[where].at[4, head, 3].set(poison)}
    sees = POSITIONS[0] >= 4
    reached = sees[:, None] & (np.arange(N) // GROUP == head)
    output, weights, logsumexp = attend_all(**poisoned, mask=CAUSAL)
    np.testing.assert_array_equal(
        jnp.isnan(output), np.broadcast_to(reached[..., None], output.shape)
    )
    np.testing.assert_array_equal(
        jnp.isnan(weights), np.broadcast_to(reached.T[..., None], weights.shape)
    )
    np.testing.assert_array_equal(jnp.isnan(logsumexp), reached.T)
    expected, _, _ = attend_all(**clean, mask=CAUSAL)
    np.testing.assert_array_equal(output[~reached], expected[~reached])
    chex.assert_trees_all_equal(
        gradients(**poisoned, mask=CAUSAL, rows=~sees), gradients(**clean, mask=CAUSAL, rows=~sees)
    )


@pytest.mark.parametrize("poison", POISONS)
def test_poison_in_a_query_stays_in_its_row_and_head(poison):
    query, key, value = query_key_value()
    output, _, _ = attend_all(query.at[3, 2, 0].set(poison), key, value, CAUSAL)
    expected, _, _ = attend_all(query, key, value, CAUSAL)
    reached = np.zeros((T, N), bool)
    reached[3, 2] = True
    assert jnp.isnan(output[reached]).all()
    np.testing.assert_array_equal(output[~reached], expected[~reached])


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("where", INPUTS)
def test_poison_in_one_segment_leaves_the_gradients_of_the_other(where, poison):
    """Although the loss sums over both, and is itself NaN."""
    of_queries, of_keys = np.array([0, 0, 1, 1, 1]), np.array([0, 0, 0, 1, 1, 1, 1])
    mask = of_queries[:, None] == of_keys[None, :]
    inputs = dict(zip(INPUTS, query_key_value(), strict=True))
    poisoned = inputs | {where: inputs[where].at[4].set(poison)}
    actual = gradients(**poisoned, mask=mask, rows=ALL_ROWS)
    expected = gradients(**inputs, mask=mask, rows=ALL_ROWS)
    for ours, theirs, segment in zip(actual, expected, (of_queries, of_keys, of_keys), strict=True):
        np.testing.assert_array_equal(ours[segment == 0], theirs[segment == 0])


def test_a_huge_number_behind_the_mask_gives_no_nan():
    """Finite, but its product with a gradient is not."""
    query, key, value = query_key_value()
    hidden = jnp.where(jnp.arange(S)[:, None, None] == S - 1, -3.4e38, value)
    allowed = np.broadcast_to(np.arange(S) < S - 1, (T, S))
    found = gradients(query, key, hidden, allowed, ALL_ROWS)
    assert all(bool(jnp.isfinite(each).all()) for each in found)


def test_poison_in_another_example_of_the_batch_stays_there():
    query, key, value = query_key_value(DIMS["B"])
    output = attend(query, key.at[0].set(jnp.nan), value, mask=CAUSAL)
    assert jnp.isnan(output[0]).all()
    np.testing.assert_array_equal(output[1], attend(query, key, value, mask=CAUSAL)[1])


def test_huge_finite_scores_do_not_overflow():
    query, key, value = query_key_value()
    output, weights, logsumexp = attend_all(query * 1e15, key * 1e15, value, CAUSAL)
    assert jnp.isfinite(output).all()
    assert jnp.isfinite(logsumexp).all()
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)


# Asking for more.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("asked", [("weights",), ("logsumexp",), ["logsumexp", "weights"]], ids=str)
def test_asking_for_more_never_changes_the_output(dtype, asked):
    query, key, value = query_key_value(DIMS["B"], dtype)
    dropout = Dropout(jax.random.key(0), 0.3)
    run = functools.partial(attend, mask=masks.causal(), positions=POSITIONS, dropout=dropout)
    alone = jax.jit(run)(query, key, value)
    output, extras = jax.jit(functools.partial(run, returning=asked))(query, key, value)
    assert list(extras) == list(asked)
    np.testing.assert_array_equal(output, alone)


def test_weights_are_those_before_dropout():
    query, key, value = query_key_value()
    dropout = Dropout(jax.random.key(0), 0.5)
    _, dropped = attend(query, key, value, dropout=dropout, returning=("weights",))
    _, plain = attend(query, key, value, returning=("weights",))
    np.testing.assert_array_equal(dropped["weights"], plain["weights"])


# Causality is about positions.


def test_causal_needs_positions_when_the_lengths_differ():
    query, key, value = query_key_value()
    with pytest.raises(ValueError, match=r"5 queries and 7 keys .* pass positions="):
        attend(query, key, value, mask=masks.causal())


def test_causal_counts_from_zero_when_the_lengths_agree():
    query, key, value = query_key_value()
    query = jnp.concatenate([query, query[:2]])
    actual = attend(query, key, value, mask=masks.causal())
    expected = oracle.attention(query, key, value, lambda row, column: column <= row).output
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("start", [0, 2, 9])
def test_causal_asks_where_the_queries_stand(start):
    query, key, value = query_key_value()
    at = np.arange(start, start + T), np.arange(S)
    actual = attend(query, key, value, mask=masks.causal(), positions=at)
    expected = oracle.attention(query, key, value, lambda row, column: column <= start + row)
    np.testing.assert_allclose(actual, expected.output, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "mask",
    [masks.causal(), masks.window(2), masks.prefix(3), masks.block(2) & ~masks.window(0)],
    ids=["causal", "window", "prefix", "block"],
)
def test_one_query_at_a_time_is_a_full_pass(mask):
    """Decoding: one query, all keys, and the position it has reached."""
    query, key, value = query_key_value()
    query = jnp.concatenate([query, query[:2]])
    full = attend(query, key, value, mask=mask)
    step = jax.jit(
        lambda query, at: attend(query, key, value, mask=mask, positions=(at, np.arange(S)))
    )
    for t in range(S):
        alone = step(query[t : t + 1], np.array([t]))
        np.testing.assert_allclose(alone[0], full[t], rtol=1e-5, atol=1e-6)


def test_order_of_the_keys_does_not_matter_when_their_positions_move_along():
    query, key, value = query_key_value()
    order = np.random.default_rng(0).permutation(S)
    run = functools.partial(attend, query, mask=masks.causal() & masks.lengths(6))
    straight = run(key, value, positions=POSITIONS)
    shuffled = run(key[order], value[order], positions=(POSITIONS[0], POSITIONS[1][order]))
    np.testing.assert_allclose(shuffled, straight, rtol=1e-5, atol=1e-6)


# No argument is dropped silently.


@pytest.mark.parametrize(
    "change",
    [
        {"mask": masks.window(1)},
        {"positions": (POSITIONS[0] - 1, POSITIONS[1])},
        {"scale": 0.5},
        {"dropout": Dropout(jax.random.key(1), 0.3)},
        {"dropout": Dropout(jax.random.key(0), 0.6)},
    ],
    ids=["mask", "positions", "scale", "dropout key", "dropout rate"],
)
def test_every_argument_is_heard(change):
    arguments = {
        "mask": masks.causal(),
        "positions": POSITIONS,
        "scale": 0.3,
        "dropout": Dropout(jax.random.key(0), 0.3),
    }
    before = attend(*query_key_value(), **arguments)
    after = attend(*query_key_value(), **arguments | change)
    assert not np.allclose(before, after)


def test_sizes_of_these_tests_hide_nothing():
    """Every axis has its own size, and some queries see less than others."""
    assert len({T, S, N, K, *DIMS["BHv"]}) == 7
    assert len(set(CAUSAL.sum(axis=1).tolist())) == T
