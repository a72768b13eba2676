"""A decoder that scores the next token of a text."""

from collections.abc import Callable, Collection, Sequence

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from attention.modules.config import TransformerConfig
from attention.modules.context import CacheSpec, Output, constrain_logits
from attention.modules.embeddings import Embedding
from attention.modules.transformer import (
    Decoder,
    DecoderCache,
    MakeLayer,
    embed_and_apply,
)
from attention.modules.vocabulary import make_output, score_vocabulary


class LanguageModel(nnx.Module):
    """Embed tokens, map them with a causal decoder, and score the next token (GPT)."""

    is_prompted = True  # `prefill` reads the beginning of the text

    def __init__(
        self,
        embedding: Embedding,
        decoder: Decoder,
        *,
        output: Callable[[Array], Array] | None = None,
    ) -> None:
        """Assemble a model.

        Args:
            embedding: of the tokens.
            decoder: without cross-attention.
            output: maps features to scores of the vocabulary; None for the embedding.
        """
        self.embedding = embedding
        self.decoder = decoder
        self.output = output

    @classmethod
    def from_config(
        cls,
        config: TransformerConfig,
        *,
        vocab_size: int,
        causal: bool = True,
        rngs: nnx.Rngs,
        make_layer: MakeLayer | None = None,
    ) -> "LanguageModel":
        """Make a Transformer; `causal` and `make_layer` are those of `Decoder.from_config`."""
        return cls(
            Embedding.from_config(vocab_size, config, rngs=rngs),
            Decoder.from_config(
                config, causal=causal, cross=False, rngs=rngs, make_layer=make_layer
            ),
            output=make_output(config, vocab_size, rngs),
        )

    def decode(self, tokens: Array, **options: object) -> Output:
        """Map tokens `[..., T]` to features `[..., T, D]` for `logits`.

        Args:
            tokens: ids.
            options: fields of `Context`, and `embedding_positions`, as in `embed_and_apply`. To a
                mask a causal decoder adds the causal mask; a cache is that of `new_cache`.

        Raises:
            ValueError: more tokens than `max_length` or than the cache can hold; positions beside a
                cache.
        """
        return embed_and_apply(self.embedding, self.decoder, tokens, **options)

    def logits(self, features: Array) -> Array:
        """Map features `[..., D]` to scores of the next token `[..., V]`."""
        return score_vocabulary(self.output, self.embedding, features)

    def __call__(self, tokens: Array, **options: object) -> Output:
        """Score each next token of `[..., T]`: an output with logits `[..., T, V]`.

        The options are those of `decode`.
        """
        output = self.decode(tokens, **options)
        return output._replace(logits=constrain_logits(self.logits(output.features), options))

    def new_cache(self, batch: Sequence[int], size: int, **options: object) -> DecoderCache:
        """Return a cache that contains no tokens.

        Args:
            batch: the leading axes of the tokens.
            size: largest number of tokens; of a ring, of its window.
            options: other fields of `CacheSpec`.

        Raises:
            ValueError: a size above `max_length`, or a ring for positions that end.
        """
        self.embedding.check_length(size, "a cache of {} tokens")
        if options.get("ring") and self.embedding.num_positions is not None:
            raise ValueError(
                f"learned positions end at max_length={self.embedding.num_positions}, and a ring "
                "continues"
            )
        return self.decoder.new_cache(CacheSpec(batch=tuple(batch), size=size, **options))

    @property
    def vocab_size(self) -> int | None:
        """Number of tokens; None if the embedding does not know it."""
        return getattr(self.embedding, "vocab_size", None)

    def max_input_length(self, max_tokens: int) -> int | None:
        """Return the largest number of input tokens that `prefill` accepts; None if any."""
        longest = self.embedding.max_length
        if longest is None:
            return None
        return longest + 1 - (max_tokens if self.embedding.num_positions is not None else 0)

    def prefill(
        self,
        inputs: Array,
        lengths: Array,
        *,
        max_tokens: int,
        cache_dtype: DTypeLike | None = None,
    ) -> tuple[DecoderCache, Array]:
        """Read all but the last token of each prompt; see `attention.decoding.GenerativeModel`.

        A model without learned positions continues beyond `max_length`: each token then attends to
        the last `max_length` tokens.

        Raises:
            ValueError: more positions than the embedding has.
        """
        batch, num_tokens = inputs.shape
        size, longest = num_tokens - 1 + max_tokens, self.embedding.max_length
        ring = longest is not None and size > longest
        if ring and self.embedding.num_positions is not None:
            raise ValueError(
                f"a prompt of {num_tokens} tokens and max_tokens={max_tokens} need {size} "
                f"positions, and the embedding has max_length={longest}"
            )
        cache = self.new_cache((batch,), longest if ring else size, ring=ring, dtype=cache_dtype)
        if num_tokens > 1:
            cache = self.decode(inputs[:, :-1], cache=cache, lengths=lengths - 1).cache
        last = jnp.take_along_axis(inputs, lengths[:, None] - 1, axis=1)[:, 0]
        return cache, last

    def step(
        self, state: DecoderCache, tokens: Array, *, returning: Collection[str] = ()
    ) -> tuple[Output, DecoderCache]:
        """Read the next tokens `[B]`; return an output with logits `[B, V]`, and the state."""
        output = self.decode(tokens[:, None], cache=state, returning=returning)
        return output._replace(logits=self.logits(output.features[:, -1])), output.cache
