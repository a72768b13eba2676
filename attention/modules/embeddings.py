"""Embeddings of tokens and positions, and scores over the vocabulary by the same table."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from attention.modules.dropout import drop
from attention.modules.linear import dot_general, soft_cap
from attention.modules.positions import POSITIONS, resolve_scale
from attention.modules.table import rows, table

if TYPE_CHECKING:
    from attention.modules.config import TransformerConfig


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
        init: Initializer | None = None,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        """Make the tables.

        Args:
            vocab_size: V; None if each call is given the table of another embedding.
            width: D.
            positions: `(positions [..., T], D) -> [..., T, D]`, added to the embeddings.
            num_token_types: number of token type embeddings, as of BERT.
            scale: factor of the token vectors, "sqrt_width" for √D.
            norm: applied to the sum.
            max_length: longest sequence; any if None.
            output_bias: whether `unembed` adds a learned bias.
            logit_scale: factor of the logits of `unembed`.
            logit_softcap: bound c of these logits, c·tanh(logits / c); none if None.
            dropout: rate on the embeddings.
            init: initializer of the tables, normal with variance 1/D if None.
            dtype: of the embeddings; that of the tables if None.
            param_dtype: of the tables.
            rngs: source of the initial parameters.
        """

        def make(number: int | None, name: str) -> nnx.Param | None:
            if not number:
                return None
            shape = (number, width)
            return table(shape, (name, "embed"), init=init, dtype=param_dtype, rngs=rngs)

        self.tokens = make(vocab_size, "vocab")
        self.token_types = make(num_token_types, "token_types")
        self.positions = positions
        self.norm = norm
        self.bias = (
            nnx.Param(jnp.zeros(vocab_size, param_dtype), axes=("vocab",)) if output_bias else None
        )
        self.width = width
        self.scale = resolve_scale(scale, width)
        self.max_length = max_length
        self.logit_scale, self.logit_softcap = logit_scale, logit_softcap
        self.dropout = dropout
        self.dtype = dtype

    @classmethod
    def from_config(
        cls, vocab_size: int | None, config: "TransformerConfig", *, rngs: nnx.Rngs
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
            tokens: ids.
            positions: `[..., T]`; counted from 0 by default. Encodings that are not added to
                embeddings do not use them.
            token_types: `[..., T]`, numbers of token types; 0 by default.
            table: `[V, D]`, of another embedding.
            rng: random key of dropout; None turns dropout off.

        Raises:
            ValueError: more tokens than `max_length`.
        """
        self.check_length(tokens.shape[-1])
        vectors = rows(self.tokens[...] if table is None else table, tokens) * self.scale
        vectors = vectors if self.dtype is None else vectors.astype(self.dtype)
        if self.positions is not None:
            if positions is None:
                positions = jnp.arange(tokens.shape[-1], dtype=jnp.int32)
            added = self.positions(positions, self.width).astype(vectors.dtype)
            vectors += jnp.broadcast_to(added, vectors.shape)
        if self.token_types is not None:
            numbers = jnp.zeros_like(tokens) if token_types is None else token_types
            vectors += rows(self.token_types[...], numbers).astype(vectors.dtype)
        vectors = vectors if self.norm is None else self.norm(vectors)
        return drop(vectors, self.dropout, rng)

    @property
    def vocab_size(self) -> int | None:
        """V; None without a table of tokens."""
        return None if self.tokens is None else self.tokens.shape[0]

    @property
    def num_positions(self) -> int | None:
        """Number of learned positions; None for positions that never end."""
        return getattr(self.positions, "max_length", None)

    def check_length(self, length: int, what: str = "a sequence of {} tokens") -> None:
        """Raise a ValueError that names `what` if the length exceeds `max_length`."""
        if self.max_length is not None and length > self.max_length:
            raise ValueError(f"{what.format(length)} is longer than max_length={self.max_length}")

    def unembed(self, features: Array) -> Array:
        """Map features `[..., D]` to logits `[..., V]` by the transposed table."""
        matrix = self.tokens[...].T.astype(features.dtype)
        contracted = ((features.ndim - 1,), (0,))
        logits = dot_general(features, matrix, (contracted, ((), ())))
        logits = logits if self.logit_scale == 1 else logits * self.logit_scale
        if self.bias is not None:
            logits += jnp.broadcast_to(self.bias[...], logits.shape).astype(logits.dtype)
        return soft_cap(logits, self.logit_softcap)
