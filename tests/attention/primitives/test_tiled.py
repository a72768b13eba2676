"""Attention in tiles against the definition: options, statistics, derivatives, cost."""

import functools
import time

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention import Dropout, attend, masks, scores
from attention.primitives.arguments import RETURNING
from attention.testing import ROWS, check_attention
from tests.attention.primitives.inputs import changed, draw, in_tiles, jitted
from tests.attention.primitives.test_layout import MASKS

B, T, S, N, K, H, V = 2, 21, 37, 6, 3, 5, 7
TILES = (8, 16)  # 3 by 3 tiles; the last row and column are smaller
QUERY, KEY, VALUE = draw((B, T, N, H), (B, S, K, H), (B, S, K, V))
AT_THE_START = np.arange(T), np.arange(S)
RANDOM = np.random.default_rng(0)
SEGMENTS = np.sort(RANDOM.integers(0, 3, (B, S)), axis=1)


def learned(score, query, key, head, weights):
    return score * weights[head % 2] + (query - key).astype(score.dtype)


LEARNED = scores.from_function(learned, draw((2,))[0])
RELATIVE = scores.relative_bias(draw((N, 8))[0], max_distance=16)
BIAS, BATCHED_BIAS = (scores.bias_array(x) for x in draw((N, T, S), (B, 1, T, S)))
SINKS = scores.attention_sinks(draw((N,))[0])
RANDOM_MASK = masks.from_array(RANDOM.random((S, S)) < 0.8)
DROPOUT = Dropout(jax.random.split(jax.random.key(3), B), 0.3)
CASES = {
    "bool array, all kinds of scores, dropout": {
        "mask": RANDOM.random((B, 1, T, S)) < 0.2,
        "score": (
            scores.alibi(scores.alibi_slopes(N)),
            scores.softcap(2.0),
            BATCHED_BIAS,
            LEARNED,
            SINKS,
        ),
        "dropout": DROPOUT,
    },
    "composed masks, fully masked rows, relative bias, bias array": {
        "mask": masks.segments(SEGMENTS[:, -T:], SEGMENTS)
        & ~masks.block(4)
        & masks.window(15, 9)
        & masks.lengths([30, 11])
        & (RANDOM_MASK | masks.prefix([2, 9])),
        "positions": AT_THE_START,
        "score": (RELATIVE, BIAS),
    },
}
DIFFERENTIABLE = ("logsumexp", "weights")


def gradient(implementation, inputs, score, arguments):
    """Return the gradient of a sum over all differentiable results, and the results."""

    def loss(inputs, score):
        options = {"score": score, "returning": RETURNING, **in_tiles(implementation, *TILES)}
        output, found = attend(*inputs, **arguments, **options)
        results = output, *(found[name] for name in DIFFERENTIABLE)
        finite = (jnp.where(jnp.isfinite(array), array, 0) for array in results)
        return sum(jnp.sum(jnp.sin(array + 0.1)) for array in finite), (output, found)

    function = jax.grad(loss, argnums=(0, 1), allow_int=True, has_aux=True)
    gradients, found = function(inputs, score)
    return [x for x in jax.tree.leaves(gradients) if x.dtype != jax.dtypes.float0], found


differentiated = jitted(gradient, static_argnums=0)


def test_contract():
    """In several tiles; test_conformance.py checks long sequences in tiles of the default sizes."""
    rows = [row for row in ROWS if "unaligned" not in row]
    report = check_attention(functools.partial(attend, **in_tiles("tiled", 4, 3)), rows=rows)
    assert {row.verdict for row in report.rows} == {"pass"}, report


@pytest.mark.parametrize("name", CASES)
def test_options_and_gradients_equal_the_definition(name):
    arguments, inputs = dict(CASES[name]), (QUERY, KEY, VALUE)
    score = arguments.pop("score", ())
    (expected, all_expected), (found, all_found) = (
        differentiated(one, inputs, score, arguments) for one in ("reference", "tiled")
    )
    chex.assert_trees_all_close(all_found, all_expected, rtol=1e-5, atol=1e-5)
    chex.assert_tree_all_finite(found)
    chex.assert_trees_all_close(found, expected, rtol=1e-3, atol=1e-4)
    assert np.isneginf(all_found[1]["logsumexp"]).any() == ("fully masked rows" in name)


