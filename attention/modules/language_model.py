"""A decoder alone: scores each next token of a text."""

from collections.abc import Sequence

from flax import nnx
from jax import Array

from attention.modules.config import TransformerConfig
from attention.modules.dropout import split_key
from attention.modules.embedding import Embedding
from attention.modules.linear import Linear
from attention.modules.transformer import Caches, Decoder
from attention.primitives.masks import Mask


class LanguageModel(nnx.Module):
    """Embeds tokens, reads them with a causal decoder, and scores what comes next."""

    def __init__(self, config: TransformerConfig, *, vocab_size: int, rngs: nnx.Rngs) -> None:
        """Makes the embedding, the decoder and, if tie is "none", the output layer."""
        self.embedding = Embedding(vocab_size, config, rngs=rngs)
        self.decoder = Decoder(config, cross=False, rngs=rngs)
        self.output = (
            Linear(config.width, vocab_size, use_bias=False, rngs=rngs)
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
        cache: Caches | None = None,
        lengths: Array | None = None,
    ) -> Array | tuple[Array, Caches]:
        """Maps tokens `[..., T]` to scores of each next token `[..., T, V]`.

        Args:
            tokens: ids.
            mask: who may attend to whom; causal by default.
            positions: where the embeddings stand, `[..., T]`; counted by default.
            key: random key for dropout, none without.
            cache: of `new_cache`, what was read so far; `tokens` are what comes next.
            lengths: with a cache, `[...]`: how many of the T tokens of each row are no padding.

        Returns:
            The scores; with a cache, a pair of them and the new cache.

        Raises:
            ValueError: more tokens than `max_length`, or than the cache has room for; positions
                beside a cache.
        """
        embed_key, layer_key = split_key(key, 2)
        start = self.decoder.num_read(cache)
        inputs = self.embedding(tokens, positions=positions, start=start, key=embed_key)
        features, _, *kept = self.decoder(
            inputs, mask=mask, key=layer_key, cache=cache, lengths=lengths
        )
        scores = self.embedding.unembed(features) if self.output is None else self.output(features)
        return (scores, *kept) if kept else scores

    def new_cache(self, batch: Sequence[int], size: int, *, ring: bool = False) -> Caches:
        """Caches that have read nothing, as `Decoder.new_cache` makes them.

        Raises:
            ValueError: a size above `max_length`, or a ring for learned positions.
        """
        self.embedding.check_cache(size, ring=ring)
        return self.decoder.new_cache(batch, size, ring=ring)
