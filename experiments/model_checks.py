"""What no configuration of a model may say, whatever is made of it."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from attention.modules.config import TransformerConfig
from attention.modules.transformer import Decoder, Encoder
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
            _try_stacks(replace(settings, encoder_layers=1, decoder_layers=1), config)


def _try_stacks(settings: TransformerConfig, config: ConfigDict) -> None:
    """Asks for what a layer of each stack that there is asks for while it trains."""
    dtype, visible = jnp.dtype(config.train.dtype), masks.lengths(jnp.ones(1, jnp.int32))

    def encode(inputs: Array, key: Array) -> Array:
        encoder = cast(Encoder(settings, rngs=nnx.Rngs(0)), dtype)
        return encoder(inputs, mask=visible, key=key)[0]

    def decode(inputs: Array, key: Array) -> Array:
        cross = "encoder_layers" in config.model
        decoder = cast(Decoder(settings, cross=cross, rngs=nnx.Rngs(0)), dtype)
        memory = {"memory": inputs, "memory_mask": visible} if cross else {}
        return decoder(inputs, **memory, key=key)[0]

    inputs = jax.ShapeDtypeStruct((1, settings.max_length, settings.width), dtype)
    for stack, name in ((encode, "encoder_layers"), (decode, "decoder_layers")):
        if name in config.model:
            jax.eval_shape(stack, inputs, jax.random.key(0))
