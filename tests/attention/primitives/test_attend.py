"""Values, shapes, axes and dtypes of `attend` against the float64 oracle."""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import attend, grouped_query, masks, multi_head, scaled_dot_product
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
    draw,
    equations_of,
    jitted,
    query_key_value,
)

MORE = ("weights", "logsumexp")
results = functools.partial(attend, returning=MORE)
attend_all = jitted(results)


def all_of(attended):
    output, extras = attended
    return output, extras["weights"], extras["logsumexp"]


def random_mask(*shape, seed=1):
    """Draw a bool array with an empty row, a full row and a row with one visible key."""
    mask = np.random.default_rng(seed).random(shape) < 0.5
    mask[..., 0, :], mask[..., 1, :], mask[..., 2, :] = False, True, np.arange(shape[-1]) == 4
    return mask


@pytest.mark.parametrize(
    "batch, of_mask", [((), ()), (DIMS["B"], DIMS["B"]), ((3, 2), (3, 2)), ((3, 2), ())], ids=str
)
def test_values_equal_the_oracle(batch, of_mask):
    query, key, value = query_key_value(batch)
    mask = random_mask(*of_mask, T, S)
    actual = all_of(attend_all(query, key, value, mask=mask))
    expected = oracle.attention(query, key, value, mask)
    chex.assert_trees_all_close(actual, tuple(expected), rtol=1e-5, atol=1e-5)


def test_no_mask_allows_all_pairs():
    inputs = query_key_value(DIMS["B"])
    actual = all_of(attend_all(*inputs))
    chex.assert_trees_all_close(actual, tuple(oracle.attention(*inputs)), rtol=1e-5, atol=1e-5)


