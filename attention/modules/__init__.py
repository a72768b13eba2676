"""Flax (nnx) modules that compose attention into models.

Every module is a plain pytree: use `jax.jit`, `jax.grad`, `jax.vmap` and `jax.lax.scan` on it, or
`flax.nnx.split` it into a definition and a state of arrays. No module has a random state: an `rng`
argument turns dropout on for that call. After `model.train()`, a call without it is an error.

A sublayer is any callable `sublayer(inputs [..., T, D])`, or one with a parameter `context` that
receives the mask, the encoder output, the cache and the other fields of `Context`. It returns
features or an `Output`. `Residual` connects a sublayer, `Block` joins sublayers by name, and
`Layers` stacks layers of any kind; `from_config` of the models assembles the usual ones.
"""

from attention.modules.attention import Attention, CrossAttention, SelfAttention
from attention.modules.config import FEED_FORWARDS, MIXERS, TransformerConfig
from attention.modules.context import (
    CacheSpec,
    Context,
    Output,
    add_losses,
    and_mask,
    apply_layer,
    map_axes,
    name_axis,
    new_cache,
)
from attention.modules.embeddings import Embedding, PatchEmbedding, SkipGram, make_output
from attention.modules.layers import (
    ACTIVATIONS,
    INITIALIZERS,
    NORMS,
    FeedForward,
    Norm,
    drop,
    layer_norm,
    linear,
    rms_norm,
    split_rng,
)
from attention.modules.lora import (
    LoRAFactors,
    apply_lora,
    label_parameters,
    lora_factors,
    select_parameters,
)
from attention.modules.models import (
    POOLINGS,
    Classifier,
    ClassToken,
    EncoderDecoder,
    LanguageModel,
    MaskedLanguageModel,
    MeanPooling,
    PredictionHead,
)
from attention.modules.positions import (
    POSITIONS,
    AlibiScores,
    LearnedPositions,
    PositionEncoding,
    Relative,
    RelativeScores,
    Rotary,
)
from attention.modules.recurrent import (
    RecurrentConfig,
    RecurrentEncoderDecoder,
    RecurrentLayer,
)
from attention.modules.transformer import (
    Block,
    Decoder,
    DecoderCache,
    Encoder,
    Layers,
    MakeLayer,
    Residual,
    transformer_block,
    unstack_layers,
)

__all__ = [
    "ACTIVATIONS",
    "FEED_FORWARDS",
    "INITIALIZERS",
    "MIXERS",
    "NORMS",
    "POOLINGS",
    "POSITIONS",
    "AlibiScores",
    "Attention",
    "Block",
    "CacheSpec",
    "ClassToken",
    "Classifier",
    "Context",
    "CrossAttention",
    "Decoder",
    "DecoderCache",
    "Embedding",
    "Encoder",
    "EncoderDecoder",
    "FeedForward",
    "LanguageModel",
    "Layers",
    "LearnedPositions",
    "LoRAFactors",
    "MakeLayer",
    "MaskedLanguageModel",
    "MeanPooling",
    "Norm",
    "Output",
    "PatchEmbedding",
    "PositionEncoding",
    "PredictionHead",
    "RecurrentConfig",
    "RecurrentEncoderDecoder",
    "RecurrentLayer",
    "Relative",
    "RelativeScores",
    "Residual",
    "Rotary",
    "SelfAttention",
    "SkipGram",
    "TransformerConfig",
    "add_losses",
    "and_mask",
    "apply_layer",
    "apply_lora",
    "drop",
    "label_parameters",
    "layer_norm",
    "linear",
    "lora_factors",
    "make_output",
    "map_axes",
    "name_axis",
    "new_cache",
    "rms_norm",
    "select_parameters",
    "split_rng",
    "transformer_block",
    "unstack_layers",
]
