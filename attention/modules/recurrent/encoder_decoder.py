"""Recurrent encoder-decoder with the interface of `attention.modules.EncoderDecoder`."""

from collections.abc import Callable, Collection
from typing import ClassVar, NamedTuple

from flax import nnx
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from attention.modules.context import Output
from attention.modules.dropout import split_rng
from attention.modules.embeddings import Embedding
from attention.modules.linear import linear
from attention.modules.recurrent.config import ATTENTIONS, RecurrentConfig
from attention.modules.recurrent.decoder import RecurrentCache, RecurrentDecoder
from attention.modules.recurrent.encoder import CELLS, RecurrentEncoder
from attention.primitives import masks
from attention.primitives.constant import Constant
from attention.primitives.dense_mask import visible_keys
from attention.primitives.masks import Mask


class RecurrentState(NamedTuple):
    """State between decoding steps.

    Attributes:
        cache: of the decoder.
        encoder_lengths: int32 `[B]`, number of valid tokens of each source.
    """

    cache: RecurrentCache
    encoder_lengths: Constant


class RecurrentEncoderDecoder(nnx.Module):
    """A bidirectional recurrent encoder and a recurrent decoder.

    Attributes:
        is_prompted: False: generation begins with a start token, not with the inputs.
    """

    is_prompted: ClassVar[bool] = False

    def __init__(
        self,
        source_embedding: Embedding,
        encoder: RecurrentEncoder,
        target_embedding: Embedding,
        decoder: RecurrentDecoder,
        output: Callable[[Array], Array],
    ) -> None:
        """Assemble a model from its parts.

        Args:
            source_embedding: maps source tokens `[..., S]` to `[..., S, D]`.
            encoder: maps `[..., S, D]` to annotations `[..., S, E]`.
            target_embedding: maps target tokens `[..., T]` to `[..., T, D]`.
            decoder: with `encoder_width` E.
            output: maps features `[..., features_width]` to logits `[..., V]`.
        """
        self.source_embedding = source_embedding
        self.encoder = encoder
        self.target_embedding = target_embedding
        self.decoder = decoder
        self.output = output

    @classmethod
    def from_config(
        cls,
        config: RecurrentConfig,
        *,
        source_vocab_size: int,
        target_vocab_size: int,
        rngs: nnx.Rngs,
    ) -> "RecurrentEncoderDecoder":
        """Make the model of a config."""
        width, hidden = config.embedding_width, config.hidden
        attention, step = ATTENTIONS[config.attention]
        options = {"dtype": config.dtype, "param_dtype": config.param_dtype, "rngs": rngs}
        cell = {"cell": CELLS[config.cell]}
        ends = {"max_length": config.max_length, "dropout": config.dropout}
        source_embedding = Embedding(source_vocab_size, width, **ends, **options)
        encoder = RecurrentEncoder(width, hidden, **cell, **options)
        target_embedding = Embedding(target_vocab_size, width, **ends, **options)
        parts = {"encoder_width": 2 * hidden, "attention": attention, "step": step}
        decoder = RecurrentDecoder(width, hidden, **parts, **cell, **options)
        sizes = {"embed": decoder.features_width}, {"vocab": target_vocab_size}
        return cls(source_embedding, encoder, target_embedding, decoder, linear(*sizes, **options))

    def encode(
        self,
        source: Array,
        *,
        mask: Mask | None = None,
        rng: Array | None = None,
        returning: Collection[str] = (),
    ) -> Output:
        """Map source tokens `[..., S]` to the encoder output, annotations `[..., S, E]`.

        Args:
            source: token ids.
            mask: of padding, such as `masks.lengths`; None if all tokens are valid.
            rng: random key of dropout; None turns dropout off.
            returning: may contain "hidden_states".

        Raises:
            ValueError: a source longer than `max_length`; a mask that depends on the query.
        """
        valid = visible_keys(mask, source.shape[:-1], source.shape[-1])
        inputs = self.source_embedding(source, rng=rng)
        features = self.encoder(inputs, valid=valid)
        states = (inputs, features) if "hidden_states" in returning else ()
        return Output(features, hidden_states=states)

    def decode(
        self,
        target: Array,
        encoder_output: Array | None,
        *,
        encoder_mask: Mask | None = None,
        mask: None = None,
        rng: Array | None = None,
        cache: RecurrentCache | None = None,
        lengths: ArrayLike | None = None,
        returning: Collection[str] = (),
    ) -> Output:
        """Map target tokens `[..., T]` to features `[..., T, features_width]`.

        Args:
            target: token ids, with the start token in front.
            encoder_output: features of `encode`; None with a cache, which contains it.
            encoder_mask: of the attention over the encoder output; None allows all, padding too.
            mask: must be None, since the state depends on every token before.
            rng: random key of dropout; None turns dropout off.
            cache: as in `RecurrentDecoder`, like `lengths`, `returning` and the result.
            lengths: with a cache, integers `[...]`, number of valid tokens per row.
            returning: as in `attention.attend`, and "hidden_states".

        Raises:
            ValueError: a mask; a target longer than `max_length`; and as `RecurrentDecoder`.
            TypeError: as `RecurrentDecoder`.
        """
        if mask is not None:
            raise ValueError(
                "a recurrent decoder cannot mask target tokens: its state depends on all of them"
            )
        return self.decoder(
            self.target_embedding(target, rng=rng),
            encoder_output,
            encoder_mask=encoder_mask,
            cache=cache,
            lengths=lengths,
            returning=returning,
        )

    def logits(self, features: Array) -> Array:
        """Map features `[..., features_width]` to logits `[..., V]` of the next token."""
        return self.output(features)

    def __call__(
        self,
        source: Array,
        target: Array,
        *,
        source_mask: Mask | None = None,
        encoder_mask: Mask | None = None,
        rng: Array | None = None,
        returning: Collection[str] = (),
    ) -> Output:
        """Return the output of `decode` with logits `[..., T, V]`; see `encode` and `decode`."""
        encode_rng, decode_rng = split_rng(rng, 2)
        encoder_output = self.encode(source, mask=source_mask, rng=encode_rng).features
        output = self.decode(
            target, encoder_output, encoder_mask=encoder_mask, rng=decode_rng, returning=returning
        )
        return output._replace(logits=self.logits(output.features))

    def prefill(
        self,
        inputs: Array,
        lengths: Array,
        *,
        max_tokens: int,
        cache_dtype: DTypeLike | None = None,
    ) -> tuple[RecurrentState, None]:
        """Encode sources `[B, S]`, for `step`.

        Args:
            inputs: source token ids.
            lengths: int32 `[B]`, number of valid tokens per row.
            max_tokens: largest number of target tokens.
            cache_dtype: of the encoder output in the state; that of the computation if None.

        Returns:
            The state, and None: the caller chooses the start token.

        Raises:
            ValueError: more tokens than `max_length`.
        """
        self.target_embedding.check_length(max_tokens)
        encoder_output = self.encode(inputs, mask=masks.lengths(lengths)).features
        cache = self.decoder.new_cache(encoder_output, dtype=cache_dtype)
        return RecurrentState(cache, Constant(lengths)), None

    def step(
        self, state: RecurrentState, tokens: Array, *, returning: Collection[str] = ()
    ) -> tuple[Output, RecurrentState]:
        """Decode one token per row: `[B]` to logits `[B, V]` of the next, and the new state."""
        output = self.decode(
            tokens[..., None],
            None,
            encoder_mask=masks.lengths(state.encoder_lengths.value),
            cache=state.cache,
            returning=returning,
        )
        output = output._replace(logits=self.logits(output.features[..., 0, :]))
        return output, state._replace(cache=output.cache)
