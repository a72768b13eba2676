"""Ways for a decoder to look at its source: from its state to a context, one token at a time."""

from collections.abc import Collection

import jax.numpy as jnp
from flax import nnx
from jax import Array

from attention.modules.linear import Linear
from attention.modules.recurrent.memory import Memory
from attention.modules.table import table
from attention.primitives.additive import additive_attention
from attention.primitives.attend import attend
from attention.primitives.masks import Mask

Found = dict[str, Array]


class AdditiveAttention(nnx.Module):
    """A small network compares state and annotation (Bahdanau et al. 2015, appendix A.1.2)."""

    def __init__(self, hidden: int, *, rngs: nnx.Rngs) -> None:
        """Makes the projections W of states and U of annotations, and the vector v."""
        self.query = Linear(hidden, hidden, use_bias=False, rngs=rngs)
        self.key = Linear(2 * hidden, hidden, rngs=rngs)
        self.vector = table((1, hidden), hidden, rngs=rngs)
        self.context_width = 2 * hidden

    def remember(self, memory: Memory) -> Memory:
        """The memory with the projections of its annotations, which are the same at every step."""
        return memory._replace(key=self.key(memory.annotations))

    def __call__(
        self,
        state: Array,
        memory: Memory,
        *,
        mask: Mask | None,
        positions: tuple[Array, Array],
        returning: Collection[str],
    ) -> tuple[Array, Found]:
        """Looks from a state `[..., F]`.

        Args:
            state: `[..., F]`.
            memory: that was remembered.
            mask: which positions of the source a position of the target may see.
            positions: of the one query `[..., 1]` and of the keys `[S]`.
            returning: as in `attention.attend`.

        Returns:
            The context `[..., 2·F]`, and what was asked for with N = T = 1.
        """
        found = additive_attention(
            _one(self.query(state)),
            memory.key[..., None, :],
            memory.annotations[..., None, :],
            self.vector[...],
            mask=mask,
            positions=positions,
            returning=returning,
        )
        return _context(found, returning)


class MultiplicativeAttention(nnx.Module):
    """A product compares state and annotation (Luong et al. 2015, equation 8, "general")."""

    def __init__(self, hidden: int, *, rngs: nnx.Rngs) -> None:
        """Makes the matrix W of the product sᵀ W h."""
        self.query = Linear(hidden, 2 * hidden, use_bias=False, rngs=rngs)
        self.context_width = 2 * hidden

    def remember(self, memory: Memory) -> Memory:
        """The memory as it is: the product is taken with the annotations themselves."""
        return memory

    def __call__(
        self,
        state: Array,
        memory: Memory,
        *,
        mask: Mask | None,
        positions: tuple[Array, Array],
        returning: Collection[str],
    ) -> tuple[Array, Found]:
        """As `AdditiveAttention`."""
        annotations = memory.annotations[..., None, :]
        found = attend(
            _one(self.query(state)),
            annotations,
            annotations,
            mask=mask,
            positions=positions,
            scale=1.0,
            returning=returning,
        )
        return _context(found, returning)


class NoAttention(nnx.Module):
    """Whatever the state, the context is the summary of the source (Cho et al. 2014)."""

    def __init__(self, hidden: int, *, rngs: nnx.Rngs) -> None:
        """Makes nothing."""
        del rngs
        self.context_width = hidden

    def remember(self, memory: Memory) -> Memory:
        """The memory as it is."""
        return memory

    def __call__(
        self,
        state: Array,
        memory: Memory,
        *,
        mask: Mask | None,
        positions: tuple[Array, Array],
        returning: Collection[str],
    ) -> tuple[Array, Found]:
        """The summary `[..., F]`; the encoder has left out already what a mask would hide.

        Raises:
            ValueError: something to return besides.
        """
        del state, mask, positions
        if returning:
            raise ValueError(
                f'a decoder with attention="none" has no {", ".join(returning)} to return'
            )
        return memory.summary, {}


ATTENTIONS = {
    "additive": AdditiveAttention,
    "multiplicative": MultiplicativeAttention,
    "none": NoAttention,
}


def _one(query: Array) -> Array:
    """[..., H] -> [..., T, N, H] of one query with one head."""
    return query[..., None, None, :]


def _context(found: Array | tuple[Array, Found], returning: Collection[str]) -> tuple[Array, Found]:
    output, extras = found if returning else (found, {})
    return jnp.squeeze(output, (-3, -2)), extras
