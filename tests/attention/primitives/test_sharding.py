"""Batch and heads sharded over devices: same values, same sharding, no communication."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from attention import Dropout, attend, empty_cache, masks, scores
from tests.attention.primitives import sharding
from tests.attention.primitives.inputs import draw, in_tiles

BATCH, HEADS = (2, 1), (1, 2)


def test_fewer_key_heads_than_explicit_shards():
    """Multi-query attention with its query heads on two devices."""
    mesh = sharding.mesh_of(HEADS, AxisType.Explicit)
    query, key = draw((2, 6, 4, 3), (2, 6, 1, 3))

    def gradient(query, key):
        return jax.grad(lambda *x: jnp.sin(attend(*x, x[1], mask=masks.causal())).sum(), (0, 1))(
            query, key
        )

    expected = jax.jit(gradient)(query, key)
    with jax.set_mesh(mesh):
        sharded = jax.device_put(query, NamedSharding(mesh, sharding.SPEC))
        actual = jax.jit(gradient)(sharded, jax.device_put(key, NamedSharding(mesh, P("batch"))))
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def value_and_gradient(implementation):
    def loss(query, key):
        call = functools.partial(attend, mask=masks.causal(), **in_tiles(implementation, 4, 4))
        output = call(query, key, key, positions=(np.arange(7), np.arange(11)))
        return jnp.sin(output).sum(), output

    def call(query, key):
        (_, output), gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)(query, key)
        return output, *gradients

    return call


def check_explicit_batch(function, implementation, query, key, spec, collectives):
    """Compare with the reference on one device; the output is sharded by batch."""
    expected = jax.jit(function("reference"))(query, key)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        sharded = [
            jax.device_put(array, NamedSharding(mesh, axes))
            for array, axes in ((query, spec), (key, P("data")))
        ]
        compiled = jax.jit(function(implementation)).lower(*sharded).compile()
        actual = compiled(*sharded)
    assert sharding.collectives(compiled) == collectives
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert actual[0].sharding.spec[0] == "data"


@pytest.mark.parametrize("implementation", ["reference", "tiled"])
def test_vmap_over_an_explicit_axis(implementation):
    query, key = draw((2, 1, 7, 2, 3), (2, 1, 11, 2, 3))
    check_explicit_batch(
        lambda name: jax.vmap(value_and_gradient(name)), implementation, query, key, P("data"), []
    )


@pytest.mark.parametrize("implementation", ["reference", "tiled"])
def test_replicated_queries_and_explicitly_sharded_keys(implementation):
    """The gradient of the queries alone is gathered."""
    inputs = draw((2, 7, 2, 3), (2, 11, 2, 3))
    check_explicit_batch(value_and_gradient, implementation, *inputs, P(), ["all-gather"])


@pytest.mark.parametrize("implementation", ["reference", "tiled"])
def test_queries_explicitly_sharded_by_length_and_whole_keys(implementation):
    """Each device attends from its queries to all keys, by their positions and rows."""
    query, key, bias = draw((2, 8, 2, 3), (2, 8, 2, 3), (2, 8, 8))
    mask = masks.window(3) & masks.from_array(np.abs(bias[0]) < 1)

    def run(query, key, name=implementation):
        options = {"bias": bias, "dropout": Dropout(jax.random.key(0), 0.2), **in_tiles(name, 2, 2)}
        return attend(query, key, key, mask=mask, **options)

    expected = jax.jit(functools.partial(run, name="reference"))(query, key)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        query = jax.device_put(query, NamedSharding(mesh, P(None, "data")))
        key = jax.device_put(key, NamedSharding(mesh, P()))
        compiled = jax.jit(run).lower(query, key).compile()
        found = compiled(query, key)
    assert sharding.collectives(compiled) == []
    assert found.sharding.spec[1] == "data"
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 2], ids=["batch", "heads"])
def test_a_cache_on_explicit_axes(axis):
    """Two pieces, of which the second is longer than the cache and padded."""
    key, query = draw((2, 7, 2, 3), (2, 7, 2, 3))

    def run(query, key, cache):
        outputs = []
        for tokens, lengths in ((slice(0, 2), [1, 2]), (slice(2, 7), [2, 1])):
            cache, view = cache.extend(key[:, tokens], key[:, tokens], jnp.array(lengths))
            outputs.append(attend(query[:, tokens], view, mask=masks.causal()))
        return jnp.concatenate(outputs, axis=1), cache

    cache = empty_cache((2,), 4, num_kv_heads=2, head_width=3)
    expected = jax.jit(run)(query, key, cache)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))

    def put(array, axis):
        spec = P(*[None] * axis, "data") if axis < array.ndim else P()
        return jax.device_put(array, NamedSharding(mesh, spec))

    with jax.set_mesh(mesh):
        sharded = put(query, axis), put(key, axis), jax.tree.map(lambda x: put(x, axis // 2), cache)
        compiled = jax.jit(run).lower(*sharded).compile()
        actual = compiled(*sharded)
    assert sharding.collectives(compiled) == []
    for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_four_and_eight_devices():
    """Batch and heads are both sharded, in a process with eight devices."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.attention.primitives.sharding"],
        cwd=Path(__file__).parents[3],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.endswith("done\n"), result.stdout + result.stderr[-3000:]


