"""Fields of `TransformerConfig`: effects, defaults, errors, and models of published sizes."""

import dataclasses

import jax
import jax.numpy as jnp
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
from tests.attention.modules.inputs import DIMS, shapes_of

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


# Without these, the field has no effect.
GIVEN = {
    "rotary": {"positions": "rotary", "head_width": 4},
    "relative": {"positions": "relative"},
    "scan": {"encoder_layers": 2},
}


def build(changes):
    config = TransformerConfig(**(BASE | changes))
    return EncoderDecoder.from_config(config, **SIZES, rngs=nnx.Rngs(0))


def model_of(changes):
    return shapes_of(EncoderDecoder, TransformerConfig(**(BASE | changes)), **SIZES)


def logits(model, rng=None):
    tokens = jnp.arange(5, dtype=jnp.int32)[None]
    return model(tokens, tokens, rng=rng).logits


def parameters(changes):
    return {
        jax.tree_util.keystr(path): (parameter.shape, parameter.dtype)
        for path, parameter in jax.tree_util.tree_leaves_with_path(model_of(changes))
    }


def program(changes):
    """Return the text of the program of logits with dropout."""
    return jax.jit(logits).lower(model_of(changes), jax.random.key(0)).as_text()


def backward(changes):
    return str(jax.make_jaxpr(jax.grad(lambda model: logits(model).sum()))(model_of(changes)))


def initial(changes):
    return str(jax.make_jaxpr(lambda: jax.tree.leaves(build(changes)))())


EFFECTS = {each.__name__: each for each in (parameters, program, backward, initial)}


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(TransformerConfig)])
def test_every_field_has_an_effect(field):
    value, effect = CHANGES[field]
    given = GIVEN.get(field, {})
    change = given | {field: value}
    if effect == "error":
        with pytest.raises(ValueError, match=rf"{field}[= ]'?{value}"):
            jax.eval_shape(lambda: logits(build(change)))
        return
    assert (parameters(given) != parameters(change)) == (effect == "parameters")
    if effect != "parameters":
        assert EFFECTS[effect](given) != EFFECTS[effect](change)


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
            ({"positions": "alibi"}, "positions may be 'none' or one that rotates, got"),
        ],
        ids=str,
    )
    def test_fields_that_blocks_do_not_have(self, wrap, overrides, words):
        with pytest.raises(ValueError, match=f"^per_layer: {words}"):
            TransformerConfig(per_layer=wrap(overrides)).layer(0)

    def test_sizes_that_are_not_given_follow_those_of_the_layer(self):
        found = parameters({"num_heads": 6, "per_layer": [{"num_heads": 2}]})
        names = [path for path in found if "key" in path and "kernel" in path]
        assert {found[name][0][-3:] for name in names} == {(12, 2, 6)}

    @pytest.mark.parametrize("positions", ["alibi", "learned"])
    def test_no_layer_is_without_the_positions_of_all_layers(self, positions):
        with pytest.raises(ValueError, match=f"^per_layer: {positions} positions are those of all"):
            TransformerConfig(positions=positions, per_layer=[{"positions": "none"}])


def test_registered_names(monkeypatch):
    monkeypatch.setitem(NORMS, "mine", layer_norm)
    monkeypatch.setitem(ACTIVATIONS, "sine", jnp.sin)
    monkeypatch.setitem(FEED_FORWARDS, "none", no_layer)
    changes = {"norm": "mine", "activation": "sine", "feed_forward": "none"}
    assert not [path for path in parameters(changes) if ".up" in path]


# Values that do not fit, one of each kind.
MISTAKES = [
    *[
        ({name: 0}, f"{name} must be at least 1, got 0$")
        for name in ("width", "num_heads", "hidden", "max_length", "head_width", "value_width")
    ],
    *[({name: -1}, f"{name} must be at least 0") for name in ("encoder_layers", "decoder_layers")],
    *[
        ({name: 0}, "must be (finite and )?above 0.*, got 0$")
        for name in ("attention_scale", "softcap", "embedding_scale", "logit_scale")
    ],
    ({"logit_softcap": float("nan")}, "logit_softcap must be .*, got nan$"),
    ({"norm_epsilon": -1}, "norm_epsilon must be .*at least 0, got -1$"),
    ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
    ({"attention_dropout": float("nan")}, r"attention_dropout must be in \[0, 1\), got nan"),
    *[
        ({name: wrong}, f"{name} must be one of .* got '{wrong}'; did you mean '{right}'[?]$")
        for name, wrong, right in (
            ("activation", "rely", "relu"),
            ("norm", "rsm", "rms"),
            ("norm_placement", "pst", "post"),
            ("qk_norm", "rsm", "rms"),
            ("positions", "learnt", "learned"),
            ("mixer", "atention", "attention"),
            ("feed_forward", "dens", "dense"),
            ("kernel_init", "lecun_norm", "lecun_normal"),
            ("implementation", "tile", "tiled"),
            ("tie", "outputs", "output"),
        )
    ],
    ({"activation": "xyz"}, r"relu, gelu, .* \(the registry ACTIVATIONS\), got 'xyz'$"),
    ({"embedding_scale": "sqrt"}, "scale must be one of sqrt_width, got 'sqrt'$"),
    ({"rotary": {"bas": 3}}, "rotary has no field 'bas'; did you mean 'base'[?]$"),
    ({"rotary": 100.0}, "rotary must be a Rotary or a dict of its fields, got 100.0$"),
    ({"rotary": {"scaling": "liner"}}, "rotary.scaling must be one of .* mean 'linear'[?]$"),
    ({"rotary": {"factor": 2.0}}, "rotary.factor=2.0 needs a rotary.scaling: one of linear"),
    ({"per_layer": {"window": 3}}, "per_layer must be a list of dicts, .* got a dict$"),
    ({"tie": "none", "logit_softcap": 30.0}, "logit_scale and .* got tie='none'$"),
    ({"num_kv_heads": 4}, "num_heads=6 .* num_kv_heads=4: use one of 1, 2, 3, 6$"),
    ({"num_heads": 5}, "width=12 is not divisible by num_heads=5: .* or set head_width$"),
    ({"width": 15, "head_width": 2}, "sinusoidal positions need an even width, got 15$"),
    ({"positions": "rotary", "head_width": 3}, "rotary positions .* even head_width, got 3$"),
    # Names of other libraries.
    *[
        ({name: 4}, f"a TransformerConfig has no field '{name}'{nearest}$")
        for name, nearest in (
            ("num_attention_heads", "; did you mean 'num_heads'[?]"),
            ("hidden_size", "; did you mean 'width'[?]"),
            ("learning_rate", ""),
        )
    ],
]


@pytest.mark.parametrize("changes, words", MISTAKES)
def test_values_that_do_not_fit(changes, words):
    with pytest.raises((TypeError, ValueError), match=words):
        TransformerConfig(**(BASE | changes))


def test_an_odd_width_with_learned_positions():
    config = TransformerConfig(**(BASE | {"width": 15, "head_width": 2, "positions": "learned"}))
    assert (config.width, config.head_width) == (15, 2)
