"""Scale, grouped queries, batch axes, empty axes and memory of `attend`."""

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
    N,
    S,
    T,
    draw,
    equations_of,
    jitted,
    query_key_value,
)

MORE = ["weights", "logsumexp"]  # any collection
results = functools.partial(attend, returning=MORE)
attend_all = jitted(results)


def all_of(attended):
    output, extras = attended
    return output, extras["weights"], extras["logsumexp"]


@pytest.mark.parametrize("implementation", ["reference", "tiled"])
def test_scale_does_not_change_the_dtype_of_scores(implementation):
    run = jax.jit(functools.partial(results, implementation=implementation))
    actual = all_of(run(*query_key_value(), scale=jnp.asarray(0.5, jnp.bfloat16)))
    chex.assert_trees_all_equal(actual, all_of(run(*query_key_value(), scale=jnp.float32(0.5))))


@pytest.mark.parametrize("num_kv_heads", [1, 3, 6])
def test_grouped_queries_equal_repeated_keys_and_one_head_at_a_time(num_kv_heads):
    shape = S, num_kv_heads
    query, key, value = draw(DIMS["TNH"], (*shape, *DIMS["H"]), (*shape, *DIMS["v"]))
    repeated = [np.repeat(array, N // num_kv_heads, axis=1) for array in (key, value)]
    grouped = jitted(grouped_query)(query, key, value, CAUSAL)
    expected = oracle.attention(query, key, value, CAUSAL)
    chex.assert_trees_all_close(grouped, tuple(expected), rtol=1e-5, atol=1e-5)
    together = jitted(multi_head)(query, *repeated, CAUSAL)
    chex.assert_trees_all_close(grouped, together, rtol=1e-5, atol=1e-6)
    one_head = jitted(scaled_dot_product)
    for n in range(N):
        alone = one_head(*(array[:, n] for array in (query, *repeated)), CAUSAL)
        ours = together[0][:, n], together[1][n], together[2][n]
        chex.assert_trees_all_close(ours, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("query_batch, key_batch", [((), (3, 2)), ((3, 1), (2,))])
def test_positions_and_masks_broadcast_over_batch_axes(query_batch, key_batch):
    random, lengths = np.random.default_rng(3), np.array([4, 6])
    rows, columns = (
        random.integers(-2, 9, shape) for shape in ((*query_batch, T), (*key_batch, S))
    )
    allowed = columns[..., None, :] <= rows[..., :, None]
    allowed = allowed & ((columns >= 0) & (columns < lengths[:, None]))[..., None, :]
    inputs, mask = query_key_value((3, 2)), masks.causal() & masks.lengths(lengths)
    actual = attend(*inputs, mask=mask, positions=(rows, columns))
    expected = oracle.attention(*inputs, np.broadcast_to(allowed, (3, 2, T, S))).output
    chex.assert_trees_all_close(actual, expected, rtol=1e-5, atol=1e-5)


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