def test_scale_replaces_the_default():
    inputs = query_key_value()
    actual = all_of(attend_all(*inputs, scale=0.7))
    expected = oracle.attention(*inputs, scale=0.7)
    chex.assert_trees_all_close(actual, tuple(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("implementation", ["reference", "tiled"])
def test_scale_does_not_change_the_dtype_of_scores(implementation):
    run = jax.jit(functools.partial(results, implementation=implementation))
    with jax.numpy_dtype_promotion("strict"):
        actual = all_of(run(*query_key_value(), scale=jnp.asarray(0.5, jnp.bfloat16)))
    chex.assert_trees_all_equal(actual, all_of(run(*query_key_value(), scale=jnp.float32(0.5))))


@pytest.mark.parametrize("num_kv_heads", [1, 2, 3, 6])
def test_grouped_queries_equal_repeated_keys(num_kv_heads):
    query, key, value = draw(
        DIMS["TNH"], (S, num_kv_heads, DIMS["H"][0]), (S, num_kv_heads, DIMS["v"][0])
    )
    repeated = (np.repeat(array, N // num_kv_heads, axis=1) for array in (key, value))
    grouped = jax.jit(grouped_query)(query, key, value, CAUSAL)
    alone = jax.jit(multi_head)(query, *repeated, CAUSAL)
    chex.assert_trees_all_close(grouped, alone, rtol=1e-5, atol=1e-6)
    expected = oracle.attention(query, key, value, CAUSAL)
    chex.assert_trees_all_close(grouped, tuple(expected), rtol=1e-5, atol=1e-5)


def test_multi_head_equals_one_head_at_a_time():
    query, key, value = draw(DIMS["TNH"], DIMS["SNH"], DIMS["SNv"])
    one_head = jitted(scaled_dot_product)
    heads = [one_head(query[:, n], key[:, n], value[:, n], CAUSAL) for n in range(N)]
    stacked = [
        np.stack(parts, axis)
        for parts, axis in zip(zip(*heads, strict=True), (1, 0, 0), strict=True)
    ]
    together = jax.jit(multi_head)(query, key, value, CAUSAL)
    chex.assert_trees_all_close(tuple(stacked), together, rtol=1e-5, atol=1e-6)


def test_query_head_reads_the_key_head_of_its_group():
    """Each value is the number of its key head, so output head n must be n // G."""
    query, key, _ = query_key_value()
    value = np.broadcast_to(np.arange(K, dtype=np.float32)[None, :, None], (S, K, 1))
    output = np.asarray(attend(query, key, value))[..., 0]
    expected = np.broadcast_to(np.arange(N) // GROUP, (T, N))
    chex.assert_trees_all_close(output, expected.astype(np.float32), atol=1e-6)


def test_batch_equals_its_examples():
    query, key, value = query_key_value((3, 2))
    mask = random_mask(3, 2, T, S)
    batched = all_of(attend_all(query, key, value, mask=mask))
    lifted = jitted(jax.vmap(jax.vmap(lambda q, k, v, m: all_of(results(q, k, v, mask=m)))))
    chex.assert_trees_all_close(batched, lifted(query, key, value, mask), rtol=1e-6, atol=1e-6)
    for i, j in np.ndindex(3, 2):
        alone = all_of(attend_all(query[i, j], key[i, j], value[i, j], mask=mask[i, j]))
        ours = tuple(array[i, j] for array in batched)
        chex.assert_trees_all_close(ours, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("query_batch, key_batch", [((), (3, 2)), ((3, 1), (2,))])
def test_positions_broadcast_over_batch_axes(query_batch, key_batch):
    random = np.random.default_rng(3)
    query_positions = random.integers(-2, 9, (*query_batch, T))
    key_positions = random.integers(-2, 9, (*key_batch, S))
    query, key, value = query_key_value((3, 2))
    allowed = key_positions[..., None, :] <= query_positions[..., :, None]
    allowed = np.broadcast_to(allowed, (3, 2, T, S))
    actual = attend(
        query, key, value, mask=masks.causal(), positions=(query_positions, key_positions)
    )
    expected = oracle.attention(query, key, value, allowed).output
    chex.assert_trees_all_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_mask_with_one_batch_axis_broadcasts_to_two():
    query, key, value = query_key_value((3, 2))
    lengths = np.array([4, 6])
    actual = attend(query, key, value, mask=masks.lengths(lengths))
    allowed = np.broadcast_to(np.arange(S) < lengths[:, None, None], (3, 2, T, S))
    expected = oracle.attention(query, key, value, allowed).output
    chex.assert_trees_all_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-13), ("float32", 1e-5)])
def test_results_have_the_dtype_of_the_query(float64, dtype, tolerance):
    query, key, value = query_key_value(DIMS["B"], dtype)
    actual = all_of(attend_all(query, key, value, mask=CAUSAL))
    assert {array.dtype for array in actual} == {jnp.dtype(dtype)}
    expected = oracle.attention(query, key, value, CAUSAL)
    chex.assert_trees_all_close(actual, tuple(expected), rtol=tolerance, atol=tolerance)


def test_bfloat16_products_accumulate_in_float32():
    """Weights and output are rounded to bfloat16 once each."""
    inputs = query_key_value(DIMS["B"], "bfloat16")
    output, weights, logsumexp = all_of(attend_all(*inputs, mask=CAUSAL))
    assert output.dtype == jnp.bfloat16
    assert weights.dtype == logsumexp.dtype == jnp.float32
    expected = oracle.attention(*(np.asarray(array, np.float64) for array in inputs), CAUSAL)
    chex.assert_trees_all_close(weights, expected.weights, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(logsumexp, expected.logsumexp, rtol=1e-5, atol=1e-6)
    unit = 2.0**-8  # relative rounding error of bfloat16, which has 8 bits of significand
    value = np.repeat(np.asarray(inputs[2], np.float64), GROUP, axis=-2)
    of_weights = np.einsum("bnts,bsnh->btnh", expected.weights, np.abs(value))
    error = np.abs(np.asarray(output, np.float64) - expected.output)
    assert np.all(error <= 1.01 * unit * (np.abs(expected.output) + of_weights) + 1e-6)


def test_scores_are_not_rounded_to_bfloat16():
    """Scores 257 and 256 are equal in bfloat16; their exact weights are those of a sigmoid."""
    query = np.ones((1, 1, 2), jnp.bfloat16)
    key = np.array([[[256, 1]], [[256, 0]]], jnp.bfloat16)
    value = np.array([[[1]], [[0]]], jnp.bfloat16)
    output, weights, logsumexp = all_of(attend_all(query, key, value, scale=1.0))
    sigmoid = 1 / (1 + math.exp(-1))
    chex.assert_trees_all_close(weights[0, 0], np.array([sigmoid, 1 - sigmoid]), atol=1e-6)
    chex.assert_trees_all_close(logsumexp[0, 0], 257 + math.log1p(math.exp(-1)), atol=1e-4)
    assert output[0, 0, 0] == jnp.bfloat16(sigmoid)


def test_sum_over_many_keys_is_not_rounded_to_bfloat16():
    """With a thousand equal keys: in bfloat16, 256 + 1 is 256, so the mean would be wrong."""
    query, key = np.zeros((1, 1, 2), jnp.bfloat16), np.ones((1000, 1, 2), jnp.bfloat16)
    value = np.tile(np.array([1.0, 2.0], jnp.bfloat16), 500)[:, None, None]
    output, weights, logsumexp = all_of(attend_all(query, key, value))
    chex.assert_trees_all_close(weights, np.full((1, 1, 1000), 1e-3), rtol=1e-5)
    chex.assert_trees_all_close(logsumexp[0, 0], math.log(1000), rtol=1e-6)
    assert output[0, 0, 0] == 1.5


def test_keys_may_have_another_dtype_than_the_query():
    query, key, value = query_key_value(dtype="bfloat16")
    output = attend(query, key.astype(np.float32), value.astype(np.float16))
    assert output.dtype == jnp.bfloat16


@pytest.mark.parametrize("empty", ["T", "S", "B"])
def test_axis_of_size_zero(empty):
    sizes = dict(zip("BTNSKHv", DIMS["BTNSKHv"], strict=True)) | {empty: 0}
    dims = chex.Dimensions(**sizes)
    query, key, value = draw(dims["BTNH"], dims["BSKH"], dims["BSKv"])
    output, weights, logsumexp = all_of(attend_all(query, key, value))
    chex.assert_shape([output, weights, logsumexp], [dims["BTNv"], dims["BNTS"], dims["BNT"]])
    assert not output.any()
    assert np.isneginf(logsumexp).all()


@pytest.mark.parametrize("differentiated", [False, True], ids=["forward", "backward"])
def test_grouped_keys_are_never_repeated_in_memory(differentiated):
    inputs = query_key_value(DIMS["B"])

    def run(query, key, value):
        return attend(query, key, value, mask=masks.causal(), positions=POSITIONS).sum()

    function = jax.grad(run, argnums=(0, 1, 2)) if differentiated else run
    assert largest_over_keys(function, *inputs) <= math.prod(DIMS["BSKv"])


def test_repeated_keys_are_detected():
    _, key, _ = query_key_value(DIMS["B"])
    repeated = largest_over_keys(lambda key: jnp.repeat(key, GROUP, axis=-2) * 2, key)
    assert repeated == math.prod(DIMS["BSNH"])


def largest_over_keys(function, *inputs):
    """Return the size of the largest intermediate array with a key axis and a width axis."""
    widths = set(DIMS["Hv"])
    equations = equations_of(jax.make_jaxpr(function)(*inputs).jaxpr)
    shapes = [variable.aval.shape for equation in equations for variable in equation.outvars]
    return max(math.prod(shape) for shape in shapes if S in shape and widths & set(shape))
