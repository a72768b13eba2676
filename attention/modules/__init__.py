"""Flax (nnx) modules: they hold parameters and call primitives, and do no attention themselves.

Every module is a plain pytree: build it once, then use `jax.jit`, `jax.grad`, `jax.vmap` and
`jax.lax.scan` on it, or `flax.nnx.split` it into a definition and a state of arrays. No module
holds a random state: a `key` argument turns dropout on for that call, and no key turns it off.
"""

from attention.modules.attention import Attention
from attention.modules.classifier import Classifier
from attention.modules.config import TransformerConfig
from attention.modules.embedding import Embedding
from attention.modules.feed_forward import FeedForward
from attention.modules.language_model import LanguageModel
from attention.modules.masked_language_model import MaskedLanguageModel
from attention.modules.patches import PatchEmbedding
from attention.modules.recurrent import RecurrentConfig, RecurrentEncoderDecoder
from attention.modules.skip_gram import SkipGram
from attention.modules.transformer import Block, Decoder, Encoder, EncoderDecoder
from attention.modules.unrolled import unrolled

__all__ = [
    "Attention",
    "Block",
    "Classifier",
    "Decoder",
    "Embedding",
    "Encoder",
    "EncoderDecoder",
    "FeedForward",
    "LanguageModel",
    "MaskedLanguageModel",
    "PatchEmbedding",
    "RecurrentConfig",
    "RecurrentEncoderDecoder",
    "SkipGram",
    "TransformerConfig",
    "unrolled",
]
