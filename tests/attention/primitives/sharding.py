"""Checks of sharded attention, for tests in this process and in one with more devices."""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

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
LENGTHS = np.array([40, 3, 17, 20, 33, 0, 8, 39])
INPUTS = draw((B, T, N, H), (B, T, K, H), (B, T, K, H), (B, T, N, H))
HEADS = np.arange(N)
ARRAYS = draw((N,), (N,), (N, 8), (N, T, T))  # of score functions, with one entry for each head


def run(query, key, value, lengths, heads, arrays, implementation):
    slopes, logits, table, bias = arrays
    return attend(
        query,
        key,
        value,
        mask=masks.causal() & masks.lengths(lengths),
        score=(
            scores.alibi(slopes),
            scores.attention_sinks(logits),
            scores.relative_bias(table, max_distance=9),
            scores.bias_array(bias),
        ),
        heads=heads,
        dropout=Dropout(jax.random.key(1), 0.3),
        **in_tiles(implementation, 16, 16),
    )


def forward_and_backward(function, query, key, value, cotangent, *others):
    """Return the output and the gradients of query, key and value."""
    output, pull = jax.vjp(lambda *inputs: function(*inputs, *others), query, key, value)
    return output, *pull(cotangent)


def on_eight_devices(module, *arguments):
    """Run a module in a process with eight devices, and return what it prints."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-m", module, *arguments],
        cwd=Path(__file__).parents[3],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr[-3000:]
    return result.stdout


def collectives(compiled):
    return sorted(set(COLLECTIVES.findall(compiled.as_text())))


def mesh_of(shape, axis_type):
    devices = jax.devices()[: shape[0] * shape[1]]
    return jax.make_mesh(shape, AXES, axis_types=(axis_type,) * 2, devices=devices)


def put(mesh, tree, specs):
    """Put arrays on the devices of a mesh; a spec may be that of a tuple of arrays."""
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    return jax.device_put(tree, shardings)


@functools.cache
def expected():
    """Compute the results of the reference on one device."""
    function = functools.partial(run, implementation="reference")
    inputs = *INPUTS, LENGTHS, HEADS, ARRAYS
    return jax.jit(functools.partial(forward_and_backward, function))(*inputs)


def check(mesh, function, inputs, expected):
    """Check values, shardings and collectives of the output and of the gradients."""
    compiled = jax.jit(function).lower(*inputs).compile()
    assert collectives(compiled) == [], collectives(compiled)
    for ours, theirs in zip(compiled(*inputs), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
        assert ours.sharding.is_equivalent_to(NamedSharding(mesh, SPEC), 4), ours.sharding


def check_jit(shape, implementation, axis_type, numbered):
    """Inputs with a NamedSharding under jit; with explicit axes, the mesh is set.

    If numbered, the arrays of score functions are replicated and the numbers of heads are sharded;
    else the arrays are sharded by heads.
    """
    function = functools.partial(run, implementation=implementation)
    mesh, results = mesh_of(shape, axis_type), expected()
    specs = *[SPEC] * 4, P("batch"), P("heads"), P() if numbered else P("heads")
    with jax.set_mesh(mesh):
        inputs = put(mesh, (*INPUTS, LENGTHS, HEADS if numbered else None, ARRAYS), specs)
        check(mesh, functools.partial(forward_and_backward, function), inputs, results)


def check_shard_map(shape):
    """Inside shard_map, with dropout and score functions numbered by global heads.

    With Explicit axes, tiles run inside shard_map too.
    """
    mesh = mesh_of(shape, AxisType.Auto)
    specs = *[SPEC] * 4, P("batch"), P("heads"), P()

    def function(*inputs):
        local = functools.partial(run, implementation="reference")
        return forward_and_backward(local, *inputs)

    mapped = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=(SPEC,) * 4)
    inputs = put(mesh, (*INPUTS, LENGTHS, HEADS, ARRAYS), specs)
    check(mesh, mapped, inputs, expected())


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


def main():
    """Run `check_attention` in optimised programs, and sharded attention on 4 and 8 devices."""
    for implementation in ("tiled", "reference"):
        call = functools.partial(attend, implementation=implementation)
        rows = "values", "gradients"
        supports = "jit", "cross", "grouped", "leading_axes", "mask", "gradients"
        check_attention(call, supports, rows=rows).raise_if_failed()
    jax.config.update("jax_disable_most_optimizations", True)  # it compiles faster
    check_larger((2, 2), "tiled")
    shape, auto, explicit = (2, 4), AxisType.Auto, AxisType.Explicit
    for implementation, axis_type, numbered in (  # each pair of settings at least once
        ("tiled", auto, False),
        ("tiled", explicit, True),
        ("reference", auto, True),
        ("reference", explicit, False),
    ):
        check_jit(shape, implementation, axis_type, numbered)
    check_shard_map(shape)
    print("done")


if __name__ == "__main__":
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    main()
