"""An encoder-decoder: encode a source, and score each next target token."""

from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from attention.modules.config import TransformerConfig
from attention.modules.context import (
    AxisNames,
    CacheSpec,
    Output,
    add_losses,
    and_mask,
    constrain_logits,
    unconstrained,
)
from attention.modules.dropout import split_rng
from attention.modules.embeddings import Embedding
from attention.modules.transformer import (
    Decoder,
    DecoderCache,
    Encoder,
    MakeLayer,
    embed_and_apply,
)
from attention.modules.vocabulary import make_output, score_vocabulary
from attention.primitives import masks
from attention.primitives.cache import Constant
from attention.primitives.masks import Mask


class EncoderDecoderState(NamedTuple):
    """The state of an encoder-decoder between decoding steps.

    Attributes:
        encoder_mask: a `Constant` with the mask of the encoder output.
        cache: of the decoder, which contains keys and values of the encoder output.
    """

    encoder_mask: Constant
    cache: DecoderCache


class EncoderDecoder(nnx.Module):
    """Encode a source, and score each next target token with a decoder (Vaswani et al. 2017)."""

    is_prompted = False  # `prefill` reads a source, not the beginning of the target

    def __init__(
        self,
        source_embedding: Embedding | None,
        encoder: Encoder,
        target_embedding: Embedding,
        decoder: Decoder,
        *,
        output: Callable[[Array], Array] | None = None,
    ) -> None:
        """Assemble a model.

        Args:
            source_embedding: of the source; None for that of the target. One without a table of its
                own uses the table of the target.
            encoder: maps `[..., S, D]` to `[..., S, D]`.
            target_embedding: of the target.
            decoder: with cross-attention.
            output: maps features to scores of the vocabulary; None for the target embedding.
        """
        self.source_embedding = source_embedding
        self.encoder = encoder
        self.target_embedding = target_embedding
        self.decoder = decoder
        self.output = output

    @classmethod
    def from_config(
        cls,
        config: TransformerConfig,
        *,
        source_vocab_size: int,
        target_vocab_size: int,
        rngs: nnx.Rngs,
        make_encoder_layer: MakeLayer | None = None,
        make_decoder_layer: MakeLayer | None = None,
    ) -> "EncoderDecoder":
        """Make a Transformer.

        With tie="all" or "embeddings" source and target have one token table; learned positions
        are separate.

        Raises:
            ValueError: one table for vocabularies of different size.
        """
        is_shared = config.tie in ("all", "embeddings")
        if is_shared and source_vocab_size != target_vocab_size:
            raise ValueError(
                f"tie={config.tie!r} needs one vocabulary, got {source_vocab_size} source and "
                f"{target_vocab_size} target words: use tie='output' or 'none'"
            )
        own_vocab_size = None if is_shared else source_vocab_size
        return cls(
            Embedding.from_config(own_vocab_size, config, rngs=rngs),
            Encoder.from_config(config, rngs=rngs, make_layer=make_encoder_layer),
            Embedding.from_config(target_vocab_size, config, rngs=rngs),
            Decoder.from_config(config, rngs=rngs, make_layer=make_decoder_layer),
            output=make_output(config, target_vocab_size, rngs),
        )

    def encode(self, source: Array, **options: object) -> Output:
        """Map source tokens `[..., S]` to features `[..., S, D]`, the encoder output.

        Args:
            source: token ids.
            options: fields of `Context`, and `embedding_positions`, as in `embed_and_apply`.
                Without a mask or lengths padding is attended to.

        Raises:
            ValueError: more tokens than `max_length`.
        """
        embedding = self.source_embedding or self.target_embedding
        embedding.check_length(source.shape[-1], "a source of {} tokens")
        if embedding.tokens is None:
            embedding = partial(embedding, table=self.target_embedding.tokens[...])
        return embed_and_apply(embedding, self.encoder, source, **options)

    def decode(self, target: Array, encoder_output: Array | None, **options: object) -> Output:
        """Map target tokens `[..., T]` to features `[..., T, D]` for `logits`.

        Args:
            target: token ids, with the start token in front.
            encoder_output: `[..., S, D]`; None with a cache, which contains its keys and values.
            options: other fields of `Context`, and `embedding_positions`, as in `embed_and_apply`.
                Without an `encoder_mask` padding is attended to; to a `mask` the causal mask is
                added; a cache is that of `new_cache`.
        """
        options |= {"encoder_output": encoder_output}
        return embed_and_apply(self.target_embedding, self.decoder, target, **options)

    def logits(self, features: Array) -> Array:
        """Map features `[..., D]` to scores of the next token `[..., V]`."""
        return score_vocabulary(self.output, self.target_embedding, features)

    def __call__(
        self,
        source: Array,
        target: Array,
        *,
        source_mask: Mask | Array | None = None,
        encoder_mask: Mask | Array | None = None,
        source_lengths: Array | None = None,
        target_mask: Mask | Array | None = None,
        rng: Array | None = None,
        returning: Collection[str] = (),
        constrain: Callable[[Array, AxisNames], Array] = unconstrained,
    ) -> Output:
        """Score each next target token.

        Args:
            source: ids `[..., S]`.
            target: ids `[..., T]`, with the start token in front.
            source_mask: of self-attention in the encoder.
            encoder_mask: of cross-attention.
            source_lengths: int `[...]`, number of valid tokens of each source; with None and no
                mask, padding is attended to.
            target_mask: of self-attention in the decoder; the causal mask is added to it.
            rng: random key of dropout; None turns dropout off.
            returning: as in `Context`.
            constrain: as in `Context`.

        Returns:
            The output of the decoder, with logits `[..., T, V]`, the losses of both stacks, and the
            output of the encoder as `encoder`.
        """
        encoder_rng, decoder_rng = split_rng(rng, 2)
        options = {"returning": returning, "constrain": constrain}
        encoded = self.encode(
            source,
            mask=source_mask,
            lengths=source_lengths,
            rng=encoder_rng,
            **options,
        )
        if source_lengths is not None:
            encoder_mask = and_mask(masks.lengths(source_lengths), encoder_mask)
        output = self.decode(
            target,
            encoded.features,
            encoder_mask=encoder_mask,
            mask=target_mask,
            rng=decoder_rng,
            **options,
        )
        losses = add_losses(encoded.losses, output.losses)
        logits = constrain_logits(self.logits(output.features), options)
        return output._replace(logits=logits, losses=losses, encoder=encoded)

    def new_cache(self, encoder_output: Array, size: int, **options: object) -> DecoderCache:
        """Return a cache for `decode`, with keys and values of an encoder output `[..., S, D]`.

        Args:
            encoder_output: what `decode` attends to.
            size: largest number of target tokens.
            options: other fields of `CacheSpec`.

        Raises:
            ValueError: a size above `max_length`.
        """
        self.target_embedding.check_length(size, "a cache of {} tokens")
        batch = encoder_output.shape[:-2]
        spec = CacheSpec(batch=batch, size=size, encoder_output=encoder_output, **options)
        return self.decoder.new_cache(spec)

    @property
    def vocab_size(self) -> int | None:
        """Number of target tokens; None if the embedding does not know it."""
        return getattr(self.target_embedding, "vocab_size", None)

    @property
    def input_vocab_size(self) -> int | None:
        """Number of source tokens; None if the embedding does not know it."""
        source = self.source_embedding
        uses_target_table = source is None or source.tokens is None
        return self.vocab_size if uses_target_table else getattr(source, "vocab_size", None)

    def max_input_length(self, max_tokens: int) -> int | None:
        """Return the largest number of source tokens that `prefill` accepts; None if any."""
        del max_tokens  # it is limited by the target embedding alone
        return (self.source_embedding or self.target_embedding).max_length

    def prefill(
        self,
        inputs: Array,
        lengths: Array,
        *,
        max_tokens: int,
        cache_dtype: DTypeLike | None = None,
    ) -> tuple[EncoderDecoderState, None]:
        """Encode a source; see `attention.decoding.GenerativeModel`.

        Raises:
            ValueError: `max_tokens` above `max_length`.
        """
        self.target_embedding.check_length(max_tokens, "a target of max_tokens={}")
        mask = masks.lengths(lengths)
        encoded = self.encode(inputs, mask=None, lengths=lengths)
        cache = self.new_cache(encoded.features, max_tokens, dtype=cache_dtype)
        return EncoderDecoderState(Constant(mask), cache), None

    def step(
        self, state: EncoderDecoderState, tokens: Array, *, returning: Collection[str] = ()
    ) -> tuple[Output, EncoderDecoderState]:
        """Read the next tokens `[B]`; return an output with logits `[B, V]`, and the state."""
        output = self.decode(
            tokens[:, None],
            None,
            encoder_mask=state.encoder_mask.value,
            cache=state.cache,
            returning=returning,
        )
        logits = self.logits(output.features[:, -1])
        return output._replace(logits=logits), state._replace(cache=output.cache)
