"""A recurrent translator with the interface of `attention.modules.EncoderDecoder`."""

from collections.abc import Collection, Sequence

from flax import nnx
from jax import Array

from attention.modules.config import TransformerConfig
from attention.modules.dropout import split_key
from attention.modules.embedding import Embedding
from attention.modules.linear import Linear
from attention.modules.recurrent.attention import Found
from attention.modules.recurrent.config import RecurrentConfig
from attention.modules.recurrent.decoder import DecoderState, RecurrentDecoder
from attention.modules.recurrent.encoder import RecurrentEncoder
from attention.modules.recurrent.memory import Memory
from attention.primitives.dense_mask import visible_keys
from attention.primitives.masks import Mask


class RecurrentEncoderDecoder(nnx.Module):
    """Reads a source in both directions and scores each next target token."""

    def __init__(
        self,
        config: RecurrentConfig,
        *,
        source_vocab_size: int,
        target_vocab_size: int,
        rngs: nnx.Rngs,
    ) -> None:
        """Makes embeddings, encoder, decoder and the output layer."""
        self.source_embedding = _embedding(source_vocab_size, config, rngs)
        self.target_embedding = _embedding(target_vocab_size, config, rngs)
        self.encoder = RecurrentEncoder(config, rngs=rngs)
        self.decoder = RecurrentDecoder(config, rngs=rngs)
        self.output = Linear(self.decoder.step.features_width, target_vocab_size, rngs=rngs)

    def encode(self, source: Array, *, mask: Mask | None, key: Array | None = None) -> Memory:
        """Maps source tokens `[..., S]` to the memory.

        Args:
            source: token ids.
            mask: which tokens are no padding, as `masks.lengths` says; None is all.
            key: random key for dropout, none without.

        Raises:
            ValueError: a source longer than `max_length`; a mask that shows one token something
                else than another.
        """
        reads = visible_keys(mask, source.shape[:-1], source.shape[-1])
        return self.encoder(self.source_embedding(source, key=key), reads=reads)

    def decode(
        self,
        target: Array,
        memory: Memory,
        *,
        memory_mask: Mask | None,
        mask: None = None,
        key: Array | None = None,
        cache: DecoderState | None = None,
        lengths: Array | None = None,
        returning: Collection[str] = (),
    ) -> tuple[Array, dict[str, Found]] | tuple[Array, dict[str, Found], DecoderState]:
        """Maps target tokens `[..., T]` and the memory to features `[..., T, features_width]`.

        Args:
            target: token ids, from the start symbol on.
            memory: what `encode` returned, or what `remember` made of it.
            memory_mask: who may attend to whom in the memory; None is everyone, padding too.
            mask: none: whatever was read before has shaped the state.
            key: random key for dropout, none without.
            cache: of `new_cache`, the target read so far; `target` is what comes next.
            lengths: with a cache, `[...]`: how many of the T tokens of each row are no padding.
            returning: what attention shall return besides, as in `attention.attend`.

        Returns:
            Features for `logits`, and what was asked for, as `RecurrentDecoder` returns it; with a
            cache, the new cache too.

        Raises:
            ValueError: a mask; a target longer than `max_length`; and as `RecurrentDecoder`.
        """
        if mask is not None:
            raise ValueError(
                "a recurrent decoder has read all that stands before a token: no mask can hide it"
            )
        return self.decoder(
            self.target_embedding(target, key=key),
            memory,
            memory_mask=memory_mask,
            cache=cache,
            lengths=lengths,
            returning=returning,
        )

    def new_cache(self, batch: Sequence[int], size: int) -> DecoderState:
        """A cache for `decode` that has read nothing, and goes on from the memory it is given.

        Args:
            batch: the leading axes of the targets to come.
            size: the most tokens of a row, as other models need it; here they take no room, so
                more would do no harm.

        Raises:
            ValueError: a size above `max_length`.
        """
        self.target_embedding.check_length(size)
        return self.decoder.new_cache(batch)

    def remember(self, memory: Memory) -> Memory:
        """The memory with what every step of `decode` would compute anew of it."""
        return self.decoder.remember(memory)

    def logits(self, features: Array) -> Array:
        """Maps features `[..., features_width]` to scores of the next token `[..., V]`."""
        return self.output(features)

    def __call__(
        self,
        source: Array,
        target: Array,
        *,
        source_mask: Mask | None,
        memory_mask: Mask | None,
        key: Array | None = None,
    ) -> Array:
        """Scores each next target token: source `[..., S]`, target `[..., T]` → `[..., T, V]`."""
        encode_key, decode_key = split_key(key, 2)
        memory = self.encode(source, mask=source_mask, key=encode_key)
        features, _ = self.decode(target, memory, memory_mask=memory_mask, key=decode_key)
        return self.logits(features)


def _embedding(vocab_size: int, config: RecurrentConfig, rngs: nnx.Rngs) -> Embedding:
    """The embedding of a Transformer without positions: here the order of reading tells them."""
    like = TransformerConfig(
        width=config.embedding_width,
        num_heads=1,
        positions="none",
        max_length=config.max_length,
        dropout=config.dropout,
    )
    return Embedding(vocab_size, like, rngs=rngs)
