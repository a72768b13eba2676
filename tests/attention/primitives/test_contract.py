"""Edge cases of attention: fully masked rows, NaN, causality, returning more."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import Dropout, attend, masks
from attention.primitives.arguments import check_arguments
from attention.primitives.dot_product import attend_by_definition
from attention.primitives.numerics import softmax
from attention.primitives.tiled import attend_in_tiles
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
    changed,
    equations_of,
    in_tiles,
    jitted,
    query_key_value,
)

INPUTS = ("query", "key", "value")
NONFINITE = [np.nan, np.inf, -np.inf]


def all_results(query, key, value, mask):
    output, extras = attend(query, key, value, mask=mask, returning=("weights", "logsumexp"))
    return output, extras["weights"], extras["logsumexp"]


attend_all = jitted(all_results)


@jitted
def gradients(query, key, value, mask, rows):
    """Compute gradients of a loss of some rows of output, weights and logsumexp."""

    def loss(inputs):
        output, weights, logsumexp = all_results(*inputs, mask)
        logsumexp = jnp.where(jnp.isneginf(logsumexp), 0, logsumexp)
        output = jnp.where(rows[:, None, None], output, 0)
        weights, logsumexp = jnp.where(rows[:, None], weights, 0), jnp.where(rows, logsumexp, 0)
        return sum(jnp.sum(jnp.sin(array)) for array in (output, weights, logsumexp))

    return jax.grad(loss)((query, key, value))


@jitted
def with_tangents(query, key, value, mask):
    """Compute output, weights and logsumexp, and their tangents for input tangents of 1."""
    inputs = (query, key, value)
    return jax.jvp(
        lambda *inputs: all_results(*inputs, mask), inputs, tuple(map(jnp.ones_like, inputs))
    )


ALL_ROWS = np.ones(T, bool)


# Fully masked rows.


def test_fully_masked_row_has_output_zero_and_logsumexp_minus_infinity():
    mask = CAUSAL & (np.arange(T) != 2)[:, None]
    output, weights, logsumexp = attend_all(*query_key_value(), mask)
    assert not output[2].any()
    assert not weights[:, 2].any()
    assert np.isneginf(logsumexp[:, 2]).all()
    others = np.arange(T) != 2
    full = attend_all(*query_key_value(), CAUSAL)
    np.testing.assert_array_equal(output[others], full[0][others])
    np.testing.assert_array_equal(weights[:, others], full[1][:, others])
    np.testing.assert_array_equal(logsumexp[:, others], full[2][:, others])


def test_fully_masked_row_has_zero_gradient():
    mask = CAUSAL & (np.arange(T) != 2)[:, None]
    with_masked_row = gradients(*query_key_value(), mask, ALL_ROWS)
    without_the_row = gradients(*query_key_value(), CAUSAL, np.arange(T) != 2)
    assert not with_masked_row[0][2].any()
    chex.assert_trees_all_equal(with_masked_row, without_the_row)


def test_fully_masked_row_has_zero_tangent():
    _, tangents = with_tangents(*query_key_value(), np.zeros((T, S), bool))
    chex.assert_trees_all_equal(tangents, jax.tree.map(jnp.zeros_like, tangents))


def test_fully_masked_row_has_zero_second_derivative():
    query, key, value = query_key_value()
    none = np.zeros((T, S), bool)
    hessian = jitted(jax.hessian(lambda query: attend(query, key, value, mask=none).sum()))
    assert not hessian(query).any()


def test_softmax_of_a_fully_masked_row_has_zero_derivatives():
    scores = np.array([[-np.inf] * S, [0.5] * (S - 1) + [-np.inf]], np.float32)
    weights, logsumexp = jitted(softmax)(scores)
    np.testing.assert_allclose(weights, [[0] * S, [1 / (S - 1)] * (S - 1) + [0]], rtol=1e-6)
    np.testing.assert_allclose(logsumexp, [-np.inf, 0.5 + np.log(S - 1)], rtol=1e-6)
    for derivative in (jax.jacfwd(softmax), jax.jacrev(softmax), jax.jacfwd(jax.jacrev(softmax))):
        for jacobian in jitted(derivative)(scores):
            assert not jacobian[0].any()
            assert np.isfinite(jacobian).all()


def test_softmax_passes_no_nan_through_a_weight_of_zero():
    """0 · NaN would be NaN, in the forward and in the backward direction."""
    scores = np.array([[0.25, -np.inf, 1.5], [-np.inf, -np.inf, -np.inf]], np.float32)
    masked = np.isneginf(scores)
    with_nan, clean = (np.where(masked, x, 2.0).astype(np.float32) for x in (np.nan, 0.0))

    @jitted
    def derivatives(direction):
        (_, logsumexp), pull = jax.vjp(softmax, scores)
        _, forward = jax.jvp(softmax, (scores,), (direction,))
        return *forward, *pull((direction, jnp.ones_like(logsumexp)))

    (*forward, back), (*others, other) = derivatives(with_nan), derivatives(clean)
    for d_weights, d_logsumexp in (forward, others):
        np.testing.assert_allclose(d_weights, np.zeros_like(scores), atol=1e-6)
        np.testing.assert_allclose(d_logsumexp, [2, 0], rtol=1e-6)
    np.testing.assert_array_equal(back, other)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_fully_masked_row_in_low_precision(dtype):
    output, weights, logsumexp = attend_all(*query_key_value(dtype=dtype), np.zeros((T, S), bool))
    assert not output.any()
    assert not weights.any()
    assert np.isneginf(logsumexp).all()


def test_example_with_padding_only():
    query, key, value = query_key_value(DIMS["B"])
    mask = masks.lengths([0, 4])
    actual = np.asarray(attend(query, key, value, mask=mask))
    assert not actual[0].any()
    expected = oracle.attention(query[1], key[1], value[1], lambda query, key: key < 4).output
    np.testing.assert_allclose(actual[1], expected, rtol=1e-5, atol=1e-6)


# NaN and infinities.


@pytest.mark.parametrize("number", NONFINITE)
@pytest.mark.parametrize("where", ["key", "value"])
def test_nan_at_a_masked_position_reaches_neither_output_nor_gradient(where, number):
    """Output, gradients and tangents have the same bits as with 0 in its place."""
    mask = CAUSAL & (np.arange(S) != 1)
    inputs = dict(zip(INPUTS, query_key_value(), strict=True))
    spots = changed(
        changed(inputs[where], (1, 0), number), np.s_[1, :, 3], number
    )  # one head, one column
    with_nan = inputs | {where: spots}
    clean = inputs | {where: np.where(np.isfinite(spots), spots, np.float32(0))}
    for function in (attend_all, with_tangents):
        chex.assert_trees_all_equal(function(**with_nan, mask=mask), function(**clean, mask=mask))
    actual = gradients(**with_nan, mask=mask, rows=ALL_ROWS)
    chex.assert_trees_all_equal(actual, gradients(**clean, mask=mask, rows=ALL_ROWS))
    assert not actual[INPUTS.index(where)][1].any()


@pytest.mark.parametrize("number", NONFINITE)
def test_fully_masked_rows_are_zero_with_nan_in_all_inputs(number):
    inputs = [np.full_like(array, number) for array in query_key_value()]
    none = np.zeros((T, S), bool)
    output, weights, logsumexp = attend_all(*inputs, none)
    assert not output.any()
    assert not weights.any()
    assert np.isneginf(logsumexp).all()
    assert not any(gradient.any() for gradient in gradients(*inputs, none, ALL_ROWS))


@pytest.mark.parametrize("number", NONFINITE)
@pytest.mark.parametrize("where", ["key", "value"])
def test_nan_reaches_exactly_the_queries_that_attend_to_it(where, number):
    """NaN at key position 4 of key head 1, with a causal mask: queries from 4 on, in one group."""
    inputs = dict(zip(INPUTS, query_key_value(), strict=True))
    head = 1
    clean = inputs | {where: changed(inputs[where], (4, head, 3), 0)}
    with_nan = inputs | {where: changed(inputs[where], (4, head, 3), number)}
    attends = POSITIONS[0] >= 4
    reached = attends[:, None] & (np.arange(N) // GROUP == head)
    output, weights, logsumexp = attend_all(**with_nan, mask=CAUSAL)
    np.testing.assert_array_equal(
        np.isnan(output), np.broadcast_to(reached[..., None], output.shape)
    )
    np.testing.assert_array_equal(
        np.isnan(weights),
        reached.T[..., None] & CAUSAL,  # masked weights are 0
    )
    np.testing.assert_array_equal(np.isnan(logsumexp), reached.T)
    expected, _, _ = attend_all(**clean, mask=CAUSAL)
    np.testing.assert_array_equal(output[~reached], expected[~reached])


@functools.partial(jitted, static_argnames="implementation")
def gradients_of_output(inputs, implementation):
    def loss(inputs):
        return attend(*inputs, mask=CAUSAL, **in_tiles(implementation, 2, 2)).sum()

    return jax.grad(loss)(inputs)


@pytest.mark.parametrize("implementation", ["reference", "tiled"])
@pytest.mark.parametrize("where", INPUTS)
def test_visible_nan_gives_nan_gradients(where, implementation):
    """A guard on the norm of the gradient must not pass."""
    gradient = functools.partial(gradients_of_output, implementation=implementation)
    inputs = dict(zip(INPUTS, query_key_value(), strict=True))
    head = 4 if where == "query" else 1
    with_nan = inputs | {where: changed(inputs[where], (3, head, 2), np.nan)}
    d_query, d_key, d_value = gradient(tuple(with_nan.values()))
    clean = gradient(tuple(inputs.values()))
    reached = np.zeros((T, N), bool)
    if where == "query":
        reached[3, 4] = True
    else:
        reached[POSITIONS[0] >= 3, GROUP * head : GROUP * (head + 1)] = True
    np.testing.assert_array_equal(
        np.isnan(d_query), np.broadcast_to(reached[..., None], d_query.shape)
    )
    group = head // GROUP if where == "query" else head
    for ours, theirs in ((d_key, clean[1]), (d_value, clean[2])):
        visible = np.zeros((S, K), bool)
        visible[: POSITIONS[0][3] + 1 if where == "query" else S, group] = True
        np.testing.assert_array_equal(
            np.isnan(ours), np.broadcast_to(visible[..., None], ours.shape)
        )
        np.testing.assert_array_equal(ours[~visible], theirs[~visible])


@pytest.mark.parametrize("where", ["key", "value"])
def test_keys_masked_for_nan_rows_keep_their_gradient(where):
    """Each row attends to three keys, and the loss excludes the rows that attend to NaN."""
    mask = (np.arange(S) >= np.arange(T)[:, None]) & (np.arange(S) <= np.arange(T)[:, None] + 2)
    inputs = dict(zip(INPUTS, query_key_value(), strict=True))
    with_nan = inputs | {where: changed(inputs[where], 4, np.nan)}
    finite_rows = np.arange(T) < 2
    actual = gradients(**with_nan, mask=mask, rows=finite_rows)
    expected = gradients(**inputs, mask=mask, rows=finite_rows)
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(ours[:2], theirs[:2])
        assert np.isfinite(ours[:2]).all()


@pytest.mark.parametrize("number", NONFINITE)
def test_nan_in_a_query_stays_in_its_row_and_head(number):
    query, key, value = query_key_value()
    output, _, _ = attend_all(changed(query, (3, 2, 0), number), key, value, CAUSAL)
    expected, _, _ = attend_all(query, key, value, CAUSAL)
    reached = np.zeros((T, N), bool)
    reached[3, 2] = True
    assert np.isnan(output[reached]).all()
    np.testing.assert_array_equal(output[~reached], expected[~reached])


@pytest.mark.parametrize("number", NONFINITE)
@pytest.mark.parametrize("where", INPUTS)
def test_nan_in_one_segment_leaves_the_gradients_of_the_other(where, number):
    """The loss sums over both segments, so it is NaN; so are all gradients of the segment."""
    of_queries, of_keys = np.array([0, 0, 1, 1, 1]), np.array([0, 0, 0, 1, 1, 1, 1])
    mask = of_queries[:, None] == of_keys[None, :]
    inputs = dict(zip(INPUTS, query_key_value(), strict=True))
    with_nan = inputs | {where: changed(inputs[where], 4, number)}
    actual = gradients(**with_nan, mask=mask, rows=ALL_ROWS)
    expected = gradients(**inputs, mask=mask, rows=ALL_ROWS)
    for ours, theirs, segment in zip(actual, expected, (of_queries, of_keys, of_keys), strict=True):
        np.testing.assert_array_equal(ours[segment == 0], theirs[segment == 0])
        reached = ours[segment == 1] if where != "query" or ours is not actual[0] else ours[4]
        assert np.isnan(reached).all()


def test_huge_masked_value_gives_no_nan():
    """The value is finite, but its product with a gradient overflows."""
    query, key, value = query_key_value()
    huge = np.where(np.arange(S)[:, None, None] == S - 1, np.float32(-3.4e38), value)
    allowed = np.broadcast_to(np.arange(S) < S - 1, (T, S))
    found = gradients(query, key, huge, allowed, ALL_ROWS)
    assert all(bool(np.isfinite(each).all()) for each in found)


def test_nan_in_one_example_does_not_reach_others():
    query, key, value = query_key_value(DIMS["B"])
    output = np.asarray(attend(query, changed(key, 0, np.nan), value, mask=CAUSAL))
    assert np.isnan(output[0]).all()
    expected = np.asarray(attend(query, key, value, mask=CAUSAL))
    np.testing.assert_array_equal(output[1], expected[1])


def test_huge_finite_scores_do_not_overflow():
    query, key, value = query_key_value()
    output, weights, logsumexp = attend_all(query * 1e15, key * 1e15, value, CAUSAL)
    assert np.isfinite(output).all()
    assert np.isfinite(logsumexp).all()
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)


@pytest.mark.parametrize("implementation", ["reference", "tiled"])
def test_scores_of_1e10_are_finite_under_jit(implementation):
    query, key, value = query_key_value()

    @jax.jit
    def run(query, key, value):
        return attend(
            query,
            key,
            value,
            mask=CAUSAL,
            returning=("logsumexp",),
            **in_tiles(implementation, 2, 2),
        )

    output, extras = run(query * 1e5, key * 1e5, value)
    assert np.isfinite(output).all()
    expected = oracle.attention(query * 1e5, key * 1e5, value, CAUSAL)
    np.testing.assert_allclose(extras["logsumexp"], expected.logsumexp, rtol=1e-5)
    np.testing.assert_allclose(output, expected.output, rtol=1e-4, atol=1e-4)


# Low precision.


def products_of_attend(dtype, implementation, platform, **options):
    allowed = jnp.asarray(CAUSAL)

    def run(query, key, value):
        arguments = check_arguments(query, key, value, mask=allowed, **options)
        if implementation == "tiled":
            return attend_in_tiles(arguments, platform)
        return attend_by_definition(arguments)

    equations = equations_of(jax.make_jaxpr(run)(*query_key_value(dtype=dtype)).jaxpr)
    return [equation for equation in equations if equation.primitive.name == "dot_general"]


@pytest.mark.parametrize("dtype, implementation", [("bfloat16", "reference"), ("float16", "tiled")])
def test_products_in_low_precision_accumulate_in_float32(dtype, implementation):
    """On a CPU, tiles convert to float32, in which these products are exact and faster."""
    found = products_of_attend(dtype, implementation, "cuda")
    assert len(found) >= 2
    for equation in found:
        assert {variable.aval.dtype for variable in equation.invars} == {jnp.dtype(dtype)}
        assert equation.outvars[0].aval.dtype == jnp.float32


@pytest.mark.parametrize(
    "precision, implementation",
    [
        ("default", "reference"),
        ("high", "tiled"),
        ("highest", "reference"),
        (None, "reference"),
        (None, "tiled"),
    ],
)
def test_precision_of_products(precision, implementation):
    """The default is the highest."""
    found = products_of_attend("float32", implementation, "cpu", precision=precision)
    expected = jax.lax.Precision[(precision or "highest").upper()]
    assert len(found) >= 2
    for equation in found:
        given = equation.params["precision"] or (jax.lax.Precision.DEFAULT,) * 2
        assert set(given) == {expected}


# Returning more.


@pytest.mark.parametrize(
    "names, dtype",
    [(("logsumexp",), "bfloat16"), (["logsumexp", "weights"], "float32")],
    ids=str,
)
def test_returning_more_never_changes_the_output(dtype, names):
    query, key, value = query_key_value(DIMS["B"], dtype)
    dropout = Dropout(jax.random.key(0), 0.3)
    run = functools.partial(attend, mask=masks.causal(), positions=POSITIONS, dropout=dropout)
    alone = jax.jit(run)(query, key, value)
    output, extras = jax.jit(functools.partial(run, returning=names))(query, key, value)
    assert list(extras) == list(names)
    np.testing.assert_array_equal(output, alone)


def test_returned_weights_are_before_dropout():
    query, key, value = query_key_value()
    dropout = Dropout(jax.random.key(0), 0.5)
    _, dropped = attend(query, key, value, dropout=dropout, returning=("weights",))
    _, plain = attend(query, key, value, returning=("weights",))
    np.testing.assert_array_equal(dropped["weights"], plain["weights"])


# Causality compares positions.


def test_causal_needs_positions_when_the_lengths_differ():
    query, key, value = query_key_value()
    with pytest.raises(ValueError, match=r"5 queries and 7 keys .* pass positions="):
        attend(query, key, value, mask=masks.causal())


def test_causal_positions_count_from_zero_when_lengths_are_equal():
    query, key, value = query_key_value()
    query = np.concatenate([query, query[:2]])
    actual = attend(query, key, value, mask=masks.causal())
    expected = oracle.attention(query, key, value, lambda row, column: column <= row).output
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("start", [0, 2, 9])
def test_causal_compares_the_given_positions(start):
    query, key, value = query_key_value()
    positions = np.arange(start, start + T), np.arange(S)
    actual = attend(query, key, value, mask=masks.causal(), positions=positions)
    expected = oracle.attention(query, key, value, lambda row, column: column <= start + row)
    np.testing.assert_allclose(actual, expected.output, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "mask",
    [masks.window(2), masks.prefix(3), masks.block(2) & ~masks.window(0)],
    ids=["window", "prefix", "block"],
)
def test_one_query_at_a_time_equals_a_full_pass(mask):
    """Decoding: one query, its position and all keys."""
    query, key, value = query_key_value()
    query = np.concatenate([query, query[:2]])
    full = np.asarray(attend(query, key, value, mask=mask))
    step = jitted(
        lambda query, row: attend(query, key, value, mask=mask, positions=(row, np.arange(S)))
    )
    for t in range(S):
        alone = step(query[t : t + 1], np.array([t]))
        np.testing.assert_allclose(alone[0], full[t], rtol=1e-5, atol=1e-6)


def test_keys_may_be_permuted_with_their_positions():
    query, key, value = query_key_value()
    order = np.random.default_rng(0).permutation(S)
    run = functools.partial(attend, query, mask=masks.causal() & masks.lengths(6))
    in_order = run(key, value, positions=POSITIONS)
    shuffled = run(key[order], value[order], positions=(POSITIONS[0], POSITIONS[1][order]))
    np.testing.assert_allclose(shuffled, in_order, rtol=1e-5, atol=1e-6)


# Every argument changes the output.


@pytest.mark.parametrize(
    "change",
    [
        {"mask": masks.window(1)},
        {"positions": (POSITIONS[0] - 1, POSITIONS[1])},
        {"scale": 0.5},
        {"dropout": Dropout(jax.random.key(1), 0.3)},
        {"dropout": Dropout(jax.random.key(0), 0.6)},
    ],
    ids=["mask", "positions", "scale", "dropout rng", "dropout rate"],
)
def test_every_argument_changes_the_output(change):
    arguments = {
        "mask": masks.causal(),
        "positions": POSITIONS,
        "scale": 0.3,
        "dropout": Dropout(jax.random.key(0), 0.3),
    }
    before = attend(*query_key_value(), **arguments)
    after = attend(*query_key_value(), **arguments | change)
    assert not np.allclose(before, after)


def test_sizes_are_distinct():
    """Every axis has its own size, and every query its own number of visible keys."""
    assert len({T, S, N, K, *DIMS["BHv"]}) == 7
    assert len(set(CAUSAL.sum(axis=1).tolist())) == T
