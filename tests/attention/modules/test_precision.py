"""dtype of parameters, computation and caches; axis names."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention.modules import (
    FeedForward,
    RecurrentConfig,
    RecurrentEncoderDecoder,
    map_axes,
    name_axis,
    unstack_layers,
)
from attention.modules.recurrent import ATTENTIONS, CELLS
from tests.attention.modules.inputs import (
    DECODER_LAYERS,
    DIMS,
    ENCODER_LAYERS,
    LENGTHS,
    B,
    S,
    T,
    classifier,
    language_model,
    small_translator,
    tokens,
    translate,
)

D, F, H = DIMS["DFH"]
BFLOAT16 = {"dtype": "bfloat16", "positions": "relative", "softcap": 20.0, "qk_norm": "rms"}
SOURCE, TARGET = tokens(B, S, seed=1), tokens(B, T)


@pytest.mark.parametrize("positions", ["relative", "rotary", "alibi", "learned", "sinusoidal"])
def test_bfloat16_computation_has_float32_parameters_and_gradients(positions):
    make, inputs = language_model, (TARGET,)
    if positions == "relative":
        make, inputs = small_translator, (SOURCE, TARGET)
    model = make(**BFLOAT16 | {"positions": positions, "dropout": 0.1})
    assert {leaf.dtype for leaf in jax.tree.leaves(model)} == {jnp.dtype("float32")}

    def loss(model, rng):
        return jnp.mean(model(*inputs, rng=rng).logits.astype(jnp.float32) ** 2)

    trace = jax.make_jaxpr(jax.grad(loss), return_shape=True)
    program, shapes = trace(model, jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype("float32")}
    states = jax.eval_shape(lambda: model(*inputs, returning=("hidden_states",)).hidden_states)
    assert {state.dtype for state in states} == {jnp.dtype("bfloat16")}
    # Every product with a kernel is one of bfloat16; only those of the softmax weights are not.
    rows = f"({B * S}|{B * T})"
    assert re.findall(rf"bf16\[{rows},{F}\] = dot_general", str(program))
    assert not re.findall(rf"f32\[{rows},({F}|{D})\] = dot_general", str(program))


def test_bfloat16_output_is_near_that_of_float32():
    changes = {"encoder_layers": 1, "decoder_layers": 1}
    half, single = (
        small_translator(**BFLOAT16 | {"dtype": each} | changes) for each in ("bfloat16", None)
    )
    ours, expected = (translate(model, SOURCE, TARGET, LENGTHS) for model in (half, single))
    assert (ours.dtype, expected.dtype) == (jnp.bfloat16, jnp.float32)
    error = np.abs(ours.astype(jnp.float32) - expected).max()
    assert 1e-4 < error < 0.1 * np.abs(expected).max()


def test_parameters_may_have_a_dtype_of_their_own():
    model = small_translator(param_dtype="bfloat16", positions="learned")
    assert {leaf.dtype for leaf in jax.tree.leaves(model)} == {jnp.dtype("bfloat16")}
    logits = jax.eval_shape(lambda m: translate(m, SOURCE, TARGET, LENGTHS), model)
    assert logits.dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("dtype", "cache_dtype"), [("bfloat16", None), ("float32", "bfloat16"), ("bfloat16", "float32")]
)
@pytest.mark.parametrize("make", [small_translator, language_model])
def test_caches_have_the_dtype_of_the_computation_or_their_own(make, dtype, cache_dtype):
    def run(model):
        given = {} if make is language_model else {"encoder_output": model.encode(SOURCE).features}
        cache = model.new_cache((B,), 2, dtype=cache_dtype, **given)
        output = model.decode(TARGET[:, :1], *[None] * len(given), cache=cache)
        return model.logits(output.features), output.cache.layers[0]

    model = make(dtype=dtype, decoder_layers=1, encoder_layers=1)
    logits, caches = jax.eval_shape(run, model)
    assert logits.dtype == dtype
    arrays = [each for each in jax.tree.leaves(caches) if jnp.issubdtype(each.dtype, jnp.floating)]
    assert len(arrays) == (2 if make is language_model else 4)  # keys and values
    assert {each.dtype for each in arrays} == {jnp.dtype(cache_dtype or dtype)}


# The sizes that an axis of a small translator may have, by its name.
SIZES = {
    **{"vocab": DIMS["Vv"], "embed": DIMS["D"], "hidden": DIMS["F"], "positions": [23]},
    **{"heads": DIMS["N"], "kv_heads": DIMS["K"], "head": DIMS["H"]},
    "layers": [ENCODER_LAYERS, DECODER_LAYERS],
}


@pytest.mark.parametrize("unstack", [False, True])
def test_each_axis_of_each_parameter_has_the_name_of_its_size(unstack):
    model = small_translator(positions="learned", tie="none", qk_norm="rms")
    model = unstack_layers(model) if unstack else model
    shapes = dict(nnx.to_flat_state(nnx.state(model, nnx.Param)))
    for path, axes in nnx.to_flat_state(map_axes(lambda names: names, model)):
        for name, size in zip(axes.get_value(), shapes[path].shape, strict=True):
            assert size in SIZES[name], path


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_parameter_of_a_recurrent_model_has_axis_names(cell, attention):
    config = RecurrentConfig(cell=cell, attention=attention)
    sizes = {"source_vocab_size": 19, "target_vocab_size": 17}
    model = jax.eval_shape(lambda: RecurrentEncoderDecoder(config, **sizes, rngs=nnx.Rngs(0)))
    for path, parameter in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        axes = parameter.get_metadata().get("axes", ())
        assert len(axes) == parameter.ndim, path
        assert None not in axes, path


def test_the_leading_axis_of_experts_has_a_name():
    keys = jax.random.split(jax.random.key(0), 3)
    experts = jax.vmap(lambda key: FeedForward(D, F, rngs=nnx.Rngs(key)))(keys)
    axes = map_axes(lambda names: names, name_axis(experts, "experts"))
    assert axes.up.kernel.get_value() == ("experts", "embed", "hidden")


def test_activations_are_constrained_by_name():
    found = set()

    def constrain(array, names):
        assert array.ndim == len(names)
        found.add(names)
        return array

    model, source = small_translator(), jnp.zeros((B, S, D))
    jax.eval_shape(lambda: model(SOURCE, TARGET, constrain=constrain))
    kinds = ("embed",), ("hidden",), ("vocab",), ("heads", "head"), ("kv_heads", "head")
    assert found == {("batch", "sequence", *names) for names in kinds}
    found.clear()
    given = {"encoder_output": source, "constrain": constrain}
    jax.eval_shape(lambda: model.new_cache((B,), T, **given))
    assert found == {("batch", "sequence", "kv_heads", "head")}
    jax.eval_shape(lambda: classifier()(SOURCE, constrain=constrain))
    assert ("batch", "classes") in found
