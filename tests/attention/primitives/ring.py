"""Checks of ring attention, for a process with eight devices."""

import functools
import resource
import sys

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from attention import Dropout, ShardedAttention, attend, masks, ring_attend, scores, zigzag_order
from attention.modules import LanguageModel, TransformerConfig
from attention.primitives import layout
from attention.testing import EVERYTHING, check_attention
from tests.attention.primitives import sharding
from tests.attention.primitives.inputs import changed, draw

B, N, K, H, HV = 2, 8, 4, 3, 5
PER_DEVICE = 7  # tokens: a prime number
RETURNING = {"returning": ("logsumexp",)}


def mesh_of(*shape, kind=AxisType.Auto):
    """Return a mesh of devices along data, sequence and tensor."""
    devices = jax.devices()[: np.prod(shape)]
    names = ("data", "sequence", "tensor")
    return jax.make_mesh(shape, names, axis_types=(kind,) * 3, devices=devices)


def inputs(num_queries, num_keys):
    """Return query, key, value and the cotangent of the output."""
    shapes = (B, num_queries, N, H), (B, num_keys, K, H), (B, num_keys, K, HV)
    return draw(*shapes, (B, num_queries, N, HV))


def results(function, attention, cotangent, *given):
    """Return output, logsumexp and the gradients of the given arrays."""

    def run(*given):
        output, more = function(attention, *given)
        return output, more["logsumexp"]

    (output, logsumexp), pull = jax.vjp(run, *given)
    return output, logsumexp, pull((cotangent, jnp.isfinite(logsumexp).astype(logsumexp.dtype)))


def check(function, attention, *given):
    """Compare results and gradients with those of the reference in float64."""
    query, key, value, cotangent, *arrays = given
    mesh, spec = attention.mesh, attention.spec
    put = functools.partial(jax.device_put, device=NamedSharding(mesh, spec))
    given = *map(put, (cotangent, query, key, value)), *arrays
    compiled = jax.jit(functools.partial(results, function, attention)).lower(*given).compile()
    assert {*sharding.collectives(compiled)} <= {"collective-permute", "all-reduce"}
    actual = compiled(*given)
    with jax.enable_x64(True):
        reference = functools.partial(attend, implementation="reference")
        wide = [np.asarray(x, np.float64) for x in (cotangent, query, key, value, *arrays)]
        expected = jax.jit(functools.partial(results, function, reference))(*wide)
        expected = jax.tree.map(np.asarray, expected)
    for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        finite = np.isfinite(theirs)
        np.testing.assert_array_equal(np.where(finite, 0, ours), np.where(finite, 0, theirs))
        theirs = np.where(finite, theirs, 0)
        largest = np.abs(theirs).max(initial=1e-30)
        np.testing.assert_allclose(np.where(finite, ours, 0), theirs, atol=1e-5 * largest)


def check_everything():
    """Masks, scores, closures, dropout, grouped queries; batch and heads on devices; zigzag order.

    Each of the eight devices computes attention of one example and half of the heads and tokens,
    one of two key/value heads at a time.
    """
    num_tokens = 4 * PER_DEVICE
    order = zigzag_order(num_tokens, 2)
    lengths, ids = jnp.array([num_tokens, 9]), jnp.arange(num_tokens) // 5
    documents = jnp.arange(num_tokens, dtype=jnp.int32) // 19
    same = masks.from_function(lambda query, key: documents[query] == documents[key])
    mask = masks.window(9, 3) & masks.lengths(lengths) & (masks.segments(ids) | masks.causal())
    arrays = draw((N,), (N, 8), (N,))

    def function(attention, query, key, value, slopes, table, sinks, scale, weight):
        def scaled(score, query, key, head):
            return score * weight + jnp.where(query > key, weight**2, 1)

        score = (
            scores.alibi(slopes),
            scores.relative_bias(table, max_distance=9),
            scores.attention_sinks(sinks),
            scores.from_function(scaled),
            scores.softcap(3.0),
        )
        dropout = Dropout(jax.random.split(jax.random.key(1), B), 0.3)
        options = {"mask": mask & same, "score": score, "dropout": dropout, "scale": scale}
        return attention(query, key, value, **options, positions=(order, order), **RETURNING)

    ring = ShardedAttention(mesh_of(2, 2, 2), P("data", "sequence", "tensor"))
    numbers = jnp.float32(0.4), jnp.float32(0.7)
    check(function, ring, *inputs(num_tokens, num_tokens), *arrays, *numbers)


