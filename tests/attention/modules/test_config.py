"""Fields of `TransformerConfig`: effects, defaults, errors, and models of published sizes."""

import dataclasses
import functools

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


# A new value of each field.
CHANGES = {
    "width": 18,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_width": 5,
    "value_width": 5,
    "hidden": 17,
    "mixer": no_layer,
    "cross_attention": False,
    "feed_forward": no_layer,
    "activation": "gelu",
    "gated": True,
    "norm": "rms",
    "norm_placement": "both",
    "norm_epsilon": 0.1,
    "qk_norm": "rms",
    "positions": "learned",
    "rotary": {"base": 100.0},
    "relative": {"num_buckets": 4},
    "max_length": 4,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "tie": "none",
    "use_bias": False,
    "qkv_bias": False,
    "output_bias": True,
    "attention_scale": 1.0,
    "softcap": 0.1,
    "window": 2,
    "embedding_scale": 1.0,
    "embedding_norm": True,
    "num_token_types": 2,
    "logit_scale": 0.5,
    "logit_softcap": 1.0,
    "kernel_init": "normal_0.02",
    "embedding_init": "normal_0.02",
    "dropout": 0.2,
    "attention_dropout": 0.2,
    "implementation": "tokamax:cudnn",
    "scan": False,
    "remat": False,
    "dtype": "bfloat16",
    "param_dtype": "bfloat16",
    "per_layer": [{"hidden": 5}],
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


def logits(model, rng=None):
    tokens = jnp.arange(5, dtype=jnp.int32)[None]
    return model(tokens, tokens, rng=rng).logits


def parameters(changes):
    model = shapes_of(EncoderDecoder, TransformerConfig(**(BASE | changes)), **SIZES)
    leaves = jax.tree_util.tree_leaves_with_path(model)
    return {jax.tree_util.keystr(path): leaf.shape for path, leaf in leaves}


def program(changes):
    """Return all that a config determines: initial values, logits with dropout, and gradients."""

    def run(rng):
        model = build(changes)
        return model, jax.grad(lambda model: logits(model, rng).sum())(model)

    try:
        return str(jax.make_jaxpr(run)(jax.random.key(0)))
    except ValueError as error:
        return str(error)


default_program = functools.cache(functools.partial(program, {}))


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(TransformerConfig)])
def test_every_field_has_an_effect(field):
    given = GIVEN.get(field, {})
    change = given | {field: CHANGES[field]}
    # Without cross-attention in any layer, an encoder-decoder is an error.
    if field == "cross_attention" or parameters(given) == parameters(change):
        assert program(change) != (program(given) if given else default_program())


def test_programs_of_equal_configs_are_equal():
    assert program({}) == default_program()


def test_per_layer_is_a_list_that_repeats_or_a_function_of_the_index():
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
        ({"max_length": 3}, "blocks have no field 'max_length'"),
        ({"positions": "alibi"}, "positions may be one that rotates, .* got 'alibi'"),
    ],
    ids=str,
)
def test_fields_that_blocks_do_not_have(wrap, overrides, words):
    with pytest.raises(ValueError, match=f"^per_layer: {words}"):
        TransformerConfig(per_layer=wrap(overrides)).layer(0)


def test_sizes_that_are_not_given_follow_those_of_the_layer():
    found = parameters({"num_heads": 6, "per_layer": [{"num_heads": 2}]})
    names = [path for path in found if "key" in path and "kernel" in path]
    assert {found[name][-3:] for name in names} == {(12, 2, 6)}


def test_registered_names(monkeypatch):
    monkeypatch.setitem(NORMS, "mine", layer_norm)
    monkeypatch.setitem(ACTIVATIONS, "sine", jnp.sin)
    monkeypatch.setitem(FEED_FORWARDS, "none", no_layer)
    changes = {"norm": "mine", "activation": "sine", "feed_forward": "none"}
    assert not [path for path in parameters(changes) if ".up" in path]


# Values that do not fit, one of each kind.
MISTAKES = [
    ({"width": 0}, "width must be at least 1, got 0$"),
    ({"window": -1}, "window must be at least 0, got -1$"),
    ({"num_heads": 2.5}, "num_heads must be an integer, got 2.5$"),
    ({"logit_softcap": float("nan")}, "logit_softcap must be .*, got nan$"),
    ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
    *[
        ({name: wrong}, f"{name} must be one of .* got '{wrong}'; did you mean '{right}'[?]$")
        for name, wrong, right in (
            ("norm_placement", "pst", "post"),
            ("activation", "gelu_new", "gelu"),
            ("qk_norm", "rsm", "rms"),
            ("implementation", "tile", "tiled"),
        )
    ],
    ({"activation": "xyz"}, r"relu, gelu, .* \(the registry ACTIVATIONS\), got 'xyz'$"),
    ({"embedding_scale": "sqrt"}, "embedding_scale must be one of sqrt_width, got 'sqrt'$"),
    ({"rotary": {"bas": 3}}, "rotary has no field 'bas'; did you mean 'base'[?]$"),
    ({"rotary": 100.0}, "rotary must be a Rotary or a dict of its fields, got 100.0$"),
    ({"rotary": {"scaling": "liner"}}, "rotary.scaling must be one of .* mean 'linear'[?]$"),
    (
        {"positions": "learned", "per_layer": [{"positions": "none"}]},
        "^per_layer: .* got 'none' beside 'learned'",
    ),
    ({"per_layer": {"window": 3}}, "per_layer must be a list or a function, got {'win"),
    ({"per_layer": 3}, "per_layer must be a list or a function, got 3"),
    ({"tie": "none", "logit_softcap": 30.0}, "logit_scale and .* got tie='none'$"),
    ({"num_kv_heads": 2.0}, "num_kv_heads must be an integer, got 2.0$"),
    ({"window": False}, "window must be an integer, got False$"),
    ({"num_kv_heads": 4}, "num_heads=6 .* num_kv_heads=4: use one of 1, 2, 3, 6$"),
    ({"num_heads": 5}, "width=12 is not divisible by num_heads=5: set head_width$"),
    ({"width": 15, "head_width": 2}, "sinusoidal positions need an even width, got 15$"),
    ({"positions": "rotary", "head_width": 3}, "rotary positions .* even head_width, got 3$"),
    ({"d_model": 4}, "a TransformerConfig has no field 'd_model'; did you mean 'width'[?]$"),
    ({"dtype": "float61"}, "dtype must be a floating dtype, .* got 'float61'$"),
]


@pytest.mark.parametrize("changes, words", MISTAKES)
def test_values_that_do_not_fit(changes, words):
    with pytest.raises((TypeError, ValueError), match=words):
        TransformerConfig(**(BASE | changes))