def test_collectives_are_detected():
    mesh = sharding.mesh_of((2, 1), AxisType.Auto)
    (array,) = draw((4, 3))
    array = jax.device_put(array, NamedSharding(mesh, P("batch")))
    assert sharding.collectives(jax.jit(jnp.sum).lower(array).compile()) == ["all-reduce"]


def test_windows_of_examples_with_lengths():
    """Devices visit all tiles of their own examples, also outside of the window."""
    mesh = sharding.mesh_of(BATCH, AxisType.Auto)
    inputs = *draw((2, 29, 1, 4)), np.array([29, 11])

    def loss(query, lengths, options):
        mask = masks.window(5) & masks.lengths(lengths)
        return jnp.sum(jnp.sin(attend(*[query] * 3, mask=mask, **options)))

    def gradient(query, lengths, options):
        return jax.jit(jax.grad(functools.partial(loss, options=options)))(query, lengths)

    sharded = [jax.device_put(array, NamedSharding(mesh, P("batch"))) for array in inputs]
    found = gradient(*sharded, in_tiles("tiled", 4, 2))
    expected = gradient(*inputs, in_tiles("reference"))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_vmap_over_masks_of_sharded_examples():
    """No union of the tiles of all examples, which would be a collective."""
    mesh = sharding.mesh_of(BATCH, AxisType.Auto)
    segments = np.array([[0] * 9 + [1] * 20, [0] * 23 + [1] * 6])
    inputs = *draw((2, 29, 1, 4)), segments, np.array([29, 11])

    def loss(query, segments, lengths, options):
        mask = masks.segments(segments) & masks.window(5) & masks.lengths(lengths)
        return jnp.sum(jnp.sin(attend(*[query] * 3, mask=mask, **options)))

    def gradient(options):
        return jax.jit(jax.vmap(jax.grad(functools.partial(loss, options=options))))

    sharded = [jax.device_put(array, NamedSharding(mesh, P("batch"))) for array in inputs]
    compiled = gradient(in_tiles("tiled", 4, 2)).lower(*sharded).compile()
    assert sharding.collectives(compiled) == []
    expected = gradient(in_tiles("reference"))(*inputs)
    np.testing.assert_allclose(compiled(*sharded), expected, rtol=1e-4, atol=1e-5)


def loss_with_closures(query, weight, documents, implementation):
    """A mask and a score function that close over traced arrays."""

    def scaled(score, query, key, head):
        return 2.0 * score * weight + jnp.where(query > key, weight**2, 1.0)

    output = attend(
        *[query] * 3,
        mask=masks.causal() & masks.from_function(lambda q, k: documents[q] == documents[k]),
        score=scores.from_function(scaled),
        **in_tiles(implementation, 4, 4),
    )
    return jnp.sum(jnp.sin(output))


CLOSED_OVER = *draw((2, 11, 2, 3)), jnp.float32(0.7), np.arange(11) // 4


@functools.cache
def gradients_on_one_device():
    loss = functools.partial(loss_with_closures, implementation="reference")
    return jax.jit(jax.grad(loss, (0, 1)))(*CLOSED_OVER)


