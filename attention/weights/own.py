"""Models of this library: each tensor has the name of its parameter."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from flax import nnx

from attention.modules import EncoderDecoder, LanguageModel, MaskedLanguageModel, TransformerConfig
from attention.primitives.choice import one_of
from attention.weights.rules import Family, Settings

MODEL_TYPE = "attention"
DTYPES = ("dtype", "param_dtype")


def _vocab_sizes(model: EncoderDecoder) -> dict[str, int]:
    source = model.source_embedding
    shared = source is None or source.tokens is None
    tables = (
        model.target_embedding.tokens if shared else source.tokens,
        model.target_embedding.tokens,
    )
    return {
        name: table.shape[0]
        for name, table in zip(("source_vocab_size", "target_vocab_size"), tables, strict=True)
    }


# class -> arguments of its `from_config` beside the config. Add your own.
MODELS: dict[type[nnx.Module], Callable[[Any], dict[str, Any]]] = {
    LanguageModel: lambda model: {
        "vocab_size": model.embedding.tokens.shape[0],
        "causal": model.decoder.causal,
    },
    MaskedLanguageModel: lambda model: {
        "vocab_size": model.embedding.tokens.shape[0],
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
        "config": _as_json("config", asdict(config)),
    }


def _as_json(name: str, value: Any) -> Any:  # noqa: ANN401 - value of a field
    """Return the value of a field with dtypes as names.

    Raises:
        ValueError: a function.
    """
    if isinstance(value, Mapping):
        return {field: _as_json(field, each) for field, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(name, each) for each in value]
    if name in DTYPES:
        return None if value is None else np.dtype(value).name
    if callable(value):
        raise ValueError(
            f"{name} of the config is a function, which a file cannot contain: register it and "
            "give its name"
        )
    return value


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