def check_arrays_and_nonfinite_inputs():
    """A bool array, a bias array, other keys than queries, visible and masked NaN; any mesh."""
    num_queries, num_keys = 4 * PER_DEVICE, 4 * 3
    query, key, value, cotangent = inputs(num_queries, num_keys)
    key, query = changed(key, (0, 2), np.nan), changed(query, (1, 5), np.inf)
    allowed = np.random.default_rng(0).random((B, N, num_queries, num_keys)) < 0.4
    allowed[0, :, ::2, 2] = False  # the other queries attend to the key that is not finite
    allowed[:, :, 3] = False
    (bias,) = draw((N, num_queries, num_keys))

    def function(attention, query, key, value, bias):
        score = scores.bias_array(bias)
        return attention(query, key, value, mask=allowed, score=score, **RETURNING)

    for kind in AxisType.Auto, AxisType.Explicit:
        ring = ShardedAttention(mesh_of(1, 4, 1, kind=kind), P(None, "sequence"))
        check(function, ring, query, key, value, cotangent, bias)


def check_inside_shard_map():
    """`ring_attend` with counted positions and an array that is replicated.

    All axes are manual, or that of the ring alone, and the compiler divides the heads.
    """
    mesh, spec = mesh_of(1, 4, 2), P(None, "sequence")

    def attention(axis_names, query, key, value, slopes):
        def on_device(query, key, value, slopes):
            mask, score = masks.causal(), scores.alibi(slopes)
            return ring_attend(query, key, value, axis_name="sequence", mask=mask, score=score)

        specs = spec, spec, spec, P()
        lifted = jax.shard_map(
            on_device, mesh=mesh, in_specs=specs, out_specs=spec, axis_names=axis_names
        )
        return lifted(query, key, value, slopes)

    shape = B, 4 * PER_DEVICE, N  # as many key/value heads, so that each device has two
    query, key, value, cotangent = draw((*shape, H), (*shape, H), (*shape, HV), (*shape, HV))
    given = query, key, value, scores.alibi_slopes(N)

    def expected(query, key, value, slopes):
        return attend(query, key, value, mask=masks.causal(), score=scores.alibi(slopes))

    def both(function):
        output, pull = jax.vjp(function, *given)
        return output, pull(cotangent)

    theirs = jax.jit(lambda: both(expected))()
    for axis_names in {*mesh.axis_names}, {"sequence"}:
        ours = jax.jit(lambda names=axis_names: both(functools.partial(attention, names)))()
        for found, reference in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(found, reference, rtol=1e-4, atol=1e-5)


