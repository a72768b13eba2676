"""No knob is connected to nothing, and no sentence is left unsaid."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from attention.modules import EncoderDecoder, TransformerConfig
from tests.attention.modules.inputs import DIMS, filled

(V,) = DIMS["V"]
BASE = {
    "width": 12,
    "num_heads": 6,
    "num_kv_heads": None,
    "head_width": None,
    "hidden": 13,
    "activation": "relu",
    "norm": "pre",
    "norm_kind": "layer",
    "qk_norm": "none",
    "positions": "sinusoidal",
    "max_length": 7,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "tie": "output",
    "use_bias": True,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "remat": True,
}
# What each field is changed to, and what changes by it.
CHANGES = {
    "width": (18, "parameters"),
    "num_heads": (4, "parameters"),
    "num_kv_heads": (2, "parameters"),
    "head_width": (5, "parameters"),
    "hidden": (17, "parameters"),
    "activation": ("gelu", "logits"),
    "norm": ("post", "parameters"),
    "norm_kind": ("rms", "parameters"),
    "qk_norm": ("rms", "parameters"),
    "positions": ("learned", "parameters"),
    "rotary": ({"base": 100.0}, "logits"),
    "max_length": (4, "refusal"),
    "encoder_layers": (2, "parameters"),
    "decoder_layers": (2, "parameters"),
    "tie": ("none", "parameters"),
    "use_bias": (False, "parameters"),
    "dropout": (0.2, "logits"),
    "attention_dropout": (0.2, "logits"),
    "implementation": ("tiled", "program"),
    "remat": (False, "backward"),
}
# What has to be so for the field to matter.
GIVEN = {"rotary": {"positions": "rotary", "head_width": 4}}


def build(changes):
    config = TransformerConfig(**(BASE | changes))
    return EncoderDecoder(config, source_vocab_size=V, target_vocab_size=V, rngs=nnx.Rngs(0))


@jax.jit
def logits(model):
    tokens = jnp.arange(5, dtype=jnp.int32)[None]
    return model(tokens, tokens, source_mask=None, memory_mask=None, key=jax.random.key(0))


def shapes(model):
    return {
        jax.tree_util.keystr(path): parameter.shape
        for path, parameter in jax.tree_util.tree_leaves_with_path(model)
    }


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(TransformerConfig)])
def test_every_field_changes_something(field):
    value, effect = CHANGES[field]
    given = GIVEN.get(field, {})
    change = given | {field: value}
    if effect == "refusal":
        with pytest.raises(ValueError, match=f"{field}={value}"):
            jax.eval_shape(lambda: logits(build(change)))
        return
    before, after = (jax.eval_shape(lambda given=given: build(given)) for given in (given, change))
    assert (shapes(before) != shapes(after)) == (effect == "parameters")
    if effect == "backward":
        before, after = (
            str(jax.make_jaxpr(jax.grad(lambda model: logits(model).sum()))(build(given)))
            for given in ({}, change)
        )
        assert "remat" in before
        assert "remat" not in after
    if effect == "program":
        programs = (str(jax.make_jaxpr(logits)(build(given))) for given in ({}, change))
        tiled = "name=_attention"  # the custom_jvp of tiled.py
        assert [tiled in program for program in programs] == [False, True]
    if effect == "logits":
        before, after = (
            logits(filled(lambda given=given: build(given))) for given in (given, change)
        )
        assert (before != after).any()


def test_learned_positions_are_as_many_as_the_longest_sequence():
    model = jax.eval_shape(lambda: build({"positions": "learned", "max_length": 11}))
    assert model.source_embedding.positions.shape == (11, BASE["width"])
    assert model.target_embedding.positions.shape == (11, BASE["width"])


@pytest.mark.parametrize("field", BASE)
def test_what_is_not_given_is_what_the_docstring_says(field):
    defaults = TransformerConfig()
    derived = {"num_kv_heads": defaults.num_heads, "head_width": 128 // 4}
    declared = {each.name: each.default for each in dataclasses.fields(TransformerConfig)}
    assert getattr(defaults, field) == derived.get(field, declared[field])


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"width": 0}, "width must be at least 1, got 0"),
        ({"num_heads": 0}, "num_heads must be at least 1, got 0"),
        ({"hidden": -1}, "hidden must be at least 1, got -1"),
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
        ({"head_width": 0}, "head_width must be at least 1, got 0"),
        ({"encoder_layers": -1}, "encoder_layers must be at least 0, got -1"),
        ({"decoder_layers": -2}, "decoder_layers must be at least 0, got -2"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ({"dropout": -0.1}, r"dropout must lie in \[0, 1\), got -0.1"),
        ({"attention_dropout": 1.5}, r"attention_dropout must lie in \[0, 1\), got 1.5"),
        ({"dropout": float("nan")}, r"dropout must lie in \[0, 1\), got nan"),
        (
            {"activation": "rely"},
            "activation must be one of relu, gelu, gated, got 'rely'; did you mean 'relu'[?]",
        ),
        ({"norm": "pst"}, "norm must be one of pre, post, got 'pst'; did you mean 'post'[?]"),
        (
            {"positions": "learnt"},
            "positions must be one of none, sinusoidal, learned, rotary, alibi, relative, "
            "got 'learnt'; did you mean 'learned'[?]",
        ),
        (
            {"norm_kind": "rsm"},
            "norm_kind must be one of layer, rms, got 'rsm'; did you mean 'rms'[?]",
        ),
        (
            {"qk_norm": "rsm"},
            "qk_norm must be one of none, layer, rms, got 'rsm'; did you mean 'rms'[?]",
        ),
        (
            {"rotary": {"scaling": "liner"}},
            "rotary.scaling must be one of none, linear, ntk, llama3, yarn, got 'liner'; "
            "did you mean 'linear'[?]",
        ),
        (
            {"rotary": {"scaling": "ntk", "factor": 0.5}},
            "rotary.factor must be at least 1, got 0.5",
        ),
        (
            {"rotary": {"factor": 2.0}},
            "rotary.factor=2.0 needs a rotary.scaling: one of linear, ntk, llama3, yarn",
        ),
        ({"tie": "outputs"}, "tie must be one of .* got 'outputs'; did you mean 'output'[?]"),
        ({"tie": "xyz"}, "tie must be one of none, output, all, got 'xyz'$"),
        (
            {"num_kv_heads": 4},
            "num_heads=6 cannot be shared evenly by num_kv_heads=4: use one of 1, 2, 3, 6",
        ),
        (
            {"num_heads": 5},
            "width=12 is not divisible by num_heads=5: change one of them, or set head_width",
        ),
        (
            {"width": 15, "head_width": 2},
            "sinusoidal positions need an even width, got 15",
        ),
        (
            {"positions": "rotary", "head_width": 3},
            "rotary positions need an even head_width, got 3",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(changes, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}"):
        TransformerConfig(**(BASE | changes))


def test_an_odd_width_is_fine_with_learned_positions():
    config = TransformerConfig(**(BASE | {"width": 15, "head_width": 2, "positions": "learned"}))
    assert (config.width, config.head_width) == (15, 2)


def test_a_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TransformerConfig().width = 3
