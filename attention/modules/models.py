"""Models: embed, map with stacks, and score a vocabulary or classes."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, Self

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from attention.modules.config import TransformerConfig
from attention.modules.context import (
    CacheSpec,
    Context,
    Output,
    add_losses,
    and_mask,
    apply_layer,
    check_names,
    check_rng,
)
from attention.modules.embeddings import Embedding, make_output
from attention.modules.layers import activation_of, linear, make_table, named, split_rng
from attention.modules.numbers import check_count
from attention.modules.transformer import Decoder, DecoderCache, Encoder, MakeLayer, next_positions
from attention.primitives import masks
from attention.primitives.cache import Constant
from attention.primitives.masks import Mask


class Model(nnx.Module):
    """Embed inputs, map them with a stack, and score the features.

    A model is made from a config, sizes and `rngs`, or from layers, named as its attributes. A
    layer beside a config replaces that of the config, and the attribute `config` is then None.

    Options of calls are the fields of `Context`, and raise a TypeError for others. For tokens they
    include `embedding_positions` `[..., T]`, of the embeddings alone; None for the `positions`.
    Texts packed into a row need them, because the masks count all tokens of the row.

    An `rng` turns dropout on. After `model.train()` of nnx, a model with dropout raises a
    ValueError without it. Without a mask or lengths padding is attended to.
    """

    config: Any = None
    deterministic = True  # `train` of nnx sets it to False

    @classmethod
    def from_config(cls, config: object, *embedding: object, **options: object) -> Self:
        """Make a model from a config, as the class itself does."""
        return cls(config, *embedding, **options)

    def _check_given(
        self,
        config: object,
        rngs: object,
        layers: dict[str, object],
        *others: object,
        **sizes: int | None,
    ) -> None:
        """Check what is given; keep the config unless a layer is. Without it, all are needed."""
        if config is None and None in layers.values():
            raise TypeError(f"{type(self).__name__} needs a config, or {' and '.join(layers)}")
        if config is not None and not isinstance(rngs, nnx.Rngs):
            raise TypeError(f"rngs must be an nnx.Rngs, got {type(rngs).__name__}")
        for name, size in sizes.items():
            check_count(name, size, required=config is not None, at_least=1)
        self.config = None if any(x is not None for x in (*layers.values(), *others)) else config

    def _context(self, options: dict[str, Any]) -> Context:
        check_names("a model has no argument", options, [each.name for each in fields(Context)])
        check_rng(self, options.get("rng"))
        return Context(**options)

    def _embed_and_apply(
        self,
        embedding: Callable[..., Array],
        stack: Encoder,
        tokens: Array,
        *,
        embedding_positions: Array | None = None,
        **options: Any,  # noqa: ANN401 - of several types
    ) -> Output:
        """Embed tokens `[..., T]` and map them with a stack to features `[..., T, D]`.

        Raises:
            ValueError: more tokens than positions; positions beside a cache; and as the stack.
        """
        context = self._context(options)
        embedding_rng, layers_rng = split_rng(context.rng, 2)
        positions = context.positions if embedding_positions is None else embedding_positions
        positions = next_positions(tokens.shape, positions, context.cache)
        inputs = embedding(tokens, positions=positions, rng=embedding_rng)
        return apply_layer(stack, inputs, replace(context, rng=layers_rng))

    def _with_logits(self, output: Output, options: dict[str, Any]) -> Output:
        """Return the output with logits `[..., T, V]` of its features."""
        context = Context(constrain=options.get("constrain"))
        logits = context.shard(self.logits(output.features), "sequence", "vocab")
        return output._replace(logits=logits)


class DecodingModel(Model):
    """A model with a causal decoder, which scores the next token of a target."""

    is_prompted = True  # whether `prefill` reads the beginning of the target
    target_embedding: Embedding  # of the tokens of the decoder
    decoder: Decoder
    output: Callable[[Array], Array] | None = None

    @property
    def vocab_size(self) -> int | None:
        """Number of target tokens; None if the embedding does not know it."""
        return getattr(self.target_embedding, "vocab_size", None)

    def logits(self, features: Array) -> Array:
        """Map features `[..., D]` to scores of the next token `[..., V]`."""
        return (self.output or self.target_embedding.unembed)(features)

    def new_cache(self, batch: Sequence[int], size: int, **options: object) -> DecoderCache:
        """Return a cache for `decode` without target tokens; arguments are those of `CacheSpec`.

        Raises:
            ValueError: a size above the number of positions.
        """
        self.target_embedding.check_length(size, "a cache of {} tokens")
        return self.decoder.new_cache(CacheSpec(batch=tuple(batch), size=size, **options))


class LanguageModel(DecodingModel):
    """Embed tokens, map them with a causal decoder, and score the next token (GPT).

    Attributes:
        embedding: of the tokens.
        decoder: without cross-attention.
        output: maps features to scores of the vocabulary; None for the embedding.
    """

    def __init__(
        self,
        config: TransformerConfig | None = None,
        *,
        vocab_size: int | None = None,
        rngs: nnx.Rngs | None = None,
        embedding: Embedding | None = None,
        decoder: Decoder | None = None,
        output: Callable[[Array], Array] | None = None,
        make_layer: MakeLayer | None = None,
        causal: bool = True,
    ) -> None:
        """Make a Transformer, or a model of layers; `make_layer`, `causal` as in `Decoder`."""
        layers = {"embedding": embedding, "decoder": decoder}
        self._check_given(config, rngs, layers, output, make_layer, vocab_size=vocab_size)
        options = {"cross": False, "make_layer": make_layer, "causal": causal}
        self.embedding = embedding or Embedding.from_config(vocab_size, config, rngs=rngs)
        self.decoder = decoder or Decoder.from_config(config, rngs=rngs, **options)
        self.output = output or make_output(config, vocab_size, rngs)

    def decode(self, tokens: Array, **options: object) -> Output:
        """Map tokens `[..., T]` to features `[..., T, D]` for `logits`.

        To a mask a causal decoder adds the causal mask; a cache is that of `new_cache`.
        """
        return self._embed_and_apply(self.embedding, self.decoder, tokens, **options)

    def __call__(self, tokens: Array, **options: object) -> Output:
        """Score each next token of `[..., T]`: an output with logits `[..., T, V]`."""
        return self._with_logits(self.decode(tokens, **options), options)

    @property
    def target_embedding(self) -> Embedding:
        """The embedding of the text."""
        return self.embedding

    def max_input_length(self, max_tokens: int) -> int | None:
        """Return the largest number of input tokens that `prefill` accepts; None if any."""
        longest = self.embedding.num_positions
        return None if longest is None else longest + 1 - max_tokens

    def prefill(
        self, inputs: Array, lengths: Array, *, max_tokens: int
    ) -> tuple[DecoderCache, Array]:
        """Read all but the last token of each prompt; see `attention.decoding.GenerativeModel`.

        If positions never end, each token beyond `max_length`, of the prompt too, attends to the
        last `max_length` tokens, as in a full pass with `mask=masks.window(max_length - 1)`.
        """
        batch, num_tokens = inputs.shape
        size, longest = num_tokens - 1 + max_tokens, self.embedding.max_length
        ring = longest is not None and size > longest and self.embedding.num_positions is None
        cache = self.new_cache((batch,), longest if ring else size, ring=ring)
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


class PredictionHead(nnx.Module):
    """A linear layer, an activation and a norm before the scores (Devlin et al. 2019)."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        """Make the head with the activation and the norm of a config."""
        sizes = {"embed": config.width}, {"hidden": config.width}
        self.linear = linear(*sizes, **config.linear_options(rngs))
        self.activation = config.activation
        self.norm = config.make_norm(rngs)

    def __call__(self, features: Array) -> Array:
        """Map `[..., D]` to `[..., D]`."""
        return self.norm(activation_of(self.activation)(self.linear(features)))


class MaskedLanguageModel(Model):
    """Embed tokens, encode them, and score each position (Devlin et al. 2019, section 3.1).

    Attributes:
        embedding: of the tokens.
        encoder: maps `[..., T, D]` to `[..., T, D]`.
        head: maps features before they are scored, such as `PredictionHead`.
        output: maps features to scores of the vocabulary; None for the embedding.
    """

    def __init__(
        self,
        config: TransformerConfig | None = None,
        *,
        vocab_size: int | None = None,
        rngs: nnx.Rngs | None = None,
        embedding: Embedding | None = None,
        encoder: Encoder | None = None,
        head: Callable[[Array], Array] | None = None,
        output: Callable[[Array], Array] | None = None,
        make_layer: MakeLayer | None = None,
        has_head: bool = False,
    ) -> None:
        """Make a Transformer, with a `PredictionHead` if `has_head`, or a model of layers."""
        layers = {"embedding": embedding, "encoder": encoder}
        self._check_given(config, rngs, layers, head, output, make_layer, vocab_size=vocab_size)
        self.embedding = embedding or Embedding.from_config(vocab_size, config, rngs=rngs)
        self.encoder = encoder or Encoder.from_config(config, rngs=rngs, make_layer=make_layer)
        self.head = head or (PredictionHead(config, rngs=rngs) if config and has_head else None)
        self.output = output or make_output(config, vocab_size, rngs)

    def encode(
        self, tokens: Array, *, token_types: Array | None = None, **options: object
    ) -> Output:
        """Map tokens and `token_types` `[..., T]` to contextual features `[..., T, D]`."""
        embedding = partial(self.embedding, token_types=token_types)
        return self._embed_and_apply(embedding, self.encoder, tokens, **options)

    def logits(self, features: Array) -> Array:
        """Map features `[..., D]` to scores of the vocabulary `[..., V]`."""
        features = features if self.head is None else self.head(features)
        return (self.output or self.embedding.unembed)(features)

    def __call__(self, tokens: Array, **options: object) -> Output:
        """Score every position of `[..., T]`: an output with logits `[..., T, V]`."""
        return self._with_logits(self.encode(tokens, **options), options)


# The mask of the encoder output, and the cache of the decoder.
EncoderDecoderState = tuple[Constant, DecoderCache]


def source_padding(mask: Mask | ArrayLike | None, lengths: ArrayLike | None) -> Mask | None:
    """Return the mask of cross-attention to a source whose self-attention has this mask.

    It contains `masks.lengths` and bool arrays `[B, 1, 1, S]`, which hide the same keys from all
    queries. Windows and blocks hide no padding.

    Raises:
        ValueError: another mask, which may allow a key for some queries alone, without lengths.
    """
    if mask is None:
        return None
    mask = masks.as_mask(mask)
    if isinstance(mask, masks.And):
        left, right = (source_padding(each, lengths) for each in (mask.left, mask.right))
        return right if left is None else and_mask(left, right)
    if isinstance(mask, masks.Window | masks.Block | masks.QueryLengths):
        return None
    is_row = isinstance(mask, masks.FromArray) and mask.array.shape[-2] == 1
    if isinstance(mask, masks.Lengths) or is_row:
        return mask
    if lengths is not None:
        return None
    raise ValueError(
        "source_mask does not determine the padding of the source: give an encoder_mask too "
        "(masks.full() for no padding), or source_lengths"
    )


class EncoderDecoder(DecodingModel):
    """Encode a source, and score each next target token with a decoder (Vaswani et al. 2017).

    Attributes:
        source_embedding: of the source; one without a table of its own uses that of the target.
        encoder: maps `[..., S, D]` to `[..., S, D]`.
        target_embedding: of the target.
        decoder: with cross-attention.
        output: maps features to scores of the vocabulary; None for the target embedding.
    """

    is_prompted = False  # `prefill` reads a source, not the beginning of the target

    def __init__(
        self,
        config: TransformerConfig | None = None,
        *,
        source_vocab_size: int | None = None,
        target_vocab_size: int | None = None,
        rngs: nnx.Rngs | None = None,
        source_embedding: Embedding | None = None,
        encoder: Encoder | None = None,
        target_embedding: Embedding | None = None,
        decoder: Decoder | None = None,
        output: Callable[[Array], Array] | None = None,
        make_encoder_layer: MakeLayer | None = None,
        make_decoder_layer: MakeLayer | None = None,
    ) -> None:
        """Make a Transformer, or a model of layers.

        With tie="all" or "embeddings" source and target have one token table, and must have one
        vocabulary; learned positions are separate.
        """
        layers = {"source_embedding": source_embedding, "encoder": encoder}
        layers |= {"target_embedding": target_embedding, "decoder": decoder}
        sizes = {"source_vocab_size": source_vocab_size, "target_vocab_size": target_vocab_size}
        others = output, make_encoder_layer, make_decoder_layer
        self._check_given(config, rngs, layers, *others, **sizes)
        if source_embedding is None:
            is_shared = config.tie in ("all", "embeddings")
            if is_shared and source_vocab_size != target_vocab_size:
                raise ValueError(
                    f"tie={config.tie!r} needs one vocabulary, got {source_vocab_size} source and "
                    f"{target_vocab_size} target words: use tie='output' or 'none'"
                )
            size = None if is_shared else source_vocab_size
            unbiased = replace(config, output_bias=False)
            source_embedding = Embedding.from_config(size, unbiased, rngs=rngs)
        self.source_embedding = source_embedding
        self.encoder = encoder or Encoder.from_config(
            config, rngs=rngs, make_layer=make_encoder_layer
        )
        self.target_embedding = target_embedding or Embedding.from_config(
            target_vocab_size, config, rngs=rngs
        )
        self.decoder = decoder or Decoder.from_config(
            config, rngs=rngs, make_layer=make_decoder_layer
        )
        self.output = output or make_output(config, target_vocab_size, rngs)

    def encode(self, source: Array, **options: object) -> Output:
        """Map source tokens `[..., S]` to features `[..., S, D]`, the encoder output."""
        embedding = self.source_embedding
        if embedding.tokens is None:
            embedding = partial(embedding, table=self.target_embedding.tokens[...])
        return self._embed_and_apply(embedding, self.encoder, source, **options)

    def decode(self, target: Array, encoder_output: Array | None, **options: object) -> Output:
        """Map target tokens `[..., T]` to features `[..., T, D]` for `logits`.

        The start token is in front. The encoder output is None with a cache of `new_cache`, which
        contains its keys and values. To a `mask` the causal mask is added.
        """
        options |= {"encoder_output": encoder_output}
        return self._embed_and_apply(self.target_embedding, self.decoder, target, **options)

    def __call__(
        self,
        source: Array,
        target: Array,
        *,
        source_mask: Mask | ArrayLike | None = None,
        encoder_mask: Mask | ArrayLike | None = None,
        source_lengths: ArrayLike | None = None,
        target_mask: Mask | ArrayLike | None = None,
        rng: Array | None = None,
        **options: Any,  # noqa: ANN401 - of several types
    ) -> Output:
        """Score each next target token.

        Args:
            source: ids `[..., S]`.
            target: ids `[..., T]`, with the start token in front.
            source_mask: of self-attention in the encoder.
            encoder_mask: of cross-attention; None for that of `source_mask`; the
                padding by `source_lengths` is hidden too.
            source_lengths: int `[...]`, number of valid tokens of each source.
            target_mask: of self-attention in the decoder; the causal mask is added to it.
            rng: random key of dropout.
            options: `returning`, `constrain` and `attend`, as in `Context`.

        Returns:
            The output of the decoder, with logits `[..., T, V]`, the losses of both stacks, and the
            output of the encoder as `encoder`.

        Raises:
            ValueError: as `source_padding` without an `encoder_mask`, and as both stacks.
        """
        sentence = "a model of two stacks takes source_mask, encoder_mask and target_mask, but no"
        check_names(sentence, options, ("returning", "constrain", "attend"))
        if encoder_mask is None:
            encoder_mask = source_padding(source_mask, source_lengths)
        if source_lengths is not None:
            encoder_mask = and_mask(masks.lengths(source_lengths), encoder_mask)
        encoder_rng, decoder_rng = split_rng(rng, 2)
        encoded = self.encode(
            source, mask=source_mask, lengths=source_lengths, rng=encoder_rng, **options
        )
        masked = {"encoder_mask": encoder_mask, "mask": target_mask}
        output = self.decode(target, encoded.features, rng=decoder_rng, **masked, **options)
        output = output._replace(losses=add_losses(encoded.losses, output.losses), encoder=encoded)
        return self._with_logits(output, options)

    @property
    def input_vocab_size(self) -> int | None:
        """Number of source tokens; None if the embedding does not know it."""
        return getattr(self.source_embedding, "vocab_size", None) or self.vocab_size

    def max_input_length(self, max_tokens: int) -> int | None:
        """Return the largest number of source tokens that `prefill` accepts; None if any."""
        del max_tokens  # it is limited by the target embedding alone
        return self.source_embedding.num_positions

    def prefill(
        self, inputs: Array, lengths: Array, *, max_tokens: int
    ) -> tuple[EncoderDecoderState, None]:
        """Encode a source; see `attention.decoding.GenerativeModel`."""
        features = self.encode(inputs, lengths=lengths).features
        cache = self.new_cache(inputs.shape[:-1], max_tokens, encoder_output=features)
        return (Constant(masks.lengths(lengths)), cache), None

    def step(
        self, state: EncoderDecoderState, tokens: Array, *, returning: Collection[str] = ()
    ) -> tuple[Output, EncoderDecoderState]:
        """Read the next tokens `[B]`; return an output with logits `[B, V]`, and the state."""
        mask, cache = state
        options = {"encoder_mask": mask.value, "cache": cache, "returning": returning}
        output = self.decode(tokens[:, None], None, **options)
        logits = self.logits(output.features[:, -1])
        return output._replace(logits=logits), (mask, output.cache)


class MeanPooling(nnx.Module):
    """The mean of the features of the valid tokens."""

    def before(self, vectors: Array, lengths: Array | None) -> tuple[Array, Array | None]:
        """Return the inputs of the encoder as they are."""
        return vectors, lengths

    def __call__(self, features: Array, lengths: Array | None) -> Array:
        """Map `[..., S, D]` to `[..., D]`; 0 for rows without a token."""
        if lengths is None:
            return features.mean(axis=-2)
        valid = Context(lengths=lengths).valid(features.shape[-2])[..., None]
        total = jnp.sum(features, axis=-2, where=valid)
        return total / jnp.maximum(valid.sum(axis=-2), 1).astype(total.dtype)


class ClassToken(nnx.Module):
    """The features of a learned vector in front of the inputs.

    "[CLS]" of Devlin et al. 2019, section 3; Dosovitskiy et al. 2021, equation 4.
    """

    def __init__(self, width: int, *, param_dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs) -> None:
        """Make the vector, with entries of unit variance."""
        init = nnx.initializers.normal(1.0)
        self.vector = make_table(
            (1, width), (None, "embed"), init=init, param_dtype=param_dtype, rngs=rngs
        )

    def before(self, vectors: Array, lengths: Array | None) -> tuple[Array, Array | None]:
        """Prepend the vector to `[..., S, D]`: `[..., 1 + S, D]`."""
        shape = (*vectors.shape[:-2], 1, vectors.shape[-1])
        front = jnp.broadcast_to(self.vector[...], shape).astype(vectors.dtype)
        lengths = None if lengths is None else lengths + 1
        return jnp.concatenate([front, vectors], axis=-2), lengths

    def __call__(self, features: Array, lengths: Array | None) -> Array:
        """Map `[..., 1 + S, D]` to `[..., D]`."""
        return features[..., 0, :]


# name -> f(width, *, param_dtype, rngs). Add your own.
POOLINGS: dict[str, Callable[..., Any]] = {
    "mean": lambda width, *, param_dtype, rngs: MeanPooling(),
    "class_token": ClassToken,
}


class Classifier(Model):
    """Embed inputs, encode them, pool the features, and score classes.

    Attributes:
        embedding: `embedding(inputs, rng=...)` to `[..., S, D]`, such as `Embedding` or
            `PatchEmbedding`.
        encoder: maps `[..., S, D]` to `[..., S, D]`.
        pooling: a module with the methods of `ClassToken`.
        output: maps pooled features `[..., D]` to scores `[..., C]`.
    """

    def __init__(
        self,
        config: TransformerConfig | None = None,
        embedding: Callable[..., Array] | None = None,
        *,
        num_classes: int | None = None,
        rngs: nnx.Rngs | None = None,
        encoder: Encoder | None = None,
        pooling: str | Callable[..., Any] = "mean",
        output: Callable[[Array], Array] | None = None,
        make_layer: MakeLayer | None = None,
    ) -> None:
        """Make the encoder of a config, a pooling of `POOLINGS` and an output, or take layers."""
        own_pooling = pooling if isinstance(pooling, nnx.Module) else None
        layers = {"encoder": encoder, "pooling": own_pooling, "output": output}
        self._check_given(config, rngs, layers, make_layer, num_classes=num_classes)
        if embedding is None:
            raise TypeError("a Classifier needs an embedding")
        self.embedding = embedding
        self.encoder = encoder or Encoder.from_config(config, rngs=rngs, make_layer=make_layer)
        if own_pooling is None:
            make_pooling = named("pooling", pooling, "POOLINGS", POOLINGS)
            pooling = make_pooling(config.width, param_dtype=config.param_dtype, rngs=rngs)
        self.pooling = pooling
        if output is None:
            options = {"dtype": config.dtype, "param_dtype": config.param_dtype, "rngs": rngs}
            output = linear({"embed": config.width}, {"classes": num_classes}, **options)
        self.output = output

    def __call__(self, inputs: Array, **options: Any) -> Output:  # noqa: ANN401 - of several types
        """Score the classes of what the embedding takes: an output with logits `[..., C]`.

        For a mask, a vector that the pooling prepends is token 0. A mean excludes the padding by
        `lengths`, whatever the mask. Raises a ValueError for positions.
        """
        context = self._context(options)
        if context.positions is not None:
            raise ValueError("a classifier counts positions from 0: give no positions")
        embedding_rng, layers_rng = split_rng(context.rng, 2)
        vectors = self.embedding(inputs, rng=embedding_rng)
        vectors, lengths = self.pooling.before(vectors, context.lengths)
        context = replace(context, lengths=lengths, rng=layers_rng)
        output = apply_layer(self.encoder, vectors, context)
        logits = self.output(self.pooling(output.features, lengths))
        return output._replace(logits=context.shard(logits, "classes"))
