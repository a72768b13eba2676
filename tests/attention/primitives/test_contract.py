"""Edge cases of attention: fully masked rows, NaN, large scores, derivatives, precision."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from attention import Dropout, attend, masks, scores
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
    draw,
    equations_of,
    in_tiles,
    jitted,
    query_key_value,
)

INPUTS = ("query", "key", "value")
NONFINITE = [np.nan, np.inf, -np.inf]
DROPOUT = Dropout(jax.random.key(0), 0.3)
SLOPES, SINKS = draw((N,), (N,))
SCORE = scores.softcap(3.0), scores.alibi(SLOPES), scores.attention_sinks(SINKS)
B = DIMS["B"][0]
BATCH = dict(zip(INPUTS, query_key_value((B,)), strict=True))
# Queries 0 and 1 attend to keys 0 to 2, the others to later keys.
TWO_SEGMENTS = CAUSAL & ((np.arange(T) < 2)[:, None] == (np.arange(S) < 3))
with_implementations = pytest.mark.parametrize("implementation", ["reference", "tiled"])


@functools.partial(jitted, static_argnames="implementation")
def everything(query, key, value, mask, implementation):
    """Compute (output, weights, logsumexp), gradients of a sum over them, and their tangents."""

    def results(*inputs):
        options = {"mask": mask, "score": SCORE, "dropout": DROPOUT}
        names = "weights", "logsumexp"
        options |= in_tiles(implementation, 2, 2)
        output, extras = attend(*inputs, **options, returning=names)
        return output, *(extras[name] for name in names)

    def loss(*inputs):
        finite = (jnp.where(jnp.isneginf(x), 0, x) for x in results(*inputs))
        return sum(jnp.sum(jnp.sin(x.astype("float32"))) for x in finite)

    inputs = query, key, value
    found, tangents = jax.jvp(results, inputs, tuple(map(jnp.ones_like, inputs)))
    return found, jax.grad(loss, argnums=(0, 1, 2))(*inputs), tangents


@pytest.mark.parametrize(
    "dtype, number, implementation",
    [
        ("float32", np.inf, "reference"),
        ("float32", np.nan, "tiled"),
        ("bfloat16", -np.inf, "reference"),
        ("float16", np.nan, "tiled"),
    ],
)
def test_fully_masked_rows_are_zero_with_nonfinite_inputs(dtype, number, implementation):
    inputs = [np.full_like(array, number) for array in query_key_value((B,), dtype)]
    results, *derivatives = everything(*inputs, np.zeros((T, S), bool), implementation)
    output, weights, logsumexp = results
    assert not output.any()
    assert not weights.any()
    assert np.isneginf(logsumexp).all()
    assert not any(array.any() for array in jax.tree.leaves(derivatives))


@with_implementations
@pytest.mark.parametrize("number", NONFINITE)
@pytest.mark.parametrize("where", INPUTS)
def test_visible_nan_reaches_exactly_its_pairs(where, number, implementation):
    """In results and gradients; all others have the bits of finite inputs, tangents too."""
    reached = np.zeros((B, N, T), bool)
    if where == "query":
        index, reached[0, 4, 3] = (0, 3, 4, 2), True
    else:
        index, reached[0, GROUP : 2 * GROUP] = (0, 4, 1, 2), TWO_SEGMENTS[:, 4]
    found, clean = (
        everything(
            **BATCH | {where: changed(BATCH[where], index, entry)},
            mask=TWO_SEGMENTS,
            implementation=implementation,
        )
        for entry in (number, 0)
    )
    pairs = reached[..., None] & TWO_SEGMENTS
    keys = pairs.any(axis=2).reshape(B, K, GROUP, S).any(axis=2).swapaxes(1, 2)[..., None]
    queries = reached.swapaxes(1, 2)[..., None]
    of_results, of_gradients = (queries, pairs, reached), (queries, keys, keys)
    arrays = zip(jax.tree.leaves(found), jax.tree.leaves(clean), strict=True)
    nan = (*of_results, *of_gradients, *of_results)
    for number, ((array, other), where_nan) in enumerate(zip(arrays, nan, strict=True)):
        where_nan = np.broadcast_to(where_nan, array.shape)
        np.testing.assert_array_equal(array[~where_nan], other[~where_nan])
        assert np.isnan(array[where_nan]).all() or number >= 6  # tangents


def test_huge_masked_value_gives_no_nan():
    """The value is finite, but its product with a gradient overflows."""
    huge = changed(BATCH["value"], np.s_[:, S - 1], -3.4e38)
    mask = np.broadcast_to(np.arange(S) < S - 1, (T, S))
    _, gradients, _ = everything(**BATCH | {"value": huge}, mask=mask, implementation="reference")
    chex.assert_tree_all_finite(gradients)


@with_implementations
@pytest.mark.parametrize("factor", [1e5, 1e15])
def test_scores_of_1e10_and_1e30_are_finite(factor, implementation):
    """Under jit, where a compiler may round them differently in their maximum."""
    query, key, value = query_key_value()
    options = {"mask": CAUSAL, "returning": ("logsumexp",), **in_tiles(implementation, 2, 2)}
    inputs = query * np.float32(factor), key * np.float32(factor), value
    output, extras = jitted(functools.partial(attend, **options))(*inputs)
    expected = oracle.attention(*inputs, CAUSAL)
    np.testing.assert_allclose(extras["logsumexp"], expected.logsumexp, rtol=1e-5)
    np.testing.assert_allclose(output, expected.output, rtol=1e-4, atol=1e-4)


@with_implementations
def test_first_and_second_derivatives_equal_finite_differences(float64, implementation):
    """Of all results by inputs and a learned scale, in both modes; an example is fully masked."""
    options = {"mask": masks.causal() & masks.lengths([S, 0]), "positions": POSITIONS}
    options |= {"score": SCORE[:2], "dropout": DROPOUT, **in_tiles(implementation, 2, 4)}

    @jax.jit
    def function(query, key, value, scale):
        names = "weights", "logsumexp"
        output, extras = attend(query, key, value, scale=scale, **options, returning=names)
        logsumexp = extras["logsumexp"]  # -inf has no finite difference
        return output, extras["weights"], jnp.where(jnp.isneginf(logsumexp), 0, logsumexp)

    inputs = *query_key_value((B,), dtype="float64"), jnp.float64(0.4)
    check_grads(function, inputs, order=2, modes=("fwd", "rev"))


# Products of low precision.


def products_of_attend(dtype, implementation, platform, **options):
    run = attend_in_tiles if implementation == "tiled" else attend_by_definition
    inputs, mask = query_key_value(dtype=dtype), jnp.asarray(CAUSAL)
    program = jax.make_jaxpr(
        lambda *inputs: run(check_arguments(*inputs, mask=mask, **options), platform)
    )(*inputs)
    found = [one for one in equations_of(program.jaxpr) if one.primitive.name == "dot_general"]
    assert len(found) >= 2
    return found


@pytest.mark.parametrize("dtype, implementation", [("bfloat16", "reference"), ("float16", "tiled")])
def test_products_in_low_precision_accumulate_in_float32(dtype, implementation):
    """On a CPU, tiles convert to float32, in which these products are exact and faster."""
    for equation in products_of_attend(dtype, implementation, "cuda"):
        assert {variable.aval.dtype for variable in equation.invars} == {jnp.dtype(dtype)}
        assert equation.outvars[0].aval.dtype == jnp.float32


@pytest.mark.parametrize(
    "precision, implementation",
    [("default", "reference"), ("high", "tiled"), (None, "reference"), (None, "tiled")],
)
def test_precision_of_products(precision, implementation):
    """The default is the highest."""
    expected = jax.lax.Precision[(precision or "highest").upper()]
    for equation in products_of_attend("float32", implementation, "cpu", precision=precision):
        given = equation.params["precision"] or (jax.lax.Precision.DEFAULT,) * 2
        assert set(given) == {expected}


def test_softmax_passes_no_nan_through_a_weight_of_zero():
    """0 · NaN would be NaN, in tangents and in cotangents; another row is fully masked."""
    scores = np.float32([[0.25, -np.inf, 1.5], [-np.inf] * 3])
    direction = np.where(np.isneginf(scores), np.float32(np.nan), 2)

    @jitted
    def derivatives(direction):
        (_, logsumexp), pull = jax.vjp(softmax, scores)
        _, forward = jax.jvp(softmax, (scores,), (direction,))
        return *forward, *pull((direction, jnp.ones_like(logsumexp)))

    d_weights, d_logsumexp, d_scores = derivatives(direction)
    np.testing.assert_allclose(d_weights, np.zeros_like(scores), atol=1e-6)
    np.testing.assert_allclose(d_logsumexp, [2, 0], rtol=1e-6)
    np.testing.assert_array_equal(d_scores, derivatives(np.nan_to_num(direction))[2])
