"""Static word vectors: one for each word, wherever it stands."""

import jax.numpy as jnp
from flax import nnx
from jax import Array

from attention.modules.table import rows, table


class SkipGram(nnx.Module):
    """Scores whether words stand near a word (Mikolov et al. 2013, "Distributed representations").

    A word has a vector as the centre and another one as a neighbour. The first are what is kept.
    """

    def __init__(self, vocab_size: int, width: int, *, rngs: nnx.Rngs) -> None:
        """Makes both tables, `[V, D]`."""
        self.centers = table((vocab_size, width), width, rngs=rngs)
        self.neighbours = table((vocab_size, width), width, rngs=rngs)

    def __call__(self, center: Array, others: Array) -> Array:
        """Maps words and perhaps their neighbours to scores, the logits of equation 4.

        Args:
            center: ids `[...]`.
            others: ids `[..., M]`.

        Returns:
            `[..., M]`.
        """
        center, others = rows(self.centers[...], center), rows(self.neighbours[...], others)
        return jnp.einsum("...D,...MD->...M", center, others)
