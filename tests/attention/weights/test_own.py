"""Models of this library: saved under the names of their parameters, or as another family."""

import functools
import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

pytest.importorskip("attention.weights", reason="needs the extra attention[weights]")

from attention import weights
from attention.modules import (
    EncoderDecoder,
    FeedForward,
    LanguageModel,
    Layers,
    MaskedLanguageModel,
    TransformerConfig,
    unstack_layers,
)
from tests.attention.modules.inputs import filled
from tests.attention.weights.checkpoints import assert_equal, assert_same, tensors_of

CONFIG = TransformerConfig(
    width=12,
    num_heads=3,
    hidden=14,
    positions="relative",
    relative={"num_buckets": 6, "max_distance": 9},
    encoder_layers=2,
    decoder_layers=5,
    per_layer=[{"window": 3}, {"window": None}],
    max_length=16,
)
TIED = TransformerConfig(width=12, num_heads=3, hidden=14, tie="all", positions="learned")
OTHER = replace(
    CONFIG,
    positions="rotary",
    param_dtype=jnp.bfloat16,
    per_layer=lambda index: {"dtype": jnp.float32} if index else {"window": 2},
)


@functools.cache
def language_model():
    return filled(lambda: LanguageModel.from_config(CONFIG, vocab_size=17, rngs=nnx.Rngs(0)))


MODELS = [
    (CONFIG, LanguageModel, {"vocab_size": 17}),
    (CONFIG, EncoderDecoder, {"source_vocab_size": 13, "target_vocab_size": 11}),
    (OTHER, LanguageModel, {"vocab_size": 17, "causal": False}),
    (TIED, EncoderDecoder, {"source_vocab_size": 13, "target_vocab_size": 13}),
    (TIED, MaskedLanguageModel, {"vocab_size": 13, "has_head": True}),
]


@pytest.mark.parametrize("config, kind, options", MODELS)
def test_import_of_an_export_is_the_same_model(config, kind, options, tmp_path):
    model = filled(lambda: kind.from_config(config, **options, rngs=nnx.Rngs(0)))
    weights.save(model, tmp_path)
    loaded = weights.load(tmp_path)
    assert type(loaded) is type(model)
    assert kind is MaskedLanguageModel or loaded.decoder.causal == model.decoder.causal
    assert_same(loaded, model)
    weights.save(loaded, tmp_path / "again")
    assert_equal(tensors_of(tmp_path / "again"), tensors_of(tmp_path))
    again = json.loads((tmp_path / "again" / "config.json").read_text())
    assert again == json.loads((tmp_path / "config.json").read_text())


def test_options_of_load_are_saved(tmp_path):
    options = {"dropout": 0.5, "max_length": 7, "dtype": "bfloat16"}
    weights.save(language_model(), tmp_path)
    weights.save(weights.load(tmp_path, **options), tmp_path)
    assert weights.load(tmp_path).config == replace(CONFIG, **options)


def test_stacked_and_unstacked_layers_have_the_same_names(tmp_path):
    """Of five layers with two kinds, four are stacked by twos and one is left."""
    weights.save(language_model(), tmp_path / "stacked")
    weights.save(unstack_layers(language_model()), tmp_path / "unstacked")
    assert_equal(tensors_of(tmp_path / "stacked"), tensors_of(tmp_path / "unstacked"))


class OfAUser(nnx.Module):
    """Stacked layers, a parameter of no axes, and a random state, which no checkpoint contains."""

    def __init__(self, seed):
        make = lambda index, rngs: FeedForward(8, 10, rngs=rngs)  # noqa: E731 - short
        self.layers = Layers(make, 3, rngs=nnx.Rngs(seed))
        self.temperature = nnx.Param(np.float32(seed))
        self.dropout = nnx.Dropout(0.1, rngs=nnx.Rngs(seed))


def test_model_of_any_class(tmp_path):
    saved, other = OfAUser(1), OfAUser(2)
    weights.save(saved, tmp_path)
    loaded = weights.load(tmp_path, model=other)
    assert loaded.dropout.rngs.key[...] == other.dropout.rngs.key[...]
    del loaded.dropout, saved.dropout
    assert_same(loaded, saved)
    with pytest.raises(ValueError, match=r"the random state dropout.rngs.* is in no checkpoint"):
        weights.load(tmp_path, model=nnx.eval_shape(lambda: OfAUser(1)))
    with pytest.raises(ValueError, match=r"saved without a config: use load\(folder, model=...\)"):
        weights.load(tmp_path)
    with pytest.raises(ValueError, match="config= is for the classes LanguageModel"):
        weights.save(saved, tmp_path, config=CONFIG)


def test_config_with_a_function_is_refused(tmp_path):
    config = TransformerConfig(per_layer=[{}, {"activation": jax.nn.elu}])
    model = filled(lambda: LanguageModel.from_config(config, vocab_size=5, rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match="contains the function elu: register it"):
        weights.save(model, tmp_path)
    model.config = None
    weights.save(model, tmp_path)
    assert_same(weights.load(tmp_path, model=model), model)


@pytest.mark.parametrize(
    "changed, sentence",
    [
        ({"width": 15}, r"shape of the model is \(12,\), and the attention config makes \(15,\)"),
        ({"decoder_layers": 4}, "decoder.layers.4.class of the model is Block, .* makes None"),
        ({"activation": "gelu"}, "activation of the model is 'relu', .* config makes 'gelu'"),
        ({"per_layer": ()}, "self_attention.sublayer.window of the model is 3, .* makes None"),
        ({"tie": "none", "dropout": 0.1}, "output.class of the model is None, .* makes Linear"),
        ({"dropout": 0.1}, "feed_forward.dropout of the model is 0.0, .* makes 0.1"),
    ],
)
def test_config_of_another_model_is_refused(changed, sentence, tmp_path):
    config = replace(CONFIG, **changed)
    with pytest.raises(ValueError, match=sentence):
        weights.save(language_model(), tmp_path, config=config)
    assert list(tmp_path.iterdir()) == []


def test_family_of_a_user(tmp_path, monkeypatch):
    rules = [weights.Rule("kernel", "w", weights.Layout(lambda array: array.T, lambda t: t.T))]
    family = weights.Family(
        config=lambda settings: TransformerConfig(width=settings["inputs"]),
        build=lambda _, config, rngs: nnx.Linear(config.width, 3, use_bias=False, rngs=rngs),
        rules=lambda settings: rules,
    )
    monkeypatch.setitem(weights.FAMILIES, "matrix", family)
    model = nnx.Linear(4, 3, use_bias=False, rngs=nnx.Rngs(0))
    weights.save(model, tmp_path, config={"model_type": "matrix", "inputs": 4})
    assert tensors_of(tmp_path)["w"].shape == (3, 4)
    np.testing.assert_array_equal(weights.load(tmp_path).kernel[...], model.kernel[...])
