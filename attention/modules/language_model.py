"""A decoder alone: scores each next token of a text."""

from flax import nnx
from jax import Array

from attention.modules.config import TransformerConfig
from attention.modules.dropout import split_key
from attention.modules.embedding import Embedding
from attention.modules.transformer import Decoder
from attention.primitives.masks import Mask


class LanguageModel(nnx.Module):
    """Embeds tokens, reads them with a causal decoder, and scores what comes next."""

    def __init__(self, config: TransformerConfig, *, vocab_size: int, rngs: nnx.Rngs) -> None:
        """Makes the embedding, the decoder and, if tie is "none", the output layer."""
        self.embedding = Embedding(vocab_size, config, rngs=rngs)
        self.decoder = Decoder(config, cross=False, rngs=rngs)
        self.output = (
            nnx.Linear(config.width, vocab_size, use_bias=False, rngs=rngs)
            if config.tie == "none"
            else None
        )

    def __call__(
        self,
        tokens: Array,
        *,
        mask: Mask | None = None,
        positions: Array | None = None,
        key: Array | None = None,
    ) -> Array:
        """Maps tokens `[..., T]` to scores of each next token `[..., T, V]`.

        Args:
            tokens: ids.
            mask: who may attend to whom; causal by default.
            positions: where the tokens stand, `[..., T]`; counted from 0 by default.
            key: random key for dropout, none without.
        """
        embed_key, layer_key = split_key(key, 2)
        inputs = self.embedding(tokens, positions=positions, key=embed_key)
        features, _ = self.decoder(inputs, mask=mask, key=layer_key)
        return self.embedding.unembed(features) if self.output is None else self.output(features)
