"""Every scheme of positions: what a model with it learns, hears and cannot hear."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention import masks, scores
from attention.modules import Block, Decoder, Encoder, LanguageModel
from attention.modules.positions import NUM_BUCKETS, SCHEMES, Rotary
from tests.attention.modules.inputs import DIMS, filled, small_config, tokens
from tests.attention.primitives.inputs import draw

B, T, D, N, V = DIMS["BTDNV"]
(INPUTS,) = draw((B, T, D))
ORDER = np.array([3, 0, 4, 1, 2])


def stack(cls, **changes):
    return filled(lambda: cls(small_config(**changes), rngs=nnx.Rngs(0)))


def language_model(**changes):
    config = small_config(**changes)
    return filled(lambda: LanguageModel(config, vocab_size=V, rngs=nnx.Rngs(0)))


@pytest.mark.parametrize("kind", SCHEMES)
def test_only_learned_schemes_have_parameters_and_share_them_among_layers(kind):
    def sizes(kind):
        model = jax.eval_shape(lambda: language_model(positions=kind))
        return {
            jax.tree_util.keystr(path): parameter.shape
            for path, parameter in jax.tree_util.tree_leaves_with_path(model)
        }

    expected = {"learned": {(23, D)}, "relative": {(N, NUM_BUCKETS)}}
    assert {*(sizes(kind).items() - sizes("none").items())} == {
        (f".{owner}.positions.value", shape)
        for owner in (["embedding"] if kind == "learned" else ["decoder"])
        for shape in expected.get(kind, ())
    }


@pytest.mark.parametrize("kind", ["none", "alibi", "relative"])
def test_an_encoder_hears_an_order_by_its_scheme_alone(kind):
    encoder = stack(Encoder, positions=kind, encoder_layers=1)
    run = jax.jit(functools.partial(encoder, mask=None))
    moved = run(INPUTS[:, ORDER])[0] - run(INPUTS)[0][:, ORDER]
    assert (np.abs(moved).max() < 1e-4) == (kind == "none")


@pytest.mark.parametrize(
    "cls, kind", [(Encoder, "relative"), (Decoder, "relative"), (Decoder, "alibi")]
)
def test_every_layer_of_a_stack_gets_the_same_scores(cls, kind):
    arguments = {"cross": False} if cls is Decoder else {}
    module = stack(functools.partial(cls, **arguments), positions=kind)
    if kind == "alibi":
        score = scores.alibi(scores.alibi_slopes(N))
    else:
        table = module.positions[...]
        score = scores.relative_bias(table, max_distance=128, causal=cls is Decoder)
    mask = masks.causal() if cls is Decoder else None
    run = jax.jit(Block.__call__)
    outputs = INPUTS
    for layer in range(module.num_layers):
        alone = jax.tree.map(lambda parameter, layer=layer: parameter[layer], module.layers)
        outputs, _ = run(alone, outputs, mask=mask, score=(score,))
    ours, _ = jax.jit(functools.partial(module, mask=mask))(INPUTS)
    np.testing.assert_allclose(ours, module.norm(outputs), rtol=1e-4, atol=1e-4)


def test_the_table_of_relative_positions_learns():
    module = stack(Encoder, positions="relative")
    slopes = jax.grad(lambda module: (module(INPUTS, mask=None)[0] ** 2).sum())(module)
    reached = np.abs(slopes.positions[...]).max(0) > 0
    near = [0, 1, 2, 3, 4]  # distances that occur among five tokens, behind and ahead
    assert set(np.flatnonzero(reached)) == {*near, *(16 + distance for distance in near[1:])}


@pytest.mark.parametrize("kind", ["none", "rotary", "alibi", "relative"])
def test_positions_that_nobody_would_read_are_refused(kind):
    model = jax.eval_shape(lambda: language_model(positions=kind))
    with pytest.raises(ValueError, match=f'positions="{kind}" are not added to embeddings'):
        jax.eval_shape(lambda model: model(tokens(B, T), positions=jnp.arange(T)), model)


def test_a_rotary_of_a_config_is_compared_by_value():
    given = small_config(rotary={"base": 5e5, "scaling": "llama3", "factor": 8.0})
    assert given.rotary == Rotary(base=5e5, scaling="llama3", factor=8.0)
    assert small_config().rotary == Rotary()
    build = functools.partial(language_model, positions="rotary", rotary={"base": 100.0})
    first, second = (jax.tree.structure(jax.eval_shape(build)) for _ in range(2))
    assert first == second
