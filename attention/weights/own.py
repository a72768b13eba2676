"""Models of this library: each tensor has the name of its parameter."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
from flax import nnx

from attention.modules import EncoderDecoder, LanguageModel, MaskedLanguageModel, TransformerConfig
from attention.primitives.choice import one_of
from attention.weights.family import Family, Settings

MODEL_TYPE = "attention"


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
    LanguageModel: lambda model: {"vocab_size": model.embedding.tokens.shape[0]},
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
    fields = asdict(config)
    for name in ("dtype", "param_dtype"):
        fields[name] = None if fields[name] is None else np.dtype(fields[name]).name
    for name, value in fields.items():
        if callable(value):
            raise ValueError(
                f"{name} of the config is a function, which a file cannot contain: register it "
                "and give its name"
            )
    arguments = MODELS[kind](model)
    return {
        "model_type": MODEL_TYPE,
        "model": kind.__name__,
        "arguments": arguments,
        "config": fields,
    }


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
