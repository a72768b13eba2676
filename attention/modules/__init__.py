"""Flax (nnx) modules that compose attention into models.

Every module is a plain pytree: use `jax.jit`, `jax.grad`, `jax.vmap` and `jax.lax.scan` on it, or
`flax.nnx.split` it into a definition and a state of arrays. No module has a random state: an `rng`
argument turns dropout on for that call. Layers, unlike models and stacks, ignore `train` of nnx.

A sublayer is any callable `sublayer(inputs [..., T, D])`, or one with a parameter `context` that
receives the mask, the encoder output, the cache and the other fields of `Context`. It returns
features or an `Output`. `Residual` connects a sublayer, `Block` joins sublayers by name, and
`Layers` stacks layers of any kind; a model of a config has the usual ones.
"""

from attention.modules.attention import Attention as Attention
from attention.modules.attention import CrossAttention as CrossAttention
from attention.modules.attention import SelfAttention as SelfAttention
from attention.modules.config import FEED_FORWARDS as FEED_FORWARDS
from attention.modules.config import MIXERS as MIXERS
from attention.modules.config import TransformerConfig as TransformerConfig
from attention.modules.context import CacheSpec as CacheSpec
from attention.modules.context import Context as Context
from attention.modules.context import Output as Output
from attention.modules.context import apply_layer as apply_layer
from attention.modules.context import map_axes as map_axes
from attention.modules.context import name_axis as name_axis
from attention.modules.context import new_cache as new_cache
from attention.modules.embeddings import Embedding as Embedding
from attention.modules.embeddings import PatchEmbedding as PatchEmbedding
from attention.modules.embeddings import make_output as make_output
from attention.modules.layers import ACTIVATIONS as ACTIVATIONS
from attention.modules.layers import INITIALIZERS as INITIALIZERS
from attention.modules.layers import NORMS as NORMS
from attention.modules.layers import FeedForward as FeedForward
from attention.modules.layers import Norm as Norm
from attention.modules.layers import drop as drop
from attention.modules.layers import layer_norm as layer_norm
from attention.modules.layers import linear as linear
from attention.modules.layers import rms_norm as rms_norm
from attention.modules.layers import split_rng as split_rng
from attention.modules.lora import LoRAFactors as LoRAFactors
from attention.modules.lora import apply_lora as apply_lora
from attention.modules.lora import label_parameters as label_parameters
from attention.modules.lora import lora_factors as lora_factors
from attention.modules.lora import select_parameters as select_parameters
from attention.modules.models import POOLINGS as POOLINGS
from attention.modules.models import Classifier as Classifier
from attention.modules.models import ClassToken as ClassToken
from attention.modules.models import EncoderDecoder as EncoderDecoder
from attention.modules.models import LanguageModel as LanguageModel
from attention.modules.models import MaskedLanguageModel as MaskedLanguageModel
from attention.modules.models import MeanPooling as MeanPooling
from attention.modules.models import PredictionHead as PredictionHead
from attention.modules.positions import POSITIONS as POSITIONS
from attention.modules.positions import AlibiScores as AlibiScores
from attention.modules.positions import LearnedPositions as LearnedPositions
from attention.modules.positions import PositionEncoding as PositionEncoding
from attention.modules.positions import Relative as Relative
from attention.modules.positions import RelativeScores as RelativeScores
from attention.modules.positions import Rotary as Rotary
from attention.modules.recurrent import RecurrentConfig as RecurrentConfig
from attention.modules.recurrent import RecurrentEncoderDecoder as RecurrentEncoderDecoder
from attention.modules.recurrent import RecurrentLayer as RecurrentLayer
from attention.modules.transformer import Block as Block
from attention.modules.transformer import Decoder as Decoder
from attention.modules.transformer import Encoder as Encoder
from attention.modules.transformer import Layers as Layers
from attention.modules.transformer import Residual as Residual
from attention.modules.transformer import transformer_block as transformer_block
from attention.modules.transformer import unstack_layers as unstack_layers

__all__ = [name for name in vars() if not name.startswith("_")]  # for the API reference
