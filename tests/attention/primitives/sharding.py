"""Checks of sharded attention, for tests in this process and in one with more devices."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from attention import Dropout, attend, masks, scores
from attention.testing import check_attention
from tests.attention.primitives.inputs import draw, in_tiles

COLLECTIVES = re.compile(
    r"all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter|collective-broadcast"
)
B, T, N, K, H = 8, 40, 8, 4, 4
AXES = ("batch", "heads")
SPEC = P("batch", None, "heads", None)
LENGTHS = jnp.array([40, 3, 17, 20, 33, 0, 8, 39])
INPUTS = draw((B, T, N, H), (B, T, K, H), (B, T, K, H), (B, T, N, H))
HEADS = jnp.arange(N)


def run(query, key, value, lengths, heads, implementation, dropout=None):
    return attend(
        query,
        key,
        value,
        mask=masks.causal() & masks.lengths(lengths),
        score=scores.alibi(scores.alibi_slopes(N)),
        heads=heads,
        dropout=dropout,
        **in_tiles(implementation, 16, 16),
    )


def forward_and_backward(function, query, key, value, cotangent, *others):
    """Return the output and the gradients of query, key and value."""
    output, pull = jax.vjp(lambda *inputs: function(*inputs, *others), query, key, value)
    return output, *pull(cotangent)


def collectives(compiled):
    return sorted(set(COLLECTIVES.findall(compiled.as_text())))


def mesh_of(shape, axis_type):
    devices = jax.devices()[: shape[0] * shape[1]]
    return jax.make_mesh(shape, AXES, axis_types=(axis_type,) * 2, devices=devices)


def put(mesh, *arrays):
    specs = [SPEC] * 4 + [P("batch"), P("heads")]
    return [
        jax.device_put(array, NamedSharding(mesh, spec))
        for array, spec in zip(arrays, specs, strict=True)
    ]


@functools.cache
def expected(implementation, rate=0.0):
    """Compute the results on one device."""
    dropout = Dropout(jax.random.key(1), rate) if rate else None
    function = functools.partial(run, implementation=implementation, dropout=dropout)
    return jax.jit(functools.partial(forward_and_backward, function))(*INPUTS, LENGTHS, HEADS)


def check(mesh, function, implementation, rate=0.0, same_sharding=True):
    """Check values, output sharding and collectives, forward and backward."""
    inputs = put(mesh, *INPUTS, LENGTHS, HEADS)
    compiled = jax.jit(function).lower(*inputs).compile()
    assert collectives(compiled) == [], collectives(compiled)
    results = compiled(*inputs)
    for ours, theirs in zip(results, expected(implementation, rate), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
        if same_sharding:
            assert ours.sharding.is_equivalent_to(NamedSharding(mesh, SPEC), 4), ours.sharding


def check_jit(shape, implementation):
    """Inputs with a NamedSharding under jit."""
    function = functools.partial(run, implementation=implementation)
    mesh = mesh_of(shape, AxisType.Auto)
    check(mesh, functools.partial(forward_and_backward, function), implementation)


def check_explicit(shape, implementation):
    """Explicit axes, with the mesh set."""
    function = functools.partial(run, implementation=implementation)
    mesh = mesh_of(shape, AxisType.Explicit)
    expected(implementation)
    with jax.set_mesh(mesh):
        check(mesh, functools.partial(forward_and_backward, function), implementation)


def check_shard_map(shape, implementation):
    """Inside shard_map, with dropout numbered by global heads."""
    rate = 0.3
    mesh = mesh_of(shape, AxisType.Auto)

    def function(query, key, value, cotangent, lengths, heads):
        dropout = Dropout(jax.random.key(1), rate)
        local = functools.partial(run, implementation=implementation, dropout=dropout)
        return forward_and_backward(local, query, key, value, cotangent, lengths, heads)

    mapped = jax.shard_map(
        function,
        mesh=mesh,
        in_specs=(*[SPEC] * 4, P("batch"), P("heads")),
        out_specs=(SPEC,) * 4,
    )
    check(mesh, mapped, implementation, rate)


def check_larger(shape, implementation):
    """Compile sizes at which heads or examples are computed one after another."""
    mesh = mesh_of(shape, AxisType.Auto)

    def function(query, key, value, cotangent):
        causal = functools.partial(attend, mask=masks.causal(), implementation=implementation)
        return forward_and_backward(causal, query, key, value, cotangent)

    sharding = NamedSharding(mesh, SPEC)
    shapes = [
        jax.ShapeDtypeStruct((16, 1024, heads, 64), jnp.float32, sharding=sharding)
        for heads in (8, 4, 4, 8)
    ]
    compiled = jax.jit(function).lower(*shapes).compile()
    assert collectives(compiled) == [], collectives(compiled)
    for found in compiled.output_shardings:
        assert found.is_equivalent_to(sharding, 4), found


def check_one_query(shape, axis_type):
    """Compile decoding steps, whose keys are cut into parts on each device."""
    mesh = mesh_of(shape, axis_type)
    inputs = draw((8, 1, N, H), (8, 1024, K, H), (8, 1024, K, H), (8, 1, N, H))
    call = functools.partial(attend, implementation="one_query")
    expected = jax.jit(functools.partial(forward_and_backward, call))(*inputs)
    with jax.set_mesh(mesh):
        sharded = put(mesh, *inputs, LENGTHS, HEADS)[:4]
        compiled = jax.jit(functools.partial(forward_and_backward, call)).lower(*sharded).compile()
        assert collectives(compiled) == [], collectives(compiled)
        for ours, theirs in zip(compiled(*sharded), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
            assert ours.sharding.is_equivalent_to(NamedSharding(mesh, SPEC), 4), ours.sharding


def check_scores_per_head(shape, axis_type, implementation):
    """Score functions whose arrays are sharded by heads, forward and backward."""
    mesh = mesh_of(shape, axis_type)
    arrays = draw((N,), (N,), (N, 8), (N, T, T))
    specs = P("heads"), P("heads"), P("heads", None), P("heads", None, None)

    def function(query, key, value, cotangent, slopes, logits, table, bias):
        score = (
            scores.alibi(slopes),
            scores.attention_sinks(logits),
            scores.relative_bias(table, max_distance=9),
            scores.bias_array(bias),
        )
        call = functools.partial(attend, score=score, **in_tiles(implementation, 16, 16))
        return forward_and_backward(call, query, key, value, cotangent)

    expected = jax.jit(function)(*INPUTS, *arrays)
    with jax.set_mesh(mesh):
        sharded = [
            jax.device_put(array, NamedSharding(mesh, spec))
            for array, spec in zip((*INPUTS, *arrays), (*[SPEC] * 4, *specs), strict=True)
        ]
        compiled = jax.jit(function).lower(*sharded).compile()
        assert collectives(compiled) == [], collectives(compiled)
        for ours, theirs in zip(compiled(*sharded), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


CHECKS = {
    "jit": check_jit,
    "explicit axes": check_explicit,
    "shard_map": check_shard_map,
    "larger": check_larger,
}


def main():
    """Run the checks on 4 and 8 devices, and some of `check_attention`, in optimised programs."""
    for implementation in ("jax", "tiled", "reference"):
        call = functools.partial(attend, implementation=implementation)
        rows = "values", "mask", "gradients"
        supports = "jit", "cross", "grouped", "leading_axes", "mask", "gradients"
        check_attention(call, supports, rows=rows).raise_if_failed()
    cases = [("larger", (2, 2), "tiled")]
    cases += [
        (name, (2, 4), implementation)
        for implementation in ("tiled", "reference")
        for name in ("jit", "explicit axes", "shard_map")
    ]
    for axis_type in (AxisType.Auto, AxisType.Explicit):
        check_one_query((2, 4), axis_type)
    for name, shape, implementation in cases:
        print(name, shape, implementation, flush=True)
        CHECKS[name](shape, implementation)
    print("done")


if __name__ == "__main__":
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    main()