@pytest.mark.parametrize(
    "how, spec, implementation",
    [
        ("jit", P("data"), "tiled"),
        ("explicit axes", P(None, None, "data"), "tiled"),
        ("shard_map", P(None, None, "data"), "tiled"),
        ("shard_map, explicit axes", P("data"), "tiled"),
        ("jit", P(None, None, "data"), "reference"),
        ("explicit axes", P("data"), "reference"),
    ],
    ids=str,
)
def test_closures_on_two_devices(how, spec, implementation):
    loss = functools.partial(loss_with_closures, implementation=implementation)
    expected = gradients_on_one_device()
    kind = AxisType.Explicit if "explicit" in how else AxisType.Auto
    mesh = jax.make_mesh((2,), ("data",), axis_types=(kind,))
    specs = spec, P(), P()
    if "shard_map" in how:
        loss = jax.shard_map(
            lambda *inputs: jax.lax.psum(loss_with_closures(*inputs, implementation), "data"),
            mesh=mesh,
            in_specs=specs,
            out_specs=P(),
        )
    with jax.set_mesh(mesh):
        sharded = [
            jax.device_put(array, NamedSharding(mesh, spec))
            for array, spec in zip(CLOSED_OVER, specs, strict=True)
        ]
        actual = jax.jit(jax.grad(loss, (0, 1)))(*sharded)
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_loops_and_derivative_rules_of_score_functions_in_a_mesh(kind):
    """They are traced outside of the mesh, when the score is made, and used in it."""

    def function(score, query, key, head):
        score = jax.lax.fori_loop(0, 2, lambda _, x: 0.9 * x, score)
        return jax.nn.softplus(score)

    score, (query,) = scores.from_function(function), draw((2, 11, 2, 3))

    def gradient(query):
        return jax.grad(lambda x: jnp.sum(jnp.sin(attend(x, x, x, score=score))))(query)

    mesh = jax.make_mesh((2,), ("data",), axis_types=(kind,))
    with jax.set_mesh(mesh):
        sharded = jax.device_put(query, NamedSharding(mesh, P("data")))
        options = {"mesh": mesh, "in_specs": P("data"), "out_specs": P("data")}
        runs = [gradient, jax.shard_map(gradient, **options)]
        found = [np.asarray(jax.jit(run)(sharded)) for run in runs]
    for each in found:
        np.testing.assert_allclose(each, jax.jit(gradient)(query), rtol=1e-4, atol=1e-5)


def test_explicitly_sharded_inputs_outside_jit_and_set_mesh():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))
    (query,) = draw((2, 11, 2, 3))
    sharded = jax.device_put(query, NamedSharding(mesh, P("data")))
    mask = masks.causal() & masks.lengths(np.array([11, 7]))
    output = attend(sharded, sharded, sharded, mask=mask)
    assert output.sharding.is_equivalent_to(sharded.sharding, 4)
    np.testing.assert_allclose(output, attend(query, query, query, mask=mask), rtol=1e-5, atol=1e-6)


def test_replicated_scores_get_summed_gradients_inside_shard_map():
    """The slopes do not vary over the mesh, so their gradient is summed over it."""
    mesh = jax.make_mesh((2,), ("data",))
    data, same = P("data"), P()
    inputs = *draw((2, 7, 2, 3), (2,)), np.array([7, 3])

    def loss(query, slopes, lengths):
        mask, score = masks.causal() & masks.lengths(lengths), scores.alibi(slopes)
        return attend(query, query, query, mask=mask, score=score, implementation="tiled").sum()

    def on_each_device(*arrays):
        return jax.lax.psum(loss(*arrays), "data")

    specs = data, same, data
    mapped = jax.shard_map(on_each_device, mesh=mesh, in_specs=specs, out_specs=same)
    sharded = [
        jax.device_put(array, NamedSharding(mesh, spec))
        for array, spec in zip(inputs, specs, strict=True)
    ]
    actual = jax.jit(jax.grad(mapped, (0, 1)))(*sharded)
    expected = jax.jit(jax.grad(loss, (0, 1)))(*inputs)
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