@settings(max_examples=7)
@given(
    mask=MASKS,
    sizes=st.sampled_from([(1, 1), (13, 13), (31, 31), (13, 31)]),
    tile_sizes=st.sampled_from([(8, 8), (16, 8), (1, 1), (5, 31), (64, 64)]),
    softcapped=st.booleans(),
)
def test_any_mask_length_and_tile(mask, sizes, tile_sizes, softcapped):
    num_queries, num_keys = sizes
    query, key, value = draw((1, num_queries, 2, H), (1, num_keys, 1, H), (1, num_keys, 1, V))
    positions = np.arange(num_queries) + num_keys - num_queries, np.arange(num_keys)
    options = {"mask": mask, "positions": positions, "returning": ("logsumexp",)}
    options |= {"score": scores.softcap(1.5)} if softcapped else {}
    expected, found = (
        attend(query, key, value, **options, **in_tiles(one, *tile_sizes))
        for one in ("reference", "tiled")
    )
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-5)


SEQUENCES = masks.cu_seqlens([[0, 3, 29], [0, 11, 17]])
THREE_SEGMENTS = masks.segments(np.searchsorted([20, 44], np.arange(64), side="right"))
SPARSE = {  # mask, length, tile sizes
    # A row of tiles with queries of two blocks visits the keys of both blocks.
    "band of sequences per example": (SEQUENCES & masks.window(5), 29, (4, 2)),
    "band of blocks of sequences per example": (SEQUENCES & masks.block(5), 29, (4, 2)),
    # Of 16 columns of tiles, segments visit 5, at most a third, or 6.
    "rows of few and many tiles": (THREE_SEGMENTS, 64, (4, 4)),
}


@pytest.mark.parametrize("name", SPARSE)
def test_derivatives_of_rows_that_skip_tiles(name):
    """The gradient, and forward over reverse mode."""
    mask, length, tile_sizes = SPARSE[name]
    inputs = draw((B, length, 1, H))

    def loss(options, query):
        output, extras = attend(*[query] * 3, mask=mask, returning=("weights",), **options)
        return jnp.sum(jnp.sin(output)) + jnp.sum(jnp.sin(extras["weights"]))

    def derivatives(options):
        gradient = jax.grad(functools.partial(loss, options))
        return jax.jit(lambda x: jax.jvp(gradient, (x,), (x,)))(*inputs)

    found, expected = (derivatives(in_tiles(one, *tile_sizes)) for one in ("tiled", "reference"))
    chex.assert_trees_all_close(found, expected, rtol=1e-4, atol=1e-5)


