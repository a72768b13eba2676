"""Embeddings of tokens, positions and image patches, and scores of a vocabulary."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from attention.modules.config import TransformerConfig
from attention.modules.layers import dot_general, drop, linear, make_table, take_rows
from attention.modules.numbers import check_dtype, check_number, check_rate
from attention.modules.positions import POSITIONS, resolve_scale


class Embedding(nnx.Module):
    """A table of V token vectors plus positions; as a tied output, it scores the vocabulary.

    By default the entries have variance 1/D, so that the embeddings times √D (Vaswani et al. 2017,
    section 3.4) and the logits of a tied table both have unit variance.
    """

    def __init__(
        self,
        vocab_size: int | None,
        width: int,
        *,
        positions: Callable[[Array, int], Array] | None = None,
        num_token_types: int = 0,
        scale: float | str = "sqrt_width",
        norm: Callable[[Array], Array] | None = None,
        max_length: int | None = None,
        output_bias: bool = False,
        logit_scale: float = 1.0,
        logit_softcap: float | None = None,
        dropout: float = 0.0,
        dtype: DTypeLike | None = None,
        **options: Any,  # noqa: ANN401 - of several types
    ) -> None:
        """Make the tables.

        Args:
            vocab_size: V; None if each call is given the table of another embedding.
            width: D.
            positions: `(positions [..., T], D) -> [..., T, D]`, added to the embeddings.
            num_token_types: number of token type embeddings, as of BERT.
            scale: factor of the token vectors, "sqrt_width" for √D.
            norm: applied to the sum.
            max_length: number of positions, if they are added to the embeddings; else the number of
                tokens that `generate` caches. Any if None.
            output_bias: whether `unembed` adds a learned bias.
            logit_scale: factor of the logits of `unembed`.
            logit_softcap: bound c of these logits, c·tanh(logits / c); none if None.
            dropout: rate on the embeddings.
            dtype: of the embeddings; that of the tables if None.
            options: `init`, `param_dtype` and `rngs` of the tables, as in `make_table`.

        Raises:
            ValueError: a rate outside [0, 1), or a factor or bound that is not finite and above 0.
        """
        check_rate("dropout", dropout)
        check_number("logit_scale", logit_scale, above=0)
        check_number("logit_softcap", logit_softcap, above=0)
        check_dtype("dtype", dtype)

        def make(number: int | None, name: str) -> nnx.Param | None:
            return make_table((number, width), (name, "embed"), **options) if number else None

        self.tokens = make(vocab_size, "vocab")
        self.token_types = make(num_token_types, "token_types")
        kind = options.get("param_dtype", jnp.float32)
        zeros = jnp.zeros(vocab_size, kind) if output_bias else None
        self.bias = None if zeros is None else nnx.Param(zeros, axes=("vocab",))
        self.positions, self.norm = positions, norm
        self.width, self.scale, self.max_length = width, resolve_scale(scale, width), max_length
        self.logit_scale, self.logit_softcap = logit_scale, logit_softcap
        self.dropout, self.dtype = dropout, dtype

    @classmethod
    def from_config(
        cls, vocab_size: int | None, config: TransformerConfig, *, rngs: nnx.Rngs
    ) -> "Embedding":
        """Make the embedding of a Transformer; V is None if its table is another's."""
        embed = POSITIONS[config.positions].embed
        is_tied = config.tie in ("output", "all")
        return cls(
            vocab_size,
            config.width,
            positions=embed and embed(config, rngs),
            num_token_types=config.num_token_types,
            scale=config.embedding_scale,
            norm=config.make_norm(rngs) if config.embedding_norm else None,
            max_length=config.max_length,
            output_bias=config.output_bias and is_tied and vocab_size is not None,
            logit_scale=config.logit_scale,
            logit_softcap=config.logit_softcap,
            dropout=config.dropout,
            init=config.initializer("embedding_init"),
            dtype=config.dtype,
            param_dtype=config.param_dtype,
            rngs=rngs,
        )

    def __call__(
        self,
        tokens: Array,
        *,
        positions: Array | None = None,
        token_types: Array | None = None,
        table: Array | None = None,
        rng: Array | None = None,
    ) -> Array:
        """Map token ids `[..., T]` to vectors `[..., T, D]`; an id out of range gives NaN.

        Args:
            tokens: the ids.
            positions: `[..., T]`; counted from 0 by default. Encodings that are not added to
                embeddings do not use them.
            token_types: `[..., T]`, numbers of token types; 0 by default.
            table: `[V, D]`, of another embedding.
            rng: random key of dropout; None turns dropout off.

        Raises:
            ValueError: more tokens than positions.
        """
        self.check_length(tokens.shape[-1])
        vectors = take_rows(self.tokens[...] if table is None else table, tokens) * self.scale
        vectors = vectors if self.dtype is None else vectors.astype(self.dtype)
        vectors = add_positions(vectors, self.positions, positions)
        if self.token_types is not None:
            numbers = jnp.zeros_like(tokens) if token_types is None else jnp.asarray(token_types)
            vectors += take_rows(self.token_types[...], numbers).astype(vectors.dtype)
        vectors = vectors if self.norm is None else self.norm(vectors)
        return drop(vectors, self.dropout, rng)

    @property
    def vocab_size(self) -> int | None:
        """V; None without a table of tokens."""
        return None if self.tokens is None else self.tokens.shape[0]

    @property
    def num_positions(self) -> int | None:
        """Largest number of positions if they are added to embeddings; None if they never end."""
        if self.positions is None:
            return None
        return getattr(self.positions, "max_length", self.max_length)

    def check_length(self, length: int, what: str = "a sequence of {} tokens") -> None:
        """Raise a ValueError that names `what` if the length exceeds the number of positions."""
        if self.num_positions is not None and length > self.num_positions:
            raise ValueError(
                f"{what.format(length)} is longer than max_length={self.num_positions}"
            )

    def unembed(self, features: Array) -> Array:
        """Map features `[..., D]` to logits `[..., V]` by the transposed table."""
        matrix = self.tokens[...].T.astype(features.dtype)
        contracted = ((features.ndim - 1,), (0,))
        logits = dot_general(features, matrix, (contracted, ((), ())))
        logits = logits if self.logit_scale == 1 else logits * self.logit_scale
        if self.bias is not None:
            logits += jnp.broadcast_to(self.bias[...], logits.shape).astype(logits.dtype)
        cap = self.logit_softcap
        return logits if cap is None else cap * jnp.tanh(logits / cap)


