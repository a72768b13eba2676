"""Reads a source in both directions."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from attention.modules.linear import Linear
from attention.modules.recurrent.cells import CELLS, Carry, hold, time_first
from attention.modules.recurrent.config import RecurrentConfig
from attention.modules.recurrent.memory import Memory


class RecurrentEncoder(nnx.Module):
    """A recurrent cell in each direction (Bahdanau et al. 2015, section 3.2)."""

    def __init__(self, config: RecurrentConfig, *, rngs: nnx.Rngs) -> None:
        """Makes both cells, and the layer that sums up where they end."""
        build = CELLS[config.cell].build
        self.forwards = build(config.embedding_width, config.hidden, rngs=rngs)
        self.backwards = build(config.embedding_width, config.hidden, rngs=rngs)
        self.summary = Linear(2 * config.hidden, config.hidden, rngs=rngs)
        self.cell = config.cell
        self.hidden = config.hidden

    def __call__(self, inputs: Array, *, reads: Array | None) -> Memory:
        """Reads vectors.

        Args:
            inputs: `[..., S, D]`.
            reads: bool `[..., S]`, False for padding: there a cell stays in the state it is in. So
                the backward direction begins at the last token. None reads everything.
        """
        if reads is not None:
            inputs = jnp.where(reads[..., None], inputs, 0)
        there, last = self._read(self.forwards, inputs, reads, reverse=False)
        back, first = self._read(self.backwards, inputs, reads, reverse=True)
        summary = jnp.tanh(self.summary(jnp.concatenate([last, first], axis=-1)))
        return Memory(jnp.concatenate([there, back], axis=-1), summary)

    def _read(
        self,
        cell: nnx.GRUCell | nnx.OptimizedLSTMCell,
        inputs: Array,
        reads: Array | None,
        *,
        reverse: bool,
    ) -> tuple[Array, Array]:
        """The output at each token `[..., S, F]` and at the end `[..., F]`."""
        kind = CELLS[self.cell]

        def step(carry: Carry, token: tuple[Array, Array | None]) -> tuple[Carry, Array]:
            vector, reads = token
            after, _ = cell(carry, vector)
            carry = hold(reads, after, carry)
            return carry, kind.output(carry)

        begin = kind.begin(jnp.zeros((*inputs.shape[:-2], self.hidden), inputs.dtype))
        tokens = time_first(inputs, -2), time_first(reads, -1)
        carry, outputs = jax.lax.scan(step, begin, tokens, reverse=reverse)
        return jnp.moveaxis(outputs, 0, -2), kind.output(carry)
