"""Fields of `TransformerConfig`: effects, defaults, errors, and models of published sizes."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention.modules import (
    ACTIVATIONS,
    FEED_FORWARDS,
    NORMS,
    EncoderDecoder,
    TransformerConfig,
    layer_norm,
)
from attention.modules.numbers import check_number, check_rate
from tests.attention.modules.inputs import DIMS, shapes_of
from tests.attention.primitives.inputs import jitted

(V,) = DIMS["V"]
SIZES = {"source_vocab_size": V, "target_vocab_size": V}
BASE = {
    "width": 12,
    "num_heads": 6,
    "hidden": 13,
    "max_length": 7,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "dropout": 0.1,
    "attention_dropout": 0.1,
}


def no_layer(config, rngs):
    del config, rngs
    return lambda inputs: inputs


# A new value of each field, and what it changes.
CHANGES = {
    "width": (18, "parameters"),
    "num_heads": (4, "parameters"),
    "num_kv_heads": (2, "parameters"),
    "head_width": (5, "parameters"),
    "value_width": (5, "parameters"),
    "hidden": (17, "parameters"),
    "mixer": (no_layer, "parameters"),
    "cross_attention": (False, "error"),  # in every layer of a decoder with an encoder output
    "feed_forward": (no_layer, "parameters"),
    "activation": ("gelu", "program"),
    "gated": (True, "parameters"),
    "norm": ("rms", "parameters"),
    "norm_placement": ("both", "parameters"),
    "norm_epsilon": (0.1, "program"),
    "qk_norm": ("rms", "parameters"),
    "positions": ("learned", "parameters"),
    "rotary": ({"base": 100.0}, "program"),
    "relative": ({"num_buckets": 4}, "parameters"),
    "max_length": (4, "error"),
    "encoder_layers": (2, "parameters"),
    "decoder_layers": (2, "parameters"),
    "tie": ("none", "parameters"),
    "use_bias": (False, "parameters"),
    "qkv_bias": (False, "parameters"),
    "output_bias": (True, "parameters"),
    "attention_scale": (1.0, "program"),
    "softcap": (0.1, "program"),
    "window": (2, "program"),
    "embedding_scale": (1.0, "program"),
    "embedding_norm": (True, "parameters"),
    "num_token_types": (2, "parameters"),
    "logit_scale": (0.5, "program"),
    "logit_softcap": (1.0, "program"),
    "kernel_init": ("normal_0.02", "initial"),
    "embedding_init": ("normal_0.02", "initial"),
    "dropout": (0.2, "program"),
    "attention_dropout": (0.2, "program"),
    "implementation": ("tokamax:cudnn", "error"),
    "scan": (False, "parameters"),
    "remat": (False, "backward"),
    "dtype": ("bfloat16", "program"),
    "param_dtype": ("bfloat16", "parameters"),
    "per_layer": ([{"hidden": 5}], "parameters"),
}


def initialized(field, model):
    """Return arrays that the initializer of a field makes."""
    if field == "embedding_init":
        embeddings = model.source_embedding, model.target_embedding
        return [table[...] for each in embeddings for table in (each.tokens, each.positions.table)]
    block = model.decoder.layers.blocks[0]
    kernels = block.self_attention.sublayer.query.kernel, block.feed_forward.sublayer.up.kernel
    return [kernel[...] for kernel in kernels]


# Without these, the field has no effect.
GIVEN = {
    "rotary": {"positions": "rotary", "head_width": 4},
    "relative": {"positions": "relative"},
    "scan": {"encoder_layers": 2},
    "embedding_init": {"positions": "learned", "max_length": 41},
}


def build(changes):
    config = TransformerConfig(**(BASE | changes))
    return EncoderDecoder.from_config(config, **SIZES, rngs=nnx.Rngs(0))


def logits(model, rng):
    tokens = jnp.arange(5, dtype=jnp.int32)[None]
    return model(tokens, tokens, rng=rng).logits


def model_of(changes):
    return shapes_of(EncoderDecoder, TransformerConfig(**(BASE | changes)), **SIZES)


def program(changes):
    """Return the text of the program of logits with dropout."""
    return jax.jit(logits).lower(model_of(changes), jax.random.key(0)).as_text()


default_program = functools.cache(functools.partial(program, {}))


def parameters(model):
    return {
        jax.tree_util.keystr(path): (parameter.shape, parameter.dtype)
        for path, parameter in jax.tree_util.tree_leaves_with_path(model)
    }


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(TransformerConfig)])
def test_every_field_has_an_effect(field):
    value, effect = CHANGES[field]
    given = GIVEN.get(field, {})
    change = given | {field: value}
    if effect == "error":
        with pytest.raises(ValueError, match=rf"{field}[= ]'?{value}"):
            jax.eval_shape(lambda: logits(build(change), None))
        return
    before, after = parameters(model_of(given)), parameters(model_of(change))
    assert (before != after) == (effect == "parameters")
    if effect == "initial":
        for array in jitted(lambda: initialized(field, build(change)))():
            np.testing.assert_allclose(array.std(), 0.02, rtol=0.2)
    if effect == "backward":
        before, after = (
            str(jax.make_jaxpr(jax.grad(lambda model: logits(model, None).sum()))(model_of(each)))
            for each in ({}, change)
        )
        assert "remat" in before
        assert "remat" not in after
    if effect == "program":
        assert program(change) != (program(given) if given else default_program())


class TestPerLayer:
    def test_a_list_repeats_and_a_function_takes_the_index(self):
        config = TransformerConfig(per_layer=[{"window": 3}, {}])
        assert [config.layer(index).window for index in range(5)] == [3, None, 3, None, 3]
        assert config.layer(1).per_layer == ()
        config = TransformerConfig(per_layer=lambda index: {"hidden": 5 + index})
        assert [config.layer(index).hidden for index in range(3)] == [5, 6, 7]

    @pytest.mark.parametrize("wrap", [lambda each: [each], lambda each: lambda index: each])
    @pytest.mark.parametrize(
        "overrides, words",
        [
            ({"windw": 3}, "blocks have no field 'windw'; did you mean 'window'[?]$"),
            ({"activation": "gelo"}, "activation must be one of relu, gelu"),
            ({"rotary": {"bas": 3}}, "rotary has no field 'bas'; did you mean 'base'[?]$"),
            ({"max_length": 3}, "blocks have no field 'max_length'"),
            ({"positions": "alibi"}, "positions may be one that rotates, .* got 'alibi'"),
        ],
        ids=str,
    )
    def test_fields_that_blocks_do_not_have(self, wrap, overrides, words):
        with pytest.raises(ValueError, match=f"^per_layer: {words}"):
            TransformerConfig(per_layer=wrap(overrides)).layer(0)

    def test_sizes_that_are_not_given_follow_those_of_the_layer(self):
        found = parameters(model_of({"num_heads": 6, "per_layer": [{"num_heads": 2}]}))
        names = [path for path in found if "key" in path and "kernel" in path]
        assert {found[name][0][-3:] for name in names} == {(12, 2, 6)}

    @pytest.mark.parametrize("positions", ["alibi", "learned"])
    def test_no_layer_is_without_the_positions_of_all_layers(self, positions):
        with pytest.raises(ValueError, match=f"^per_layer: .* got 'none' beside '{positions}'$"):
            TransformerConfig(positions=positions, per_layer=[{"positions": "none"}])


def test_registered_names(monkeypatch):
    monkeypatch.setitem(NORMS, "mine", layer_norm)
    monkeypatch.setitem(ACTIVATIONS, "sine", jnp.sin)
    monkeypatch.setitem(FEED_FORWARDS, "none", no_layer)
    changes = {"norm": "mine", "activation": "sine", "feed_forward": "none"}
    model = jax.eval_shape(lambda: build(changes))
    assert not [path for path in parameters(model) if ".up" in path]


# Names with a wrong letter, and the names that the error suggests.
MISSPELT = {
    "activation": ("rely", "relu"),
    "norm": ("rsm", "rms"),
    "norm_placement": ("pst", "post"),
    "qk_norm": ("rsm", "rms"),
    "positions": ("learnt", "learned"),
    "mixer": ("atention", "attention"),
    "feed_forward": ("dens", "dense"),
    "kernel_init": ("lecun_norm", "lecun_normal"),
    "implementation": ("tile", "tiled"),
    "tie": ("outputs", "output"),
}
POSITIVE = ("width", "num_heads", "hidden", "max_length", "head_width", "value_width", "window")

ABOVE_0 = ("attention_scale", "softcap", "embedding_scale", "logit_scale", "logit_softcap")


@pytest.mark.parametrize(
    "changes, words",
    [
        *[({name: 0}, f"{name} must be at least 1, got 0") for name in POSITIVE],
        ({"encoder_layers": -1}, "encoder_layers must be at least 0, got -1"),
        ({"decoder_layers": -2}, "decoder_layers must be at least 0, got -2"),
        *[
            ({name: value}, f"{name} must be above 0 and finite, got {value}$")
            for name in ABOVE_0
            for value in (0, float("nan"), float("inf"))
        ],
        *[
            ({"norm_epsilon": value}, f"norm_epsilon must be at least 0, got {value}$")
            for value in (-1, float("nan"))
        ],
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"attention_dropout": -0.1}, r"attention_dropout must be in \[0, 1\), got -0.1"),
        ({"dropout": float("nan")}, r"dropout must be in \[0, 1\), got nan"),
        *[
            ({name: wrong}, f"{name} must be one of .* got '{wrong}'; did you mean '{right}'[?]$")
            for name, (wrong, right) in MISSPELT.items()
        ],
        ({"activation": "xyz"}, r"relu, gelu, .* \(the registry ACTIVATIONS\), got 'xyz'$"),
        ({"embedding_scale": "sqrt"}, "scale must be one of sqrt_width, got 'sqrt'$"),
        ({"rotary": {"bas": 3}}, "rotary has no field 'bas'; did you mean 'base'[?]$"),
        ({"rotary": 100.0}, "rotary must be a Rotary or a dict of its fields, got 100.0$"),
        ({"rotary": {"scaling": "liner"}}, "rotary.scaling must be one of .* mean 'linear'[?]$"),
        (
            {"rotary": {"scaling": "ntk", "factor": 0.5}},
            "rotary.factor must be finite and at least 1",
        ),
        ({"rotary": {"factor": 2.0}}, "rotary.factor=2.0 needs a rotary.scaling: one of linear"),
        ({"relative": {"buckets": 3}}, "relative has no field 'buckets'; .* 'num_buckets'[?]$"),
        ({"per_layer": {"window": 3}}, "per_layer must be a list of dicts, .* got a dict$"),
        ({"tie": "none", "logit_softcap": 30.0}, "logit_scale and .* got tie='none'$"),
        ({"num_kv_heads": 4}, "num_heads=6 .* num_kv_heads=4: use one of 1, 2, 3, 6$"),
        ({"num_heads": 5}, "width=12 is not divisible by num_heads=5: .* or set head_width$"),
        ({"width": 15, "head_width": 2}, "sinusoidal positions need an even width, got 15$"),
        ({"positions": "rotary", "head_width": 3}, "rotary positions .* even head_width, got 3$"),
    ],
)
def test_values_that_do_not_fit(changes, words):
    with pytest.raises(ValueError, match=words):
        TransformerConfig(**(BASE | changes))


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("num_attention_heads", "; did you mean 'num_heads'[?]"),
        ("hidden_size", "; did you mean 'width'[?]"),
        ("learning_rate", ""),
    ],
)
def test_nearest_names(name, nearest):
    with pytest.raises(TypeError, match=f"a TransformerConfig has no field '{name}'{nearest}$"):
        TransformerConfig(**{name: 4})


def test_a_traced_number_is_not_checked():
    jax.eval_shape(lambda x: check_number("softcap", x, above=0) or check_rate("rate", x), 2.0)


def test_an_odd_width_with_learned_positions():
    config = TransformerConfig(**(BASE | {"width": 15, "head_width": 2, "positions": "learned"}))
    assert (config.width, config.head_width) == (15, 2)
