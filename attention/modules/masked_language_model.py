"""An encoder alone: reads a text with gaps, and scores what stood in them."""

from flax import nnx
from jax import Array

from attention.modules.config import TransformerConfig
from attention.modules.dropout import split_key
from attention.modules.embedding import Embedding
from attention.modules.linear import Linear
from attention.modules.transformer import Encoder
from attention.primitives.masks import Mask


class MaskedLanguageModel(nnx.Module):
    """Embeds tokens, reads them on both sides, and scores each (Devlin et al. 2019, section 3.1).

    Beside BERT it is bare: one sentence at a time, and no layer between encoder and scores.
    """

    def __init__(self, config: TransformerConfig, *, vocab_size: int, rngs: nnx.Rngs) -> None:
        """Makes the embedding, the encoder and, if tie is "none", the output layer."""
        self.embedding = Embedding(vocab_size, config, rngs=rngs)
        self.encoder = Encoder(config, rngs=rngs)
        self.output = (
            Linear(config.width, vocab_size, use_bias=False, rngs=rngs)
            if config.tie == "none"
            else None
        )

    def encode(self, tokens: Array, *, mask: Mask | None, key: Array | None = None) -> Array:
        """Maps tokens `[..., T]` to vectors that depend on their neighbours `[..., T, D]`.

        Args:
            tokens: ids.
            mask: who may attend to whom; None is everyone, padding too.
            key: random key for dropout, none without.

        Raises:
            ValueError: more tokens than `max_length`.
        """
        embed_key, layer_key = split_key(key, 2)
        features, _ = self.encoder(self.embedding(tokens, key=embed_key), mask=mask, key=layer_key)
        return features

    def __call__(self, tokens: Array, *, mask: Mask | None, key: Array | None = None) -> Array:
        """Maps tokens `[..., T]` to scores of what stands at each place `[..., T, V]`.

        Args and errors are those of `encode`.
        """
        features = self.encode(tokens, mask=mask, key=key)
        return self.embedding.unembed(features) if self.output is None else self.output(features)
