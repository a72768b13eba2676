"""Models of this library: each tensor has the name of its parameter."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from flax import nnx

from attention.modules import EncoderDecoder, LanguageModel, MaskedLanguageModel, TransformerConfig
from attention.primitives.choice import one_of
from attention.weights.rules import Family, Settings

MODEL_TYPE = "attention"
DTYPES = ("dtype", "param_dtype")


def _vocab_sizes(model: EncoderDecoder) -> dict[str, int | None]:
    source, target = model.source_embedding, model.target_embedding.vocab_size
    own = source and source.vocab_size
    return {"source_vocab_size": own or target, "target_vocab_size": target}


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
    EncoderDecoder: _vocab_sizes,
}


def describe(model: nnx.Module, config: TransformerConfig | None) -> dict[str, Any]:
    """Return the content of `config.json`.

    Args:
        model: any; with a config, of a class in `MODELS`.
        config: the one that `from_config` was given. None: `load` will need a model.

    Raises:
        ValueError: a field that is a function, or another class.
    """
    if config is None:
        return {"model_type": MODEL_TYPE}
    kind = type(model)
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
        "config": _as_json(config),
    }


def _as_json(config: TransformerConfig) -> dict[str, Any]:
    """Return the fields of a config with dtypes as names."""
    values = {}
    for name, value in asdict(config).items():
        try:
            values[name] = json.loads(json.dumps(value, default=_name_of_dtype))
        except TypeError:
            raise ValueError(
                f"{name} of the config contains a function, which a file cannot contain: register "
                "it and give its name"
            ) from None
    return values


def _name_of_dtype(value: object) -> str:
    if (dtype := np.dtype(value)).kind == "O":  # of a class; a function is a TypeError
        raise TypeError
    return dtype.name


def config(settings: Settings) -> TransformerConfig:
    """Return the config of a checkpoint.

    Raises:
        ValueError: the checkpoint of a model that was saved without a config.
    """
    if "config" not in settings:
        raise ValueError(
            "this checkpoint was saved without a config: use load(folder, model=...) with a model "
            "of the same structure"
        )
    return TransformerConfig(**settings["config"])


def build(settings: Settings, config: TransformerConfig, rngs: nnx.Rngs) -> nnx.Module:
    """Return the model of a checkpoint."""
    kinds = {kind.__name__: kind for kind in MODELS}
    one_of("model", settings["model"], tuple(kinds))
    return kinds[settings["model"]].from_config(config, rngs=rngs, **settings["arguments"])


OWN = Family(config, build)
