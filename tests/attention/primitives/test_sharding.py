"""Batch and heads sharded over devices: same values, same sharding, no communication."""

import contextlib
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from attention import Dropout, ShardedAttention, attend, empty_cache, masks, scores
from tests.attention.primitives import sharding
from tests.attention.primitives.inputs import draw, in_tiles

AUTO, EXPLICIT = (
    jax.make_mesh((2,), ("data",), axis_types=(kind,))
    for kind in (AxisType.Auto, AxisType.Explicit)
)
BATCH, HEADS = P("data"), P(None, None, "data")
ANY = None
with_implementations = pytest.mark.parametrize("implementation", ["reference", "tiled"])


def check(function, inputs, specs, collectives=(), *, reference=None, mesh=EXPLICIT, set_mesh=True):
    """Compare results on two devices with those of the reference on one, and return them.

    If the mesh is not set, it is that of the inputs.
    """
    expected = jax.jit(reference or function)(*inputs)
    with jax.set_mesh(mesh) if set_mesh else contextlib.nullcontext():
        sharded = sharding.put(mesh, inputs, specs)
        compiled = jax.jit(function).lower(*sharded).compile()
        actual = compiled(*sharded)
    assert collectives is ANY or sharding.collectives(compiled) == [*collectives]
    chex.assert_trees_all_close(actual, expected, rtol=1e-4, atol=1e-5)
    return actual


def test_fewer_key_heads_than_explicit_shards():
    """Multi-query attention with its query heads on two devices."""

    def loss(query, key):
        return jnp.sin(attend(query, key, key, mask=masks.causal())).sum()

    check(jax.grad(loss, (0, 1)), draw((2, 6, 4, 3), (2, 6, 1, 3)), (HEADS, P()), ANY)


def value_and_gradient(implementation):
    def loss(query, key):
        call = functools.partial(attend, mask=masks.causal(), **in_tiles(implementation, 4, 4))
        output = call(query, key, key, positions=(np.arange(7), np.arange(11)))
        return jnp.sin(output).sum(), output

    def call(query, key):
        (_, output), gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)(query, key)
        return output, *gradients

    return call


@with_implementations
def test_vmap_over_an_explicit_axis(implementation):
    function, reference = map(jax.vmap, map(value_and_gradient, (implementation, "reference")))
    inputs = draw((2, 1, 7, 2, 3), (2, 1, 11, 2, 3))
    output, *_ = check(function, inputs, (BATCH, BATCH), reference=reference)
    assert output.sharding.spec[0] == "data"


@with_implementations
def test_replicated_queries_and_explicitly_sharded_keys(implementation):
    """The gradient of the queries alone is gathered."""
    function, reference = map(value_and_gradient, (implementation, "reference"))
    inputs, specs = draw((2, 7, 2, 3), (2, 11, 2, 3)), (P(), BATCH)
    output, *_ = check(function, inputs, specs, ["all-gather"], reference=reference)
    assert output.sharding.spec[0] == "data"


@with_implementations
def test_queries_explicitly_sharded_by_length_and_whole_keys(implementation):
    """Each device attends from its queries to all keys, by their positions and rows."""
    query, key, bias = draw((2, 8, 2, 3), (2, 8, 2, 3), (2, 8, 8))
    mask = masks.window(3) & masks.from_array(np.abs(bias[0]) < 1)

    def run(query, key, name=implementation):
        options = {"bias": bias, "dropout": Dropout(jax.random.key(0), 0.2), **in_tiles(name, 2, 2)}
        return attend(query, key, key, mask=mask, **options)

    reference = functools.partial(run, name="reference")
    found = check(run, (query, key), (P(None, "data"), P()), reference=reference)
    assert found.sharding.spec[1] == "data"


