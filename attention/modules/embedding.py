"""From token ids to vectors that know where they stand, and back to scores over the vocabulary."""

from flax import nnx
from jax import Array

from attention.modules.config import TransformerConfig
from attention.modules.dropout import drop
from attention.modules.linear import dot_general
from attention.modules.positions import SCHEMES, placed
from attention.modules.table import rows, table


class Embedding(nnx.Module):
    """A table of V token vectors plus positions; where it is tied, it scores the next token too.

    The entries start with variance 1/D, so that the embeddings times √D (Vaswani et al. 2017,
    section 3.4) and the logits of a tied table both start with unit variance. Learned positions
    are entries like the others.
    """

    def __init__(self, vocab_size: int, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        """Makes the table of `vocab_size` vectors, and one of positions if they are learned."""
        self.tokens = table((vocab_size, config.width), config.width, rngs=rngs)
        shape = SCHEMES[config.positions].add_table(config)
        self.positions = table(shape, config.width, rngs=rngs)
        self.kind = config.positions
        self.width = config.width
        self.max_length = config.max_length
        self.dropout = config.dropout

    def __call__(
        self,
        tokens: Array,
        *,
        positions: Array | None = None,
        start: Array | None = None,
        key: Array | None = None,
    ) -> Array:
        """Maps token ids to vectors.

        Args:
            tokens: ids `[..., T]`.
            positions: where they stand, `[..., T]`; counted by default.
            start: where counting starts, `[...]`; 0 by default.
            key: random key for dropout, none without.

        Returns:
            `[..., T, D]`.

        Raises:
            ValueError: a row longer than `max_length`; positions where none are added.
        """
        self.check_length(tokens.shape[-1])
        vectors = rows(self.tokens[...], tokens) * self.width**0.5
        vectors = placed(vectors, self.kind, self.positions, positions=positions, start=start)
        return drop(vectors, self.dropout, key)

    def check_length(self, length: int) -> None:
        """Checks that a sequence may be so long.

        Raises:
            ValueError: it is longer than `max_length`.
        """
        if length > self.max_length:
            raise ValueError(
                f"a sequence of {length} tokens is longer than max_length={self.max_length}"
            )

    def check_cache(self, size: int, *, ring: bool) -> None:
        """Checks that a cache may be so long, and whether it may be a ring.

        Raises:
            ValueError: it is longer than `max_length`, or a ring, which has no end, for positions
                that have one.
        """
        self.check_length(size)
        if ring and self.positions is not None:
            raise ValueError(
                f"{self.kind} positions end at max_length={self.max_length}, and a ring goes on: "
                "choose rotary positions"
            )

    def unembed(self, features: Array) -> Array:
        """Maps features `[..., D]` to logits `[..., V]` by the transposed table."""
        return dot_general(features, self.tokens[...].T, (((features.ndim - 1,), (0,)), ((), ())))
