"""Scores of a vocabulary, by a layer of their own or by the embedding."""

from collections.abc import Callable

from flax import nnx
from jax import Array

from attention.modules.axes import width_error, widths_of
from attention.modules.config import TransformerConfig
from attention.modules.linear import linear


def make_output(
    config: TransformerConfig, vocab_size: int, rngs: nnx.Rngs
) -> nnx.LinearGeneral | None:
    """Make the layer that scores the vocabulary, None if the embedding does (`config.tie`)."""
    if config.tie in ("output", "all"):
        return None
    return linear(
        {"embed": config.width},
        {"vocab": vocab_size},
        use_bias=config.output_bias,
        **config.linear_options(rngs),
    )


def score_vocabulary(
    output: Callable[[Array], Array] | None, embedding: Callable[..., Array], features: Array
) -> Array:
    """Map features `[..., D]` to logits `[..., V]` by an output, or by the embedding if it is None.

    Raises:
        ValueError: features of another width.
    """
    widths = widths_of(output or embedding)
    if widths and features.shape[-1] not in widths:
        raise ValueError(width_error("the output", output or embedding, features))
    return (output or embedding.unembed)(features)
