"""From token ids to vectors that know where they stand, and back to scores over the vocabulary."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from attention.modules.config import TransformerConfig
from attention.modules.dropout import drop
from attention.primitives.positions import sinusoidal


class Embedding(nnx.Module):
    """A table of V token vectors plus positions; where it is tied, it scores the next token too.

    The entries start with variance 1/D, so that the embeddings times √D (Vaswani et al. 2017,
    section 3.4) and the logits of a tied table both start with unit variance. Learned positions
    are entries like the others.
    """

    def __init__(self, vocab_size: int, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        """Makes the table of `vocab_size` vectors, and one of positions if they are learned."""
        init = jax.nn.initializers.normal(config.width**-0.5)
        self.tokens = nnx.Param(init(rngs.params(), (vocab_size, config.width)))
        self.positions = (
            nnx.Param(init(rngs.params(), (config.max_length, config.width)))
            if config.positions == "learned"
            else None
        )
        self.kind = config.positions
        self.width = config.width
        self.max_length = config.max_length
        self.dropout = config.dropout

    def __call__(
        self, tokens: Array, *, positions: Array | None = None, key: Array | None = None
    ) -> Array:
        """Maps token ids to vectors.

        Args:
            tokens: ids `[..., T]`.
            positions: where they stand, `[..., T]`; counted from 0 by default.
            key: random key for dropout, none without.

        Returns:
            `[..., T, D]`.

        Raises:
            ValueError: a row longer than `max_length`; positions where attention counts its own.
        """
        length = tokens.shape[-1]
        if length > self.max_length:
            raise ValueError(
                f"a sequence of {length} tokens is longer than max_length={self.max_length}"
            )
        vectors = _rows(self.tokens[...], tokens) * self.width**0.5
        if self.kind == "rotary" and positions is not None:
            raise ValueError("rotary positions are counted by attention, and cannot be given here")
        if self.kind != "rotary":
            places = self._places(jnp.arange(length) if positions is None else positions)
            vectors += jnp.broadcast_to(places, vectors.shape)
        return drop(vectors, self.dropout, key)

    def _places(self, positions: Array) -> Array:
        if self.kind == "sinusoidal":
            return sinusoidal(positions, self.width)
        return _rows(self.positions[...], positions) * self.width**0.5

    def unembed(self, features: Array) -> Array:
        """Maps features `[..., D]` to logits `[..., V]` by the transposed table."""
        return jnp.einsum("...D,VD->...V", features, self.tokens[...])


def _rows(table: Array, numbers: Array) -> Array:
    """Rows of a table; outside it there is NaN, which nobody overlooks, and not another row."""
    return table.at[numbers].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
