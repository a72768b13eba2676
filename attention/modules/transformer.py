"""Blocks of a Transformer, and stacks of them: encoder and decoder."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax import Array

from attention.modules.block import Block, Residual
from attention.modules.config import TransformerConfig
from attention.modules.context import (
    DEFAULT_CONTEXT,
    CacheSpec,
    Context,
    Layer,
    Output,
    and_mask,
    apply_layer,
    cached_mask,
    check_score,
    type_of,
)
from attention.modules.dropout import split_rng
from attention.modules.layers import Layers
from attention.modules.linear import named
from attention.modules.positions import POSITIONS
from attention.modules.sublayers import FEED_FORWARDS, MIXERS, cross_attention
from attention.primitives import masks
from attention.primitives.cache import check_lengths
from attention.primitives.choice import did_you_mean
from attention.primitives.scores import Score

_NO_CACHE_OF_A_DECODER = "a decoder needs a cache made by new_cache of this model, got {}"

MakeLayer = Callable[[int, nnx.Rngs], Layer]


def transformer_block(config: TransformerConfig, *, cross: bool = False, rngs: nnx.Rngs) -> Block:
    """Make a block: self-attention, cross-attention if `cross`, and a feed-forward layer.

    The config may omit the cross-attention, and replace the other two.
    """

    def residual(sublayer: Layer) -> Residual:
        is_both = config.norm_placement == "both"
        return Residual(
            config.make_norm(rngs),
            sublayer,
            placement="pre" if is_both else config.norm_placement,
            output_norm=config.make_norm(rngs) if is_both else None,
            dropout=config.dropout,
        )

    make_mixer = named("mixer", config.mixer, "MIXERS", MIXERS)
    sublayers = {"self_attention": residual(make_mixer(config, rngs))}
    if cross and config.cross_attention:
        sublayers["cross_attention"] = residual(cross_attention(config, rngs))
    make_feed_forward = named("feed_forward", config.feed_forward, "FEED_FORWARDS", FEED_FORWARDS)
    return Block(**sublayers, feed_forward=residual(make_feed_forward(config, rngs)))


class Encoder(nnx.Module):
    """A stack of layers, a norm after it, and a score function that its layers share."""

    def __init__(
        self,
        layers: Layer,
        *,
        norm: Callable[[Array], Array] | None = None,
        score: Callable[[], Score] | None = None,
        cross: bool = False,
    ) -> None:
        """Assemble an encoder.

        Args:
            layers: such as `Layers`.
            norm: of the output; pre-norm blocks need one.
            score: returns a score function of all self-attention, for instance `RelativeScores`.
            cross: whether layers attend to an encoder output.
        """
        check_score(score)
        self.cross = cross
        self.layers = layers
        self.norm = norm
        self.score = score

    @classmethod
    def from_config(
        cls, config: TransformerConfig, *, rngs: nnx.Rngs, make_layer: MakeLayer | None = None
    ) -> "Encoder":
        """Make an encoder of `config.encoder_layers` blocks.

        Args:
            config: of the blocks.
            rngs: source of the initial parameters.
            make_layer: `(index, rngs)` to a layer, in place of `transformer_block`.
        """
        return cls(**_parts(config, make_layer, config.encoder_layers, rngs=rngs))

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map `[..., T, D]` to `[..., T, D]`.

        Raises:
            ValueError: an encoder output without `cross`, lengths outside [0, T], and as `Layers`.
            TypeError: lengths that are not integers.
        """
        if not self.cross and not (context.encoder_output is context.encoder_mask is None):
            raise ValueError(
                f"{type(self).__name__} with cross=False takes no encoder output and no mask of it"
            )
        if context.lengths is not None:
            check_lengths(context.lengths, inputs.shape[-2])
        inputs = context.shard(inputs, "sequence", "embed")
        if self.score is not None:
            context = replace(context, score=(*context.score, self.score()))
        output = apply_layer(self.layers, inputs, context)
        return output if self.norm is None else output._replace(features=self.norm(output.features))


class DecoderCache(NamedTuple):
    """The state of a decoder between steps.

    Attributes:
        layers: cache of each layer.
        lengths: int32 `[...]`, number of tokens that each row has read.
    """

    layers: Any
    lengths: Array


