"""Tiled attention against the definition: every option, statistic and order of derivative."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention import Dropout, attend, masks, scores
from attention.primitives.attend import attend_by_definition
from attention.primitives.request import RETURNING, checked
from attention.primitives.tiled import derivative
from attention.primitives.tiled.attention import _attend, attend_in_tiles
from attention.primitives.tiled.tiling import TileSize
from tests.attention.primitives.inputs import draw
from tests.attention.primitives.tiled.test_touches import MASKS

B, T, S, N, K, H, V = 2, 21, 37, 6, 3, 5, 7
SIZE = TileSize(8, 16, 8 * 16 * 2 * 2)  # 3 by 3 tiles, the last ones not full; two heads at once
QUERY, KEY, VALUE = draw((B, T, N, H), (B, S, K, H), (B, S, K, V))
AT_THE_END = jnp.arange(S - T, S), jnp.arange(S)
AT_THE_START = jnp.arange(T), jnp.arange(S)
RANDOM = np.random.default_rng(0)
SEGMENTS = jnp.asarray(np.sort(RANDOM.integers(0, 3, (B, S)), axis=1))


def learned(weights, values, query, key, head):
    return values * weights[head % 2] + (query - key).astype(values.dtype)


LEARNED = scores.from_function(jax.tree_util.Partial(learned, draw((2,))[0]))
RELATIVE = scores.relative_bias(draw((N, 8))[0], max_distance=16)
BIAS, BIAS_OF_EACH = (scores.bias_array(x) for x in draw((N, T, S), (B, 1, T, S)))
SINKS = scores.attention_sinks(draw((N,))[0])
SOME = masks.from_array(jnp.asarray(RANDOM.random((S, S)) < 0.8))
DROPOUT = Dropout(jax.random.split(jax.random.key(3), B), 0.3)
CASES = {
    "causal, alibi, softcap, sinks, dropout": {
        "mask": masks.causal() & masks.lengths([30, 37]),
        "positions": AT_THE_END,
        "score": (scores.alibi(scores.alibi_slopes(N)), scores.softcap(2.0), SINKS),
        "dropout": DROPOUT,
    },
    "masks of masks, empty rows": {
        "mask": masks.window(5, 3) & masks.lengths([30, 11]) & (SOME | masks.prefix([2, 9])),
        "positions": AT_THE_END,
    },
    "segments, relative bias, bias array": {
        "mask": masks.segments(SEGMENTS[:, -T:], SEGMENTS) & ~masks.block(4),
        "positions": AT_THE_START,
        "score": (RELATIVE, BIAS),
    },
    "bool array, bias of one head, a function with learned arrays": {
        "mask": jnp.asarray(RANDOM.random((B, T, S)) < 0.2),
        "score": (BIAS_OF_EACH, LEARNED),
    },
}
DIFFERENTIABLE = ("output", "logsumexp", "entropy", "mean_distance", "weights")
TWICE_DIFFERENTIABLE = ("output", "logsumexp")  # of what the others are made


def compute(implementation, inputs, arguments):
    request = checked(*inputs, **arguments, returning=RETURNING, num_strongest=2)
    if implementation == "definition":
        return attend_by_definition(request)
    return attend_in_tiles(request, SIZE)


def loss(implementation, inputs, score, arguments, names=DIFFERENTIABLE):
    """Of all that has a derivative, and what it is of; logsumexp alone may be infinite."""
    found = compute(implementation, inputs, {**arguments, "score": score})
    finite = [jnp.where(jnp.isfinite(found[name]), found[name], 0) for name in names]
    return sum(jnp.sum(jnp.sin(array + 0.1)) for array in finite), found


def gradient(implementation, inputs, score, arguments, names=DIFFERENTIABLE):
    """That of the loss, and what the loss is of."""
    function = jax.grad(loss, argnums=(1, 2), allow_int=True, has_aux=True)
    gradients, found = function(implementation, inputs, score, arguments, names)
    return [x for x in jax.tree.leaves(gradients) if x.dtype != jax.dtypes.float0], found


def higher_derivatives(implementation, inputs, score, arguments):
    """Along a direction, along one of the gradient, and the gradient of the gradient."""

    def again(inputs):
        found, _ = gradient(implementation, inputs, score, arguments, TWICE_DIFFERENTIABLE)
        return sum(jnp.sum(jnp.sin(array.astype("float64"))) for array in found)

    direction = jax.tree.map(jnp.cos, inputs)
    return (
        jax.jvp(lambda x: loss(implementation, x, score, arguments)[0], (inputs,), (direction,))[1],
        jax.jvp(again, (inputs,), (direction,))[1],
        jax.grad(again)(inputs),
    )


@pytest.mark.parametrize("name", CASES)
def test_every_option_means_what_the_definition_says(name):
    arguments, inputs = dict(CASES[name]), (QUERY, KEY, VALUE)
    score = arguments.pop("score", ())
    (expected, all_expected), (found, all_found) = (
        jax.jit(gradient, static_argnums=0)(one, inputs, score, arguments)
        for one in ("definition", "tiled")
    )
    for part in ("output", *RETURNING):
        chex.assert_trees_all_close(all_found[part], all_expected[part], rtol=1e-5, atol=1e-5)
    chex.assert_tree_all_finite(found)
    chex.assert_trees_all_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("float64")
def test_so_do_derivatives_of_every_order():
    """With rows that see nothing, and sinks for nobody: they would hide those."""
    arguments = {
        "mask": masks.window(5, 3) & masks.lengths([30, 11]),
        "positions": AT_THE_END,
        "dropout": DROPOUT,
    }
    score = scores.alibi(scores.alibi_slopes(N)), scores.softcap(2.0)
    inputs, score = jax.tree.map(lambda x: x.astype("float64"), ([QUERY, KEY, VALUE], score))
    expected, found = (
        jax.jit(higher_derivatives, static_argnums=0)(one, inputs, score, arguments)
        for one in ("definition", "tiled")
    )
    chex.assert_tree_all_finite(found)
    chex.assert_trees_all_close(found, expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=8)
@given(
    mask=MASKS,
    sizes=st.sampled_from([(1, 1), (13, 13), (31, 31), (13, 31)]),
    rows=st.sampled_from([8, 16]),
    softcapped=st.booleans(),
)
def test_any_mask_any_length_any_tile(mask, sizes, rows, softcapped):
    num_queries, num_keys = sizes
    query, key, value = draw((1, num_queries, 2, H), (1, num_keys, 1, H), (1, num_keys, 1, V))
    request = checked(
        query,
        key,
        value,
        mask=mask,
        positions=(jnp.arange(num_queries) + num_keys - num_queries, jnp.arange(num_keys)),
        score=scores.softcap(1.5) if softcapped else (),
        returning=("logsumexp",),
    )
    expected = attend_by_definition(request)
    found = attend_in_tiles(request, TileSize(rows, 8, 8 * 8 * 2))
    for name in ("output", "logsumexp"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-5)
    if not softcapped:
        query, key, value = request.query, request.key, request.value[..., :H]
        positions = request.query_positions, request.key_positions
        by_jax = attend(query, key, value, mask=mask, positions=positions, implementation="jax")
        np.testing.assert_allclose(by_jax, expected["output"][..., :H], rtol=1e-4, atol=1e-5)


def test_tile_sizes_change_rounding_only_and_dropout_bits_not_at_all():
    """With values of one, what dropout keeps of each row can be read from the output."""
    arguments = {"dropout": DROPOUT, "mask": masks.causal(), "positions": AT_THE_END}
    ones = jnp.ones_like(VALUE)
    sizes = [TileSize(8, 8, 1), TileSize(24, 16, 1000), TileSize(64, 64, 10**6)]
    outputs = [
        attend_in_tiles(checked(QUERY, KEY, ones, **arguments), size)["output"] for size in sizes
    ]
    expected = attend_by_definition(checked(QUERY, KEY, ones, **arguments))["output"]
    for output in outputs:
        np.testing.assert_allclose(output, expected, rtol=1e-5)


def test_asking_for_more_changes_no_bit_of_the_output():
    request = checked(QUERY, KEY, VALUE, **CASES["masks of masks, empty rows"])
    more = dataclasses.replace(request, returning=RETURNING, num_strongest=3)
    alone, with_more = (attend_in_tiles(one, SIZE)["output"] for one in (request, more))
    np.testing.assert_array_equal(alone, with_more)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_reaches_who_sees_it_and_nobody_else(poison):
    mask = masks.lengths([S, 20])
    bad_key, bad_value = KEY.at[:, 20:].set(poison), VALUE.at[:, 20:].set(poison)
    for key, value in ((bad_key, VALUE), (KEY, bad_value)):
        found = compute("tiled", (QUERY, key, value), {"mask": mask})
        clean = compute("tiled", (QUERY, KEY, VALUE), {"mask": mask})
        for name in ("output", "logsumexp", "weights", "entropy"):
            assert jnp.isnan(found[name][0]).all()
            np.testing.assert_array_equal(found[name][1], clean[name][1])
    differentiate = jax.jit(gradient, static_argnums=0)
    grads, _ = differentiate("tiled", (QUERY, bad_key, bad_value), (), {"mask": mask})
    chex.assert_tree_all_finite([x[1] for x in grads])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_dtypes_come_back_and_are_computed_wide(dtype):
    narrow = [x.astype(dtype) for x in (QUERY, KEY, VALUE)]
    wide = [x.astype("float32") for x in narrow]
    found = compute("tiled", narrow, {})
    assert found["output"].dtype == dtype
    expected = compute("definition", wide, {})
    half_a_step = float(jnp.finfo(dtype).eps) / 2  # rounded once, at the end; sums differ by 1e-6
    output = found["output"].astype("float32")
    np.testing.assert_allclose(output, expected["output"], rtol=half_a_step, atol=1e-6)
    np.testing.assert_allclose(found["logsumexp"], expected["logsumexp"], rtol=1e-5)


@pytest.mark.usefixtures("float64")
def test_float64_stays_float64():
    inputs = draw((T, N, H), (S, K, H), (S, K, V), dtype="float64")
    found, expected = (compute(one, inputs, {}) for one in ("tiled", "definition"))
    assert found["output"].dtype == jnp.float64
    for name in ("output", "logsumexp", "entropy"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12)


def test_vmap_is_a_leading_axis():
    """Mapped over a batch of masks, and over queries alone with keys held still."""

    def one(query, key, value, length):
        request = checked(query, key, value, mask=masks.lengths(length))
        return attend_in_tiles(request, SIZE)["output"]

    lengths = jnp.array([30, 4])
    request = checked(QUERY, KEY, VALUE, mask=masks.lengths(lengths))
    together = attend_in_tiles(request, SIZE)["output"]
    mapped = jax.jit(jax.vmap(one))(QUERY, KEY, VALUE, lengths)
    np.testing.assert_allclose(mapped, together, rtol=1e-6, atol=1e-6)

    def total(query, length):
        return jnp.sum(jnp.sin(one(query, KEY[0], VALUE[0], length)))

    mapped = jax.jit(jax.vmap(jax.grad(total)))(QUERY, lengths)
    each = [jax.grad(total)(QUERY[b], lengths[b]) for b in range(B)]
    np.testing.assert_allclose(mapped, jnp.stack(each), rtol=1e-5, atol=1e-6)


def test_the_transpose_by_hand_is_the_one_jax_makes(monkeypatch):
    score = scores.relative_bias(draw((N, 8))[0], max_distance=16), scores.softcap(3.0)
    arguments = {"dropout": DROPOUT, "mask": masks.causal(), "positions": AT_THE_END}

    def loss(inputs, score):
        return jnp.sin(
            attend_in_tiles(checked(*inputs, **arguments, score=score), SIZE)["output"]
        ).sum()

    differentiate = jax.jit(jax.grad(loss, argnums=(0, 1), allow_int=True))
    by_hand = differentiate((QUERY, KEY, VALUE), score)
    with_hand, called = derivative.tile_sum, []

    def without_hand(*operands):
        called.append(operands[5])
        return with_hand(*operands[:5])

    monkeypatch.setattr(derivative, "tile_sum", without_hand)
    differentiate.clear_cache()
    _attend.clear_cache()
    by_jax = differentiate((QUERY, KEY, VALUE), score)
    assert called
    assert all(called)
    chex.assert_trees_all_close(by_hand, by_jax, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("leading", [(), (3,), (2, 1), (2, 3)])
def test_whatever_has_leading_axes_belongs_to_its_examples(leading):
    """Dropout keys, masks, bias arrays and positions, with one head of one example at once."""
    batch, cut = (2, 3), TileSize(8, 8, 1)
    query, key, value = draw((*batch, 9, 2, H), (*batch, 9, 2, H), (*batch, 9, 2, V))
    keys = jax.random.split(jax.random.key(1), leading) if leading else jax.random.key(1)
    allowed, bias = draw((*leading, 9, 9), (*leading, 2, 9, 9))
    allowed = allowed > -1
    request = checked(
        query,
        key,
        value,
        dropout=Dropout(keys, 0.5),
        mask=allowed if len(leading) % 2 else masks.from_array(allowed),
        score=scores.bias_array(bias),
        positions=(jnp.broadcast_to(jnp.arange(9)[::-1], (*leading, 9)), jnp.arange(9)),
    )
    expected, found = attend_by_definition(request), attend_in_tiles(request, cut)
    np.testing.assert_allclose(found["output"], expected["output"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("leading", [(8,), (1, 4), (2,)])
def test_dropout_keys_for_another_batch(leading):
    keys = jax.random.split(jax.random.key(0), leading)
    with pytest.raises(ValueError, match=r"dropout.key has the leading axes .* the query"):
        attend(*draw(*[(4, 3, 1, 2)] * 3), dropout=Dropout(keys, 0.5))


def test_a_shared_array_stays_one():
    """A bias `[1, N, T, S]` for a batch of 16 costs what `[N, T, S]` does."""
    inputs = [(16, 256, 2, 8)] * 3

    def biased(query, key, value, bias):
        score = scores.bias_array(bias)
        return attend(query, key, value, score=score, implementation="tiled")

    plain = scratch(biased, *inputs, (2, 256, 256))
    assert scratch(biased, *inputs, (1, 2, 256, 256)) <= plain


def test_the_transpose_of_one_direction_alone():
    inputs = QUERY[0], KEY[0], VALUE[0]
    request = checked(*inputs, mask=masks.lengths(20))

    def along_values(d_value):
        def function(query, key, value):
            now = dataclasses.replace(request, query=query, key=key, value=value)
            return attend_in_tiles(now, SIZE)["output"]

        still = jnp.zeros_like(inputs[0]), jnp.zeros_like(inputs[1])
        return jax.jvp(function, inputs, (*still, d_value))[1]

    (back,) = jax.linear_transpose(along_values, inputs[2])(jnp.ones((T, N, V)))
    weights = attend_by_definition(dataclasses.replace(request, returning=("weights",)))["weights"]
    expected = weights.sum(axis=1).reshape(K, N // K, S).sum(axis=1).T
    np.testing.assert_allclose(back, jnp.broadcast_to(expected[..., None], (S, K, V)), rtol=1e-4)


def scratch(function, *shapes):
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    compiled = jax.jit(function).lower(*arrays).compile()
    return compiled.memory_analysis().temp_size_in_bytes / 2**20


def test_memory_of_the_gradient_is_linear():
    """B 1, N 8, H 64, T 8,192, causal: below 100 MiB where jax.nn needs 6,176."""

    def loss(query, key, value):
        return attend(query, key, value, mask=masks.causal(), implementation="tiled").sum()

    shape = (1, 8192, 8, 64)
    mebibytes = scratch(jax.grad(loss, argnums=(0, 1, 2)), shape, shape, shape)
    assert mebibytes < 100


def test_memory_of_higher_derivatives_and_statistics_is_linear():
    """One head of 32k tokens has 4 GiB of weights."""
    shape = (1, 32768, 1, 16)
    dropout = Dropout(jax.random.key(0), 0.1)
    names = ("entropy", "strongest", "mean_distance", "largest_score", "logsumexp")

    def everything(query, key, value):
        return attend(
            query,
            key,
            value,
            mask=masks.window(1000),
            dropout=dropout,
            returning=names,
            num_strongest=4,
            implementation="tiled",
        )

    def loss(inputs):
        output, extras = everything(*inputs)
        return jnp.sum(output) + jnp.sum(extras["entropy"])

    def curvature(*inputs):
        return jax.jvp(jax.grad(loss), (inputs,), (inputs,))

    assert scratch(everything, shape, shape, shape) < 64
    assert scratch(curvature, shape, shape, shape) < 256


def test_inside_shard_map():
    """Which checks what varies over its mesh: here all but the slopes."""
    mesh = jax.make_mesh((1,), ("data",))
    data, same = jax.P("data"), jax.P()
    inputs = *draw((B, 7, 2, 3), (2,)), jnp.array([7, 3])

    def loss(query, slopes, lengths):
        mask, score = masks.causal() & masks.lengths(lengths), scores.alibi(slopes)
        return attend(query, query, query, mask=mask, score=score, implementation="tiled").sum()

    def on_each(*arrays):
        return jax.lax.psum(loss(*arrays), "data")

    specs = data, same, data
    mapped = jax.shard_map(on_each, mesh=mesh, in_specs=specs, out_specs=same)
    given = [
        jax.device_put(array, jax.NamedSharding(mesh, spec))
        for array, spec in zip(inputs, specs, strict=True)
    ]
    actual = jax.jit(jax.grad(mapped, (0, 1)))(*given)
    expected = jax.jit(jax.grad(loss, (0, 1)))(*inputs)
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