def test_vmap_equals_a_batch():
    """Mapped over queries and a batch of masks, with shared keys; values and gradients."""

    def run(query, key, value, lengths):
        def loss(query):
            mask = masks.lengths(lengths)
            options = in_tiles("tiled", *TILES)
            output = attend(query, key, value, mask=mask, **options)
            return jnp.sum(jnp.sin(output)), output

        return jax.grad(loss, has_aux=True)(query)

    lengths = np.array([30, 4])
    mapped = jitted(jax.vmap(run, (0, None, None, 0)))(QUERY, KEY[0], VALUE[0], lengths)
    repeated = (np.broadcast_to(x[0], x.shape) for x in (KEY, VALUE))
    together = jitted(run)(QUERY, *repeated, lengths)
    for ours, theirs, rtol in zip(mapped, together, (1e-5, 1e-6), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("leading", [(3,), (2, 1)])
def test_arguments_may_have_batch_axes(leading):
    """Random keys, masks, bias arrays and positions of each example."""
    batch = (2, 3)
    query, key, value = draw((*batch, 9, 2, H), (*batch, 9, 2, H), (*batch, 9, 2, V))
    rngs = jax.random.split(jax.random.key(1), leading) if leading else jax.random.key(1)
    allowed, bias = draw((*leading, 1, 9, 9), (*leading, 2, 9, 9))
    allowed = allowed[(None,) * (2 - len(leading))] > -1  # as many axes as the weights
    options = {
        "dropout": Dropout(rngs, 0.5),
        "mask": allowed if len(leading) % 2 else masks.from_array(allowed),
        "score": scores.bias_array(bias),
        "positions": (np.broadcast_to(np.arange(9)[::-1], (*leading, 9)), np.arange(9)),
    }
    expected, found = (
        attend(query, key, value, **options, **in_tiles(one, 8, 8))
        for one in ("reference", "tiled")
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_transpose_of_the_derivative_by_values_alone():
    inputs = query, key, value = QUERY[0], KEY[0], VALUE[0]
    function = functools.partial(attend, mask=masks.lengths(20), **in_tiles("tiled", *TILES))

    def jvp_by_values(d_value):
        zeros = jnp.zeros_like(query), jnp.zeros_like(key)
        return jax.jvp(function, inputs, (*zeros, d_value))[1]

    (cotangent,) = jax.linear_transpose(jvp_by_values, value)(jnp.ones((T, N, V)))
    _, extras = attend(*inputs, mask=masks.lengths(20), returning=("weights",))
    expected = extras["weights"].sum(axis=1).reshape(K, N // K, S).sum(axis=1).T
    np.testing.assert_allclose(
        cotangent, jnp.broadcast_to(expected[..., None], (S, K, V)), rtol=1e-4
    )


def scratch(function, *shapes):
    """Return the scratch memory of a compiled function in MiB."""
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    compiled = jax.jit(function).lower(*arrays).compile()
    return compiled.memory_analysis().temp_size_in_bytes / 2**20


def test_memory_of_the_gradient_is_linear():
    """B 1, N 8, H 64, T 8,192, causal: below 130 MiB where jax.nn needs 6,176."""

    def loss(query, key, value):
        return attend(query, key, value, mask=masks.causal(), implementation="tiled").sum()

    shape = (1, 8192, 8, 64)
    mebibytes = scratch(jax.grad(loss, argnums=(0, 1, 2)), shape, shape, shape)
    assert mebibytes < 130


def test_batch_that_skips_own_tiles_takes_the_memory_of_one_example():
    """Inputs are transposed and padded for tiles one example after another."""
    segments = np.random.default_rng(0).integers(0, 2, (8, 1024)).cumsum(axis=1)

    def of_batch(size):
        def attention(query, key, value):
            mask = masks.segments(segments[:size])
            return attend(query, key, value, mask=mask, implementation="tiled")

        return scratch(attention, *[(size, 1024, 4, 32)] * 3)

    assert of_batch(8) < 1.5 * of_batch(1)


@pytest.mark.parametrize("mask", [None, masks.lengths(np.arange(8) * 30 + 40)], ids=["all", "own"])
@pytest.mark.parametrize("axes", [(), (1,)], ids=["no axis", "axis of one"])
def test_shared_bias_is_not_repeated_in_memory(axes, mask):
    """[N, T, S] and [1, N, T, S] take one copy and its gradient: 1 MiB, where 8 would take 8.

    For examples that are computed together, and for those that skip their own tiles.
    """

    def loss(bias, *inputs):
        options = {"mask": mask, "implementation": "tiled"}
        return attend(*inputs, score=scores.bias_array(bias), **options).sum()

    inputs = [(8, 256, 4, 8)] * 3
    assert scratch(jax.grad(loss), (*axes, 4, 256, 256), *inputs) < 8


def test_memory_of_higher_derivatives_and_statistics_is_linear():
    """One head of 32k tokens has 4 GiB of weights."""
    shape = (1, 32768, 1, 16)
    dropout = Dropout(jax.random.key(0), 0.1)

    def with_statistics(query, key, value):
        return attend(
            query,
            key,
            value,
            mask=masks.window(1000),
            dropout=dropout,
            returning=("largest_score", "logsumexp"),
            implementation="tiled",
        )

    def loss(inputs):
        output, extras = with_statistics(*inputs)
        return jnp.sum(output) + jnp.sum(extras["logsumexp"])

    def curvature(*inputs):
        return jax.jvp(jax.grad(loss), (inputs,), (inputs,))

    assert scratch(with_statistics, shape, shape, shape) < 64
    assert scratch(curvature, shape, shape, shape) < 256


# Cost.


def seconds(*calls, turns=12):
    """Return the least processor time of each compiled call, whatever else the machine does."""
    least = [float("inf")] * len(calls)
    for _ in range(turns):
        for n, call in enumerate(calls):
            start = time.process_time()
            jax.block_until_ready(call())
            least[n] = min(least[n], time.process_time() - start)
    return least


@pytest.fixture
def optimised():
    """Compile with the optimisations that the session disables."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.mark.usefixtures("optimised")
def test_packed_segments_per_example_skip_tiles():
    """Time of eight segments per example, with different bounds, over that of one.

    With the default tile sizes, for segments of about 1,024 tokens; on two devices, over which
    nothing is sharded.
    """
    assert len(jax.devices()) == 2
    batch, length = 2, 8192
    inputs = draw(*[(batch, length, 1, 16)] * 3)
    random = np.random.default_rng(0)
    cuts = np.arange(1, 8) * (length // 8) + random.integers(-64, 64, (batch, 7))
    eight = np.stack([np.searchsorted(one, np.arange(length), side="right") for one in cuts])

    @jax.jit
    def run(query, key, value, segments):
        mask = masks.segments(segments)
        return attend(query, key, value, mask=mask, implementation="tiled")

    packed, one = (jnp.asarray(x, jnp.int32) for x in (eight, np.zeros_like(eight)))
    run(*inputs, packed).block_until_ready()  # compiles
    of_packed, of_one = seconds(lambda: run(*inputs, packed), lambda: run(*inputs, one), turns=5)
    assert of_packed < 0.2 * of_one


@pytest.mark.usefixtures("optimised")
def test_gradient_of_packed_segments_skips_tiles():
    """Processor time of the gradient of 32 segments, each in one of 32 tiles, over that of one."""
    length = 2048
    inputs = draw(*[(1, length, 1, 64)] * 3)

    @jax.jit
    def gradient(inputs, segments):
        def loss(inputs):
            mask = masks.segments(segments)
            return attend(*inputs, mask=mask, implementation="tiled", tile_sizes=(64, 64)).sum()

        return jax.grad(loss)(inputs)

    one = jnp.zeros((1, length), jnp.int32)
    packed = jnp.arange(length, dtype=jnp.int32)[None] // 64
    assert "length=5" in str(jax.make_jaxpr(gradient)(inputs, packed))  # rows of few tiles
    jax.block_until_ready(gradient(inputs, packed))  # compiles
    of_packed, of_one = seconds(lambda: gradient(inputs, packed), lambda: gradient(inputs, one))
    # 0.13 on jax 0.10, and 0.20 if all rows of tiles have loops of equal length; 0.16 and 0.22 on
    # jax 0.12, with more noise.
    assert of_packed < (0.16 if jax.__version_info__[:2] == (0, 10) else 0.2) * of_one


def test_window_skips_tiles_under_vmap():
    """All examples share the pattern, so tiles are skipped under vmap too."""
    inputs = draw(*[(2, 2048, 1, 16)] * 3)

    def mapped(mask):
        run = functools.partial(attend, mask=mask, implementation="tiled", tile_sizes=(128, 128))
        return jax.jit(jax.vmap(run))

    window, dense = mapped(masks.window(100)), mapped(masks.window(10**6, 10**6))
    window(*inputs), dense(*inputs)
    of_window, of_dense = seconds(lambda: window(*inputs), lambda: dense(*inputs))
    assert of_window < 0.5 * of_dense


LOWEST = float(np.finfo(np.float32).min)


@pytest.mark.parametrize("score, sinks", [(-1e9, ()), (LOWEST, ()), (1e9, (SINKS,))])
def test_weights_sum_to_one_where_all_scores_are_large(score, sinks):
    """The logarithm of the number of keys is lost in the logsumexp of such a row."""
    bias = scores.bias_array(changed(np.zeros((T, S), np.float32), 3, score))

    @jax.jit
    def run(value):
        options = {"score": (bias, *sinks), "returning": ("weights",)}
        return attend(QUERY, KEY, value, **options, **in_tiles("tiled", *TILES))

    _, pull, found = jax.vjp(run, VALUE, has_aux=True)
    np.testing.assert_allclose(found["weights"][:, :, 3], 1 / S, rtol=1e-5)
    (gradient,) = pull(jnp.zeros((B, T, N, V)).at[:, 3].set(1))
    np.testing.assert_allclose(gradient.sum(1), N // K, rtol=1e-5)