class Decoder(Encoder):
    """A stack whose self-attention is causal, whatever other mask is given.

    With `causal=False` only the given mask decides, and a cache lets a token attend to those read
    before it and with it.
    """

    def __init__(self, layers: Layer, *, causal: bool = True, **options: object) -> None:
        """Assemble a decoder.

        Args:
            layers: such as `Layers`.
            causal: whether the causal mask is added to every mask.
            options: `norm`, `score` and `cross`, as in `Encoder`.
        """
        super().__init__(layers, **options)
        self.causal = causal

    @classmethod
    def from_config(
        cls,
        config: TransformerConfig,
        *,
        causal: bool = True,
        cross: bool = True,
        rngs: nnx.Rngs,
        make_layer: MakeLayer | None = None,
    ) -> "Decoder":
        """Make a decoder of `config.decoder_layers` blocks, with cross-attention if `cross`.

        The other arguments are those of `Decoder` and of `Encoder.from_config`.

        Raises:
            ValueError: `cross` without cross-attention in any layer.
        """
        kinds = {"causal": causal, "cross": cross}
        parts = _parts(config, make_layer, config.decoder_layers, **kinds, rngs=rngs)
        return cls(**parts, **kinds)

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map `[..., T, D]` to `[..., T, D]`; `context.cache` is a `DecoderCache`.

        Raises:
            ValueError: positions beside a cache, a cache of another model, and as `Encoder`.
        """
        cache, num_tokens = context.cache, inputs.shape[-2]
        if cache is not None:
            context = replace(context, mask=cached_mask(context.mask))
        if self.causal:
            context = replace(context, mask=and_mask(masks.causal(), context.mask))
        elif cache is not None and context.mask is None:
            # Self-attention with a cache and without a mask would be causal.
            context = replace(context, mask=masks.full())
        if cache is None:
            return super().__call__(inputs, context=context)
        if not isinstance(cache, DecoderCache):
            raise ValueError(_NO_CACHE_OF_A_DECODER.format(type_of(cache)))
        positions = next_positions(inputs.shape[:-1], context.positions, cache)
        context = replace(context, positions=positions, cache=cache.layers)
        output = super().__call__(inputs, context=context)
        more = num_tokens if context.lengths is None else context.lengths
        lengths = cache.lengths + jnp.asarray(more, jnp.int32)
        return output._replace(cache=DecoderCache(output.cache, lengths))

    def new_cache(self, spec: CacheSpec) -> DecoderCache:
        """Return a cache that contains no tokens."""
        return DecoderCache(self.layers.new_cache(spec), jnp.zeros(spec.batch, jnp.int32))


def _parts(
    config: TransformerConfig,
    make_layer: MakeLayer | None,
    n: int,
    *,
    causal: bool = False,
    cross: bool = False,
    rngs: nnx.Rngs,
) -> dict[str, Any]:
    """Return layers, norm and score of a stack."""
    items: int | list[TransformerConfig] = n
    if make_layer is None:
        items = [config.layer(index) for index in range(n)]
        if cross and n and not any(each.cross_attention for each in items):
            raise ValueError(
                "cross_attention=False in every layer ignores the encoder output: make the decoder "
                "with cross=False"
            )

        def make_layer(config: TransformerConfig, rngs: nnx.Rngs) -> Block:
            return transformer_block(config, cross=cross, rngs=rngs)

    score = POSITIONS[config.positions].score
    return {
        "layers": Layers(make_layer, items, rngs=rngs, scan=config.scan, remat=config.remat),
        # The features of post-norm blocks are normalised already.
        "norm": config.make_norm(rngs) if config.norm_placement != "post" else None,
        "score": score and score(config, causal, rngs),
    }


def embed_and_apply(
    embedding: Callable[..., Array],
    stack: Encoder,
    tokens: Array,
    *,
    embedding_positions: Array | None = None,
    **options: object,
) -> Output:
    """Embed tokens `[..., T]` and map them with a stack to features `[..., T, D]`.

    Args:
        embedding: such as `Embedding`.
        stack: an encoder or a decoder.
        tokens: ids.
        embedding_positions: int32 `[..., T]`, of the embeddings alone. Texts packed into a row need
            them, because the masks count all tokens of the row. None for the `positions`.
        options: fields of `Context`.

    Raises:
        TypeError: an option that is not a field.
        ValueError: more tokens than `max_length`; positions beside a cache; and as the stack.
    """
    known = {each.name for each in fields(Context)}
    for name in options:
        if name not in known:
            raise TypeError(f"a model has no argument {name!r}{did_you_mean(name, known)}")
    context = Context(**options)
    embedding_rng, layers_rng = split_rng(context.rng, 2)
    positions = context.positions if embedding_positions is None else embedding_positions
    positions = next_positions(tokens.shape, positions, context.cache)
    inputs = embedding(tokens, positions=positions, rng=embedding_rng)
    return apply_layer(stack, inputs, replace(context, rng=layers_rng))


def next_positions(
    shape: tuple[int, ...], positions: Array | None, cache: DecoderCache | None
) -> Array | None:
    """Return the positions of tokens `[..., T]` that follow those in a cache; else, as given.

    Raises:
        ValueError: positions beside a cache, a cache without lengths or for another batch.
    """
    if cache is None:
        return positions
    if not hasattr(cache, "lengths"):
        raise ValueError(_NO_CACHE_OF_A_DECODER.format(type_of(cache)))
    if positions is not None:
        raise ValueError("a cache counts the positions of its tokens: give no positions")
    *batch, num_tokens = shape
    if cache.lengths.shape != tuple(batch):
        raise ValueError(
            f"this cache is for a batch of shape {cache.lengths.shape}, got {tuple(batch)}"
        )
    return jnp.add.outer(cache.lengths, jnp.arange(num_tokens, dtype=jnp.int32))