class PatchEmbedding(nnx.Module):
    """One vector per square patch of an image (Dosovitskiy et al. 2021, equation 1).

    Patches count from the upper left corner, row by row.
    """

    def __init__(
        self,
        width: int,
        *,
        image_shape: Sequence[int],
        patch_size: int,
        positions: Callable[[Array, int], Array] | None = None,
        dropout: float = 0.0,
        **options: Any,  # noqa: ANN401 - of several types
    ) -> None:
        """Make the projection of a patch to D numbers.

        Args:
            width: D.
            image_shape: height, width and channels.
            patch_size: pixels on a side of a patch; must divide height and width.
            positions: as in `Embedding`.
            dropout: rate on the vectors.
            options: of the projection, as in `linear`.

        Raises:
            ValueError: patches that do not fill the image, or a rate outside [0, 1).
        """
        check_rate("dropout", dropout)
        height, across, channels = image_shape
        if patch_size < 1 or height % patch_size or across % patch_size:
            raise ValueError(
                f"patches of {patch_size}x{patch_size} pixels do not fill an image of "
                f"{height}x{across}: patch_size must divide both sides"
            )
        self.num_patches = (height // patch_size) * (across // patch_size)
        pixels = patch_size * patch_size * channels
        self.projection = linear({"pixels": pixels}, {"embed": width}, **options)
        self.image_shape, self.patch_size = (height, across, channels), patch_size
        self.positions, self.dropout = positions, dropout

    @classmethod
    def from_config(
        cls, config: TransformerConfig, *, rngs: nnx.Rngs, **sizes: object
    ) -> "PatchEmbedding":
        """Make the embedding of a Transformer; the sizes are `image_shape` and `patch_size`.

        Raises:
            ValueError: patches that do not fill the image, or more of them than positions.
        """
        embed = POSITIONS[config.positions].embed
        made = cls(
            config.width,
            positions=embed and embed(config, rngs),
            use_bias=config.use_bias,
            dropout=config.dropout,
            **sizes,
            **config.linear_options(rngs),
        )
        number, longest = made.num_patches, config.max_length
        if embed and number > longest:
            raise ValueError(f"an image of {number} patches is longer than max_length={longest}")
        return made

    def __call__(self, images: Array, *, rng: Array | None = None) -> Array:
        """Map images `[..., height, width, channels]` to vectors `[..., S, D]`.

        Raises:
            ValueError: images of another shape than that of `__init__`.
        """
        if images.shape[-3:] != self.image_shape:
            expected = f"height, width and channels {self.image_shape}"
            raise ValueError(f"images must have {expected}, got {images.shape[-3:]}")
        vectors = self.projection(patches(images, self.patch_size))
        return drop(add_positions(vectors, self.positions), self.dropout, rng)


def patches(images: Array, size: int) -> Array:
    """Cut images `[..., height, width, channels]` into patches `[..., S, size²·channels]`."""
    *batch, height, width, channels = images.shape
    down, across = height // size, width // size
    squares = images.reshape(*batch, down, size, across, size, channels)
    return jnp.swapaxes(squares, -4, -3).reshape(*batch, down * across, size * size * channels)


def add_positions(
    vectors: Array, encoding: Callable[[Array, int], Array] | None, positions: Array | None = None
) -> Array:
    """Add the encoding of positions `[..., T]`, counted from 0 by default, to `[..., T, D]`."""
    if encoding is None:
        return vectors
    if positions is None:
        positions = jnp.arange(vectors.shape[-2], dtype=jnp.int32)
    added = encoding(positions, vectors.shape[-1]).astype(vectors.dtype)
    return vectors + jnp.broadcast_to(added, vectors.shape)


def make_output(
    config: TransformerConfig | None, vocab_size: int | None, rngs: nnx.Rngs | None
) -> nnx.LinearGeneral | None:
    """Make the layer that scores the vocabulary, None if the embedding does (`config.tie`)."""
    if config is None or config.tie in ("output", "all"):
        return None
    options = {"use_bias": config.output_bias} | config.linear_options(rngs)
    return linear({"embed": config.width}, {"vocab": vocab_size}, **options)