@pytest.mark.parametrize("axis", [0, 2], ids=["batch", "heads"])
def test_a_cache_on_explicit_axes(axis):
    """Two pieces, of which the second is longer than the cache and padded."""

    def run(query, key, cache):
        outputs = []
        for tokens, lengths in ((slice(0, 2), [1, 2]), (slice(2, 7), [2, 1])):
            cache, view = cache.extend(key[:, tokens], key[:, tokens], jnp.array(lengths))
            outputs.append(attend(query[:, tokens], view, mask=masks.causal()))
        return jnp.concatenate(outputs, axis=1), cache

    def spec(array, axis):
        return P(*[None] * axis, "data") if axis < array.ndim else P()

    cache = empty_cache((2,), 4, num_kv_heads=2, head_width=3)
    inputs = *draw((2, 7, 2, 3), (2, 7, 2, 3)), cache
    by_axis = P(*[None] * axis, "data")
    check(run, inputs, (by_axis, by_axis, jax.tree.map(lambda x: spec(x, axis // 2), cache)))


def test_four_and_eight_devices():
    """Batch and heads are both sharded, in a process with eight devices."""
    assert sharding.on_eight_devices("tests.attention.primitives.sharding").endswith("done\n")


def test_collectives_are_detected():
    (array,) = draw((4, 3))
    array = jax.device_put(array, NamedSharding(AUTO, BATCH))
    assert sharding.collectives(jax.jit(jnp.sum).lower(array).compile()) == ["all-reduce"]


def gradient_of_window(options, query, lengths, segments=None):
    mask = masks.window(5) & masks.lengths(lengths)
    mask = mask if segments is None else mask & masks.segments(segments)
    loss = jax.grad(lambda query: jnp.sum(jnp.sin(attend(*[query] * 3, mask=mask, **options))))
    return loss(query)


OF_WINDOW = *draw((2, 29, 1, 4)), np.array([29, 11])
IN_WINDOW = [
    functools.partial(gradient_of_window, options)
    for options in (in_tiles("tiled", 4, 2), in_tiles("reference"))
]


def test_windows_of_examples_with_lengths():
    """Devices visit all tiles of their own examples, also outside of the window."""
    function, reference = IN_WINDOW
    options = {"reference": reference, "mesh": AUTO, "set_mesh": False}
    check(function, OF_WINDOW, (BATCH, BATCH), ANY, **options)


def test_vmap_over_masks_of_sharded_examples():
    """No union of the tiles of all examples, which would be a collective."""
    function, reference = map(jax.vmap, IN_WINDOW)
    segments = np.array([[0] * 9 + [1] * 20, [0] * 23 + [1] * 6])
    options = {"reference": reference, "mesh": AUTO, "set_mesh": False}
    check(function, (*OF_WINDOW, segments), (BATCH,) * 3, **options)


def loop(score, query, key, head):
    """A loop, and a function with a custom derivative rule."""
    return jax.nn.softplus(jax.lax.fori_loop(0, 2, lambda _, x: 0.9 * x, score))


LOOP = scores.from_function(loop)  # traced outside of any mesh


def loss_with_closures(query, weight, slopes, documents, implementation):
    """A mask and a score function that close over traced arrays, and one with an array."""

    def scaled(score, query, key, head):
        return 2.0 * score * weight + jnp.where(query > key, weight**2, 1.0)

    output = attend(
        *[query] * 3,
        mask=masks.causal() & masks.from_function(lambda q, k: documents[q] == documents[k]),
        score=(scores.from_function(scaled), LOOP, scores.alibi(slopes)),
        **in_tiles(implementation, 4, 4),
    )
    return jnp.sum(jnp.sin(output))


CLOSED_OVER = *draw((2, 11, 2, 3)), jnp.float32(0.7), *draw((1,)), np.arange(11) // 4


@pytest.mark.parametrize(
    "how, spec, implementation",
    [
        ("jit", BATCH, "tiled"),
        ("explicit axes", HEADS, "tiled"),
        ("shard_map", HEADS, "tiled"),
        ("shard_map, explicit axes", BATCH, "tiled"),
        ("jit", HEADS, "reference"),
        ("explicit axes", BATCH, "reference"),
    ],
    ids=str,
)
def test_closures_on_two_devices(how, spec, implementation):
    """With gradients of replicated arrays, which are summed over the devices."""
    mesh, specs = EXPLICIT if "explicit" in how else AUTO, (spec, P(), P(), P())
    loss = functools.partial(loss_with_closures, implementation=implementation)
    function = loss
    if "shard_map" in how:
        function = jax.shard_map(
            lambda *inputs: jax.lax.psum(loss(*inputs), "data"),
            mesh=mesh,
            in_specs=specs,
            out_specs=P(),
        )
    expected = jax.grad(
        functools.partial(loss_with_closures, implementation="reference"), (0, 1, 2)
    )
    options = {"reference": expected, "mesh": mesh}
    check(jax.grad(function, (0, 1, 2)), CLOSED_OVER, specs, ANY, **options)


def test_explicitly_sharded_inputs_outside_jit_and_set_mesh():
    (query,) = draw((2, 11, 2, 3))
    sharded = jax.device_put(query, NamedSharding(EXPLICIT, BATCH))
    mask = masks.causal() & masks.lengths(np.array([11, 7]))
    output = attend(sharded, sharded, sharded, mask=mask)
    assert output.sharding.is_equivalent_to(sharded.sharding, 4)
    np.testing.assert_allclose(output, attend(query, query, query, mask=mask), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spec, mesh", [(BATCH, AUTO), (HEADS, EXPLICIT)], ids=str)
def test_sharded_attention_equals_attend_without_communication(spec, mesh):
    options = {"mask": masks.causal() & masks.lengths(np.array([7, 5, 3, 1]))}
    sharded, reference = (
        functools.partial(function, **options)
        for function in (ShardedAttention(mesh, spec), attend)
    )
    inputs = draw((4, 7, 4, 3), (4, 7, 2, 3), (4, 7, 2, 3))
    check(sharded, inputs, (spec,) * 3, reference=reference, mesh=mesh, set_mesh=False)
