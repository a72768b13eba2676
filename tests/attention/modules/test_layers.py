"""`Residual`, `Block`, `Layers` and `unstack_layers`, by hand and with layers of any kind."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention.modules import (
    Block,
    CacheSpec,
    Context,
    FeedForward,
    Layers,
    Output,
    Residual,
    apply_layer,
    layer_norm,
    unstack_layers,
)
from attention.modules.transformer import SHALLOW
from tests.attention.modules.inputs import DIMS, filled
from tests.attention.primitives.inputs import draw, jitted

B, T, D, F = DIMS["BTDF"]
(INPUTS,) = draw((B, T, D))


class Affine(nnx.Module):
    """Map x to factor·x + offset."""

    def __init__(self, factor, offset=0, kind="a"):
        self.factor = nnx.Param(jnp.float32(factor))
        self.offset = nnx.Param(jnp.float32(offset))
        self.kind = kind

    def __call__(self, inputs, *, context):
        features = inputs * self.factor[...] + self.offset[...]
        return Output(
            features,
            attention={"largest": features.max()} if context.returning else None,
            cache=None if context.cache is None else context.cache + 1,
            losses={"size": jnp.abs(features).sum(), self.kind: jnp.ones(())},
        )

    def new_cache(self, spec):
        return jnp.zeros(spec.batch, jnp.int32)


def affine_layers(kinds, **options):
    """Layers that map x to (i + 2)·x + i, of these kinds."""
    make = lambda index, rngs: Affine(index + 2, index, kinds[index])  # noqa: E731 - short
    return Layers(make, len(kinds), rngs=nnx.Rngs(0), **options)


def feed_forward_layers(kinds, **options):
    def make(kind, rngs):
        sublayer = FeedForward(D, F + "ab".index(kind), rngs=rngs)
        return Block(feed_forward=Residual(layer_norm(D, rngs=rngs), sublayer, dropout=0.3))

    return filled(lambda: Layers(make, kinds, rngs=nnx.Rngs(0), **options))


def test_results_of_a_block_have_the_names_of_its_sublayers():
    block = Block(first=Affine(2), second=Affine(3, kind="b"), third=lambda x: x)
    cache = block.new_cache(CacheSpec(batch=(B,), size=T))
    assert cache["third"] is None
    output = block(INPUTS, context=Context(returning=("largest",), cache=cache))
    assert set(output.attention) == {"first", "second"}
    np.testing.assert_array_equal(output.cache["second"], [1, 1, 1])
    expected = np.abs(2 * INPUTS).sum() + np.abs(6 * INPUTS).sum()
    np.testing.assert_allclose(output.losses["size"], expected, rtol=1e-5)
    assert {*output.losses} == {"size", "a", "b"}


@pytest.mark.parametrize(
    "layer, expected",
    [
        (lambda x, context: x + context.positions, 4),
        (lambda x, **options: x + options["context"].positions, 4),
        (lambda x: x + 1, 2),
        (nnx.Sequential(lambda x: x + 1), 2),
        (Residual(None, lambda x: x + 1), 3),
        (type("Unhashable", (), {"__hash__": None, "__call__": lambda _, x: x + 1})(), 2),
    ],
    ids=["by name", "any keywords", "function", "module", "residual without a norm", "unhashable"],
)
def test_layers_with_and_without_a_context(layer, expected):
    output = apply_layer(layer, np.array([1]), Context(positions=np.array([3])))
    assert output.features == expected


@pytest.mark.parametrize(
    "kinds, period, blocks",
    [("aaaa", 1, 1), ("ababa", 2, 3), ("abcabc", 3, 3), ("abbb", 4, 4), ("", 0, 0)],
)
def test_layers_of_one_structure_are_stacked(kinds, period, blocks):
    """The result does not depend on how layers are stored."""
    layers = affine_layers(kinds)
    assert (layers.period, len(layers.blocks)) == (period, blocks)
    hidden = [1.0]
    for index in range(len(kinds)):
        hidden.append((index + 2) * hidden[-1] + index)
    context = Context(returning=("hidden_states",))
    run = jitted(functools.partial(Layers.__call__, context=context))
    for each in (layers, affine_layers(kinds, scan=False), unstack_layers(layers)):
        output = run(each, jnp.ones(1))
        assert output.features.tolist() == hidden[-1:]
        assert [float(state[0]) for state in output.hidden_states] == hidden
        assert [float(one["largest"]) for one in output.attention] == hidden[1:]
        counts = {kind: kinds.count(kind) for kind in kinds}
        assert output.losses == ({"size": sum(hidden[1:]), **counts} if kinds else {})


def test_layers_of_items_that_repeat_are_made_once_for_each_kind():
    calls = []

    def make(item, rngs):
        calls.append(item)
        return FeedForward(D, F + item % 2, rngs=rngs)

    @jitted
    def both():
        known = Layers(make, [4, 5, 4, 5, 4], rngs=nnx.Rngs(0))
        return known, Layers(lambda index, rngs: make(index % 2, rngs), 5, rngs=nnx.Rngs(0))

    known, compared = both()
    assert calls == [4, 5, 4, 0, 1, 0, 1, 0]
    chex.assert_trees_all_equal(known.blocks, compared.blocks)
    first, second = known.blocks[0].up.kernel[...][:2]
    assert abs(np.corrcoef(np.ravel(first), np.ravel(second))[0, 1]) < 0.2


def test_scanned_layers_equal_unrolled_ones_with_dropout_and_in_gradient():
    """`jax.random.PRNGKey` makes keys that are data already."""
    scanned = feed_forward_layers("ababa")

    @jitted
    @functools.partial(jax.value_and_grad, argnums=(0, 1))
    def run(layers, inputs, rng):
        return jnp.sum(layers(inputs, context=Context(rng=rng)).features ** 2)

    value, (gradient, towards) = run(scanned, INPUTS, jax.random.PRNGKey(0))
    unrolled = unstack_layers(scanned)
    expected, (expected_gradient, expected_towards) = run(unrolled, INPUTS, jax.random.key(0))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    chex.assert_trees_all_close(
        (towards, unstack_layers(gradient).blocks),
        (expected_towards, expected_gradient.blocks),
        rtol=1e-4,
        atol=1e-4,
    )
    assert len(scanned.blocks) == 3  # `unstack_layers` changes no model


def test_losses_have_gradients_through_a_scan():
    gradient = jitted(jax.grad(lambda layers: layers(jnp.ones(1)).losses["size"]))
    # The last offset is a part of the last features, the one before also of these, 6 times.
    assert gradient(affine_layers("aaaaa")).blocks[0].offset[...].tolist()[-2:] == [7, 1]


@pytest.mark.parametrize(
    "number, remat, scan", [(SHALLOW, True, True), (SHALLOW, False, False), (5, False, True)]
)
def test_a_few_layers_without_remat_are_unrolled(number, remat, scan):
    """With remat they are scanned, so that the backward pass keeps little."""
    layers = feed_forward_layers("a" * number, remat=remat)
    gradient = jax.grad(lambda layers: layers(INPUTS).features.sum())
    assert ("while" in jax.jit(gradient).lower(layers).as_text()) == scan
    for each in (layers, unstack_layers(layers)):
        assert ("remat" in str(jax.make_jaxpr(gradient)(each))) == remat


def test_layers_of_layers():
    def make(index, rngs):
        return Layers(lambda inner, _: Affine(inner + 1, index), 3, rngs=rngs)

    layers = Layers(make, 2, rngs=nnx.Rngs(0))
    apart = unstack_layers(layers)
    assert [len(inner.blocks) for inner in apart.blocks] == [3, 3]
    expected = jitted(Layers.__call__)(layers, INPUTS).features
    np.testing.assert_allclose(apart(INPUTS).features, expected, rtol=1e-5)


def run_layers(make, n=3, **fields):
    layers = Layers(lambda index, _: make(index), n, rngs=nnx.Rngs(0))
    return layers(INPUTS, context=Context(**fields))


ERRORS = {
    "placement must be one of pre, post, got 'pro'": lambda: Residual(None, abs, placement="pro"),
    r"layer 1: .*adds inputs \(3, 5, 14\) .* got \(3, 5, 1\)": lambda: run_layers(
        lambda index: Residual(None, lambda x: x[..., :1]) if index else Affine(1)
    ),
    r"layer 2: .* got \(14,\) and \(16,\)": lambda: run_layers(
        lambda index: FeedForward(D + 2 * (index == 2), F, rngs=nnx.Rngs(0))
    ),
    r"^layer 0 contains RngCount, .*use drop\(.*, context.rng\)": lambda: run_layers(
        lambda index: Residual(None, nnx.Dropout(0.5, rngs=nnx.Rngs(0)))
    ),
    "^layer 1 contains BatchStat, a variable that Layers never": lambda: run_layers(
        lambda index: nnx.BatchNorm(D, rngs=nnx.Rngs(0)) if index else Affine(1)
    ),
    "^3 layers need a tuple of as many caches, got 2": lambda: run_layers(Affine, cache=((),) * 2),
    "layer 0: a layer returns features or an Output, got t": lambda: run_layers(
        lambda index: Block(pair=lambda x: (x, x))
    ),
    "layer 0: Sequential has no argument context for its Affine": lambda: run_layers(
        lambda index: Block(attention=nnx.Sequential(Affine(1)))
    ),
    "layer 0: MultiHeadAttention has no argument context for": lambda: run_layers(
        lambda index: nnx.MultiHeadAttention(2, D, decode=False, rngs=nnx.Rngs(0)), lengths=[T] * B
    ),
    "returning needs a collection of names, got 'weights'": lambda: Context(returning="weights"),
}


@pytest.mark.parametrize("words", ERRORS)
def test_errors(words):
    with pytest.raises((TypeError, ValueError), match=words):
        jax.eval_shape(ERRORS[words])


def test_a_scan_outside_of_jit_is_compiled_once(caplog):
    stack = affine_layers("aaa")
    stack(INPUTS)
    with jax.log_compiles():
        stack(INPUTS)
    assert "Compiling" not in caplog.text