def check_model():
    """A language model in zigzag order, with scanned layers that are computed again."""
    config = TransformerConfig(
        **{"width": 8, "num_heads": 2, "num_kv_heads": 1, "hidden": 8, "positions": "rotary"},
        **{"decoder_layers": 2, "dropout": 0.2},
    )
    model = LanguageModel.from_config(config, vocab_size=11, rngs=nnx.Rngs(0))
    order = zigzag_order(4 * 2 * PER_DEVICE, 4)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 11, (2, order.size)))[:, order]
    options = {"positions": order, "mask": masks.lengths(jnp.array([order.size, 9]))}

    def loss(model, tokens, attention):
        output = model(tokens, attend=attention, rng=jax.random.key(1), **options)
        return jnp.sum(jnp.sin(output.logits))

    def run(attention, sharding):
        gradient = jax.jit(jax.value_and_grad(functools.partial(loss, attention=attention)))
        return jax.tree.leaves(gradient(model, jax.device_put(tokens, sharding)))

    mesh = mesh_of(2, 4, 1)
    ours = run(
        ShardedAttention(mesh, P("data", "sequence")), NamedSharding(mesh, P("data", "sequence"))
    )
    for found, expected in zip(ours, run(attend, None), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def check_contract():
    """All rows of `check_attention` but those of other derivatives and of all weights."""

    def ring(query, key, value, **arguments):
        spec = P(*[None] * (query.ndim - 3), "sequence")
        return ShardedAttention(mesh_of(1, 1, 1), spec)(query, key, value, **arguments)

    refused = {"jvp", "second_derivatives", "weights", "sharding"}
    check_attention(ring, EVERYTHING - refused).raise_if_failed()


def memory(attention, mesh, spec, num_tokens, heads, kv_heads):
    """Return the bytes of a device in a program of output and gradients."""

    def function(query, key, value, cotangent):
        causal = functools.partial(attention, mask=masks.causal())
        output, pull = jax.vjp(causal, query, key, value)
        return output, *pull(cotangent)

    given = [
        jax.ShapeDtypeStruct(
            (1, num_tokens, n, 64), jnp.float32, sharding=NamedSharding(mesh, spec)
        )
        for n in (heads, kv_heads, kv_heads, heads)
    ]
    found = jax.jit(function).lower(*given).compile().memory_analysis()
    return sum(getattr(found, f"{name}_size_in_bytes") for name in ("argument", "output", "temp"))


def check_memory():
    """A device of eight needs an eighth of the memory of one, and twice that for twice its tokens.

    Only the numbers of the tiles to visit grow with the square: 32 x 32 for 2^14 tokens.
    """
    spec, tokens = P(None, "sequence"), 2**16
    one = functools.partial(attend, implementation="tiled"), mesh_of(1, 1, 1), spec
    mesh = mesh_of(1, 8, 1)
    eight = ShardedAttention(mesh, spec), mesh, spec
    for heads in ((8, 8), (8, 2)):
        whole, shard = memory(*one, tokens, *heads), memory(*eight, tokens, *heads)
        print(heads, f"{whole / 2**20:.0f} MiB, {shard / 2**20:.0f} MiB, {8 * shard / whole:.2f}/8")
        assert 8 * shard / whole <= 1.2
        assert memory(*eight, 2 * tokens, *heads) <= 2 * shard + 2**14


def check_gradient_of_32k_tokens():
    """A language model of 4 layers and width 256, one row of 32k tokens, eight devices."""
    config = TransformerConfig(
        **{"width": 256, "num_heads": 4, "hidden": 1024, "decoder_layers": 4},
        **{"positions": "rotary", "dropout": 0.0, "max_length": 2**15},
    )
    mesh, order = mesh_of(1, 8, 1), zigzag_order(2**15, 8)
    ring = ShardedAttention(mesh, P(None, "sequence"))
    text = np.random.default_rng(0).integers(0, 256, order.size + 1)
    by_token = NamedSharding(mesh, P(None, "sequence"))
    tokens, labels = (
        jax.device_put(each[np.asarray(order)][None], by_token) for each in (text[:-1], text[1:])
    )

    @jax.value_and_grad
    def gradient(model, tokens, labels):
        logits = model(tokens, attend=ring, positions=order).logits
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1).mean()

    model = LanguageModel.from_config(config, vocab_size=256, rngs=nnx.Rngs(0))
    model = jax.device_put(model, NamedSharding(mesh, P()))
    compiled = jax.jit(gradient).lower(model, tokens, labels).compile()
    loss, _ = jax.block_until_ready(compiled(model, tokens, labels))
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"loss {float(loss):.3f}, {used / 2**30:.2f} GiB in all")
    assert "all-gather" not in compiled.as_text()
    assert np.isfinite(loss) and used < 8 * 2**30


CHECKS = {
    "everything": check_everything,
    "arrays": check_arrays_and_nonfinite_inputs,
    "shard_map": check_inside_shard_map,
}
SLOW = {
    "contract": check_contract,
    "model": check_model,
    "memory": check_memory,
    "32k tokens": check_gradient_of_32k_tokens,
}


def main(*names):
    """Run checks by name; without names, those that are not slow, a head and example at a time."""
    if not names:
        layout.SIZES["cpu"] = (*layout.SIZES["cpu"][:-1], 1)
    for name in names or CHECKS:
        (CHECKS | SLOW)[name]()
        print(name, "passed", flush=True)


if __name__ == "__main__":
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_disable_most_optimizations", {*sys.argv}.isdisjoint(SLOW))
    main(*sys.argv[1:])
