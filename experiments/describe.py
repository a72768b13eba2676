"""Parameters, cache, FLOPs and masks of a model; no parameter is allocated."""

from collections.abc import Callable
from pathlib import Path

import jax
from flax import nnx
from ml_collections import ConfigDict

from attention.modules import (
    EncoderDecoder,
    LanguageModel,
    MaskedLanguageModel,
    RecurrentEncoderDecoder,
    TransformerConfig,
)
from experiments.analysis.description import Description
from experiments.analysis.mask_text import masks_of
from experiments.config import Config
from experiments.errors import UsageError, as_usage_errors

TRANSFORMERS = EncoderDecoder, LanguageModel, MaskedLanguageModel

NOTE = """\
FLOPs are 2 for each parameter of a matrix that a token is multiplied with, and 2 N (H + Hv) for
each key that it attends to in each layer: here the whole context, or a window. In a long text, a
causal token attends to half of the context on average. Training takes 3 forward passes (Kaplan et
al. 2020, section 2.1), without recomputation."""


def describe(config: Config | ConfigDict, model: nnx.Module) -> None:
    """Print the tables and the masks of a model.

    Args:
        config: of a preset or of a run.
        model: of this config, with shapes for arrays.

    Raises:
        UsageError: it is no Transformer, or the mesh does not divide a size.
    """
    if isinstance(model, RecurrentEncoderDecoder) or not isinstance(model, TRANSFORMERS):
        raise UsageError(
            f"task={config.task!r} with architecture={config.architecture!r} cannot be described: "
            "translation, language_model and masked_language_model with "
            "architecture='transformer' can"
        )
    description = Description.of(model, context=config.model.max_length)
    print(description, end="\n\n")
    if published := getattr(config, "published", None):
        print(compared(published, description.parameters), end="\n\n")
    print(NOTE)
    print(f"\nmasks of the first positions\n{masks_of(model)}")


def compared(published: ConfigDict, parameters: int) -> str:
    """Return the published number of parameters, and the difference.

    Args:
        published: their number, its source, and the sizes of the parts that the model lacks.
        parameters: of the model.
    """
    absent = ", ".join(
        f"{name.replace('_', ' ')} {size:,}" for name, size in published.absent.items()
    )
    more = parameters + sum(published.absent.values()) - published.parameters
    share = f"{abs(more) / published.parameters:.2%} {'more' if more > 0 else 'fewer'}"
    return (
        f"published  {published.parameters:,} ({published.source})\n"
        f"here       {share if more else 'exactly as many'}"
        + (f", with what is absent here: {absent}" if absent else "")
    )


def abstract_model(config: ConfigDict, cache: Path) -> nnx.Module:
    """Return the model of a preset, with shapes for arrays.

    Args:
        config: of the preset.
        cache: unused: a preset has no data.

    Raises:
        UsageError: a model that cannot be made.
    """
    del cache
    kind, sizes = EncoderDecoder, ("source_vocab_size", "target_vocab_size")
    if "encoder_layers" not in config.model:
        kind, sizes = LanguageModel, ("vocab_size",)
    elif "decoder_layers" not in config.model:
        kind, sizes = MaskedLanguageModel, ("vocab_size",)
    vocabularies = dict.fromkeys(sizes, config.vocab_size)
    with as_usage_errors("model: "):
        model = TransformerConfig(**config.model)
    return shapes_of(lambda rngs: kind.from_config(model, **vocabularies, rngs=rngs))


def shapes_of(make_model: Callable[[nnx.Rngs], nnx.Module]) -> nnx.Module:
    """Return a model with shapes for arrays.

    Args:
        make_model: builds it with its initial parameters.

    Raises:
        UsageError: a model that cannot be made.
    """
    with as_usage_errors("model: "):
        return jax.eval_shape(lambda: make_model(nnx.Rngs(0)))
