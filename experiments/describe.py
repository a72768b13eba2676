"""Description: what the model of a configuration is made of and costs, and none of it allocated."""

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
from attention.primitives.choice import one_of
from experiments.analysis.description import Description
from experiments.config import Config
from experiments.errors import UsageError, as_usage_errors, check_at_least

# And which layers each has.
ARCHITECTURES = {
    "encoder": {"encoder_layers"},
    "decoder": {"decoder_layers"},
    "encoder_decoder": {"encoder_layers", "decoder_layers"},
}
TRANSFORMERS = EncoderDecoder, LanguageModel, MaskedLanguageModel

NOTE = """\
FLOPs are 2 for each parameter of a matrix that a token passes, and 2 N (H + Hv) for each key that
it attends to in each layer: here all of the context, or of a window; a causal token of a long text
attends to half of the context on average.
Training is worth 3 forward passes (Kaplan et al. 2020, section 2.1), without recomputation."""


def describe(config: Config | ConfigDict, model: nnx.Module) -> None:
    """Prints the tables of a model.

    Args:
        config: of a preset or of a run.
        model: that it makes, with shapes for arrays.

    Raises:
        UsageError: it is no Transformer.
    """
    if isinstance(model, RecurrentEncoderDecoder) or not isinstance(model, TRANSFORMERS):
        raise UsageError(
            f"architecture={config.architecture!r} cannot be described, a Transformer can"
        )
    description = Description.of(model, context=config.model.max_length)
    print(description, end="\n\n")
    if published := getattr(config, "published", None):
        print(compared(published, description.parameters), end="\n\n")
    print(NOTE)


def check(config: ConfigDict) -> None:
    """Refuses a preset that cannot be built.

    Raises:
        UsageError: in one sentence.
    """
    model = config.model
    with as_usage_errors():
        one_of("architecture", config.architecture, tuple(ARCHITECTURES))
        TransformerConfig(**model)
        layers = {name for name in model if name.endswith("_layers")}
        for name in sorted(layers):
            check_at_least(f"model.{name}", model[name], 1)
        check_at_least("vocab_size", config.vocab_size, 1)
        check_at_least("model.max_length", model.max_length, 2)  # a second token shows its cost
    if layers != ARCHITECTURES[config.architecture]:
        raise UsageError(
            f"architecture={config.architecture!r} is not that of this preset, which has "
            f"{' and '.join(sorted(layers))}"
        )


def compared(published: ConfigDict, parameters: int) -> str:
    """How many parameters were published, beside those that are here.

    Args:
        published: their number, its source, and the parts that are absent here, by name.
        parameters: those that are here.
    """
    absent = ", ".join(
        f"{name.replace('_', ' ')} {size:,}" for name, size in published.absent.items()
    )
    lack = parameters + sum(published.absent.values()) - published.parameters
    share = f"{abs(lack) / published.parameters:.2%} {'more' if lack > 0 else 'fewer'}"
    return (
        f"published  {published.parameters:,} ({published.source})\n"
        f"here       {share if lack else 'exactly as many'}"
        + (f", with what is absent here: {absent}" if absent else "")
    )


def abstract_model(config: ConfigDict, cache: Path) -> nnx.Module:
    """The model of a preset that was checked, with shapes for arrays.

    Args:
        config: of the preset.
        cache: unused: nothing of it follows from data.
    """
    del cache
    size, model = config.vocab_size, TransformerConfig(**config.model)

    def build() -> nnx.Module:
        rngs = nnx.Rngs(0)
        if config.architecture == "encoder":
            return MaskedLanguageModel.from_config(model, vocab_size=size, rngs=rngs)
        if config.architecture == "decoder":
            return LanguageModel.from_config(model, vocab_size=size, rngs=rngs)
        sizes = {"source_vocab_size": size, "target_vocab_size": size}
        return EncoderDecoder.from_config(model, **sizes, rngs=rngs)

    return jax.eval_shape(build)
