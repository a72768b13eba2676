"""Reads target tokens one after the other, with an eye on the source."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from attention.modules.recurrent.attention import ATTENTIONS, Found
from attention.modules.recurrent.cells import CELLS, Carry, hold, time_first
from attention.modules.recurrent.config import RecurrentConfig
from attention.modules.recurrent.memory import Memory
from attention.modules.recurrent.steps import STEPS
from attention.primitives.cache import check_lengths
from attention.primitives.masks import Mask


class DecoderState(NamedTuple):
    """All that a decoder remembers of what it read: a cache that does not grow.

    Attributes:
        carry: of the cell, `[..., F]`.
        fed: `[..., F]`, what the last step hands on; `[..., 0]` where nothing is handed on.
        lengths: int32 `[...]`, tokens read. What a row that has read none goes on from is in the
            memory of its source and not here.
    """

    carry: Carry
    fed: Array
    lengths: Array


class RecurrentDecoder(nnx.Module):
    """A recurrent cell that begins with a summary of the source and looks at it at every step."""

    def __init__(self, config: RecurrentConfig, *, rngs: nnx.Rngs) -> None:
        """Makes the attention and the step."""
        self.attention = ATTENTIONS[config.attention](config.hidden, rngs=rngs)
        context_width = self.attention.context_width
        self.step = STEPS[config.attention](config, context_width, rngs=rngs)
        self.cell = config.cell
        self.hidden = config.hidden

    def __call__(
        self,
        inputs: Array,
        memory: Memory,
        *,
        memory_mask: Mask | None,
        cache: DecoderState | None = None,
        lengths: ArrayLike | None = None,
        returning: Collection[str] = (),
    ) -> tuple[Array, dict[str, Found]] | tuple[Array, dict[str, Found], DecoderState]:
        """Maps inputs `[..., T, D]` to features `[..., T, features_width]`.

        Args:
            inputs: `[..., T, D]`.
            memory: of an encoder; or what `remember` made of it.
            memory_mask: who may attend to whom in the memory; None is everyone, padding too.
            cache: of `new_cache`, what was read before the inputs.
            lengths: with a cache, `[...]`: how many of the T inputs of each row are no padding.
            returning: what attention shall return besides, as in `attention.attend`.

        Returns:
            The features, and what was asked for as `{"cross": {name: [1, ...]}}`; with a cache,
            the new cache too.

        Raises:
            ValueError: lengths without a cache, or outside [0, T].
            TypeError: lengths that are not integers.
        """
        if cache is None and lengths is not None:
            raise ValueError("lengths says how much a cache shall read, and no cache is given")
        memory = self.remember(memory)
        state = self._begin(memory)
        if cache is not None:
            state = hold(cache.lengths == 0, state, cache)
        source_positions = jnp.arange(memory.annotations.shape[-2], dtype=jnp.int32)

        def step(
            state: DecoderState, token: tuple[Array, Array | None]
        ) -> tuple[DecoderState, tuple[Array, Found]]:
            inputs, reads = token
            extras: Found = {}

            def look(query: Array) -> Array:
                nonlocal extras
                context, extras = self.attention(
                    query,
                    memory,
                    mask=memory_mask,
                    positions=(state.lengths[..., None], source_positions),
                    returning=returning,
                )
                return context

            carry, fed, features = self.step(state.carry, state.fed, inputs, look)
            after = DecoderState(carry, fed, state.lengths + 1)
            return hold(reads, after, state), (features, extras)

        reads = _reads(inputs, lengths)
        tokens = time_first(inputs, -2), time_first(reads, -1)
        state, (features, extras) = jax.lax.scan(step, state, tokens)
        batch = inputs.ndim - 2
        # One layer [1, ...], and the axis of T behind those of the batch and N.
        together = jax.tree.map(
            lambda each: jnp.moveaxis(jnp.squeeze(each, batch + 2), 0, batch + 1)[None], extras
        )
        found = jnp.moveaxis(features, 0, -2), {"cross": together}
        return found if cache is None else (*found, state)

    def new_cache(self, batch: Sequence[int]) -> DecoderState:
        """The state of a decoder that has read nothing, for these leading axes."""
        return self._empty(jnp.zeros((*batch, self.hidden), self.step.cell.dense_h.kernel.dtype))

    def remember(self, memory: Memory) -> Memory:
        """What every step would compute anew of the memory."""
        return memory if memory.key is not None else self.attention.remember(memory)

    def _begin(self, memory: Memory) -> DecoderState:
        return self._empty(memory.summary)

    def _empty(self, vector: Array) -> DecoderState:
        return DecoderState(
            carry=CELLS[self.cell].begin(vector),
            fed=jnp.zeros((*vector.shape[:-1], self.step.fed_width), vector.dtype),
            lengths=jnp.zeros(vector.shape[:-1], jnp.int32),
        )


def _reads(inputs: Array, lengths: ArrayLike | None) -> Array | None:
    """Which of the inputs `[..., T, D]` are no padding: bool `[..., T]`, None for all."""
    if lengths is None:
        return None
    *batch, num_tokens, _ = inputs.shape
    check_lengths(lengths, num_tokens)
    lengths = jnp.broadcast_to(jnp.asarray(lengths), batch)
    return jnp.subtract.outer(lengths, jnp.arange(num_tokens, dtype=lengths.dtype)) > 0
