"""Models of this library: each tensor has the name of its parameter."""

import json
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from typing import Any

import numpy as np
from flax import nnx

from attention.modules import EncoderDecoder, LanguageModel, MaskedLanguageModel, TransformerConfig
from attention.primitives.choice import one_of
from attention.weights.rules import Family, Settings

MODEL_TYPE = "attention"
DTYPES = ("dtype", "param_dtype")


# class -> arguments of its `from_config` beside the config. Add your own.
MODELS: dict[type[nnx.Module], Callable[[Any], dict[str, Any]]] = {
    LanguageModel: lambda model: {
        "vocab_size": model.embedding.vocab_size,
        "causal": model.decoder.causal,
    },
    MaskedLanguageModel: lambda model: {
        "vocab_size": model.embedding.vocab_size,
        "has_head": model.head is not None,
    },
    EncoderDecoder: lambda model: {
        "source_vocab_size": model.input_vocab_size,
        "target_vocab_size": model.vocab_size,
    },
}


def describe(model: nnx.Module, config: TransformerConfig | None) -> dict[str, Any]:
    """Return the content of `config.json`: of a model in `MODELS`, or of any one without a config.

    Raises:
        ValueError: a field that is a function, or a config of another class.
    """
    kind = type(model)
    if config is None and kind in MODELS:
        config = getattr(model, "config", None)
    if config is None:
        return {"model_type": MODEL_TYPE}
    if kind not in MODELS:
        known = ", ".join(each.__name__ for each in MODELS)
        raise ValueError(f"config= is for the classes {known}, got a {kind.__name__}: leave it out")
    if callable(config.per_layer):
        most = max(config.encoder_layers, config.decoder_layers)
        config = replace(config, per_layer=[config.per_layer(index) for index in range(most)])
    return {
        "model_type": MODEL_TYPE,
        "model": kind.__name__,
        "arguments": MODELS[kind](model),
        "config": json.loads(json.dumps(config, default=_as_json)),
    }


def _as_json(value: object) -> object:
    if is_dataclass(value):
        return vars(value)
    if isinstance(value, type | np.dtype) and (dtype := np.dtype(value)).kind != "O":
        return dtype.name
    name = getattr(value, "__name__", value)
    raise ValueError(f"the config contains the function {name}: register it and give its name")


def _config(settings: Settings) -> TransformerConfig:
    if "config" not in settings:
        raise ValueError(
            "this checkpoint was saved without a config: use load(folder, model=...) with a model "
            "of the same structure"
        )
    return TransformerConfig(**settings["config"])


def _build(settings: Settings, config: TransformerConfig, rngs: nnx.Rngs) -> nnx.Module:
    classes = {each.__name__: each for each in MODELS}
    one_of("model", settings["model"], tuple(classes))
    return classes[settings["model"]].from_config(config, rngs=rngs, **settings["arguments"])


OWN = Family(_config, _build)
