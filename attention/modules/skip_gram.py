"""Static word vectors: one per word, whatever its context."""

import jax.numpy as jnp
from flax import nnx
from jax import Array

from attention.modules.table import rows, table


class SkipGram(nnx.Module):
    """Score pairs of words as neighbours (Mikolov et al. 2013, "Distributed representations").

    Each word has one vector as a center and one as a neighbour. The vectors of centers are the word
    vectors.
    """

    def __init__(self, vocab_size: int, width: int, *, rngs: nnx.Rngs) -> None:
        """Make both tables, `[V, D]`."""
        self.centers = table((vocab_size, width), ("vocab", "embed"), rngs=rngs)
        self.neighbours = table((vocab_size, width), ("vocab", "embed"), rngs=rngs)

    def __call__(self, center: Array, others: Array) -> Array:
        """Return the logits `[..., M]` of equation 4.

        Args:
            center: ids `[...]`.
            others: ids `[..., M]`, of words that may be neighbours.
        """
        center, others = rows(self.centers[...], center), rows(self.neighbours[...], others)
        return jnp.einsum("...D,...MD->...M", center, others)
