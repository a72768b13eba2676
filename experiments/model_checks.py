"""What no configuration of a model may say, whatever is made of it."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from attention.modules import Context, Decoder, Encoder, TransformerConfig
from attention.primitives import masks
from experiments.errors import as_usage_errors
from experiments.training.step import cast


def check_model(config: ConfigDict, kind: Callable[..., object] = TransformerConfig) -> None:
    """Refuses sizes that do not fit, and an implementation of attention that cannot compute here.

    Args:
        config: of a run.
        kind: what the numbers of its model are.

    Raises:
        UsageError: in one sentence.
    """
    with as_usage_errors("model: "):
        settings = kind(**config.model)
        if isinstance(settings, TransformerConfig) and settings.implementation is not None:
            number = max(1, len(settings.per_layer))  # of each kind one
            _try_stacks(replace(settings, encoder_layers=number, decoder_layers=number), config)


def _try_stacks(settings: TransformerConfig, config: ConfigDict) -> None:
    """Asks for what a layer of each stack that there is asks for while it trains."""
    dtype, visible = jnp.dtype(config.train.dtype), masks.lengths(jnp.ones(1, jnp.int32))

    def encode(inputs: Array, rng: Array) -> Array:
        encoder = cast(Encoder.from_config(settings, rngs=nnx.Rngs(0)), dtype)
        return encoder(inputs, context=Context(mask=visible, rng=rng)).features

    def decode(inputs: Array, rng: Array) -> Array:
        cross = "encoder_layers" in config.model
        decoder = cast(Decoder.from_config(settings, cross=cross, rngs=nnx.Rngs(0)), dtype)
        encoded = {"encoder_output": inputs, "encoder_mask": visible} if cross else {}
        return decoder(inputs, context=Context(**encoded, rng=rng)).features

    inputs = jax.ShapeDtypeStruct((1, settings.max_length, settings.width), dtype)
    for stack, name in ((encode, "encoder_layers"), (decode, "decoder_layers")):
        if name in config.model:
            jax.eval_shape(stack, inputs, jax.random.key(0))
