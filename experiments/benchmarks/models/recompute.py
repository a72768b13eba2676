"""A decoding step without a cache: it recomputes the whole sequence for every token."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class ReadTokens(NamedTuple):
    """The tokens that were read.

    Attributes:
        tokens: int32 `[B, T]`, zeros from `index` on.
        index: int32 `[B]`, number of tokens that were read.
    """

    tokens: Array
    index: Array


def recompute(
    score: Callable[[Array, Array], Array], *, batch_size: int, max_length: int
) -> tuple[Callable[[ReadTokens, Array], tuple[Array, ReadTokens]], ReadTokens]:
    """Return a step that computes the logits of all tokens again, as a baseline, and its state.

    Args:
        score: `(tokens [B, max_length], index [B]) -> logits [B, V]` of the token after number
            `index`; causal, since tokens behind `index` have no meaning.
        batch_size: B.
        max_length: largest number of tokens. Logits behind it are NaN.
    """

    def step(state: ReadTokens, tokens: Array) -> tuple[Array, ReadTokens]:
        rows = jnp.arange(len(tokens), dtype=jnp.int32)
        read = state.tokens.at[rows, state.index].set(tokens.astype(jnp.int32), mode="drop")
        fits = state.index < max_length
        logits = jnp.where(fits[:, None], score(read, state.index), jnp.nan)
        return logits, ReadTokens(read, state.index + 1)

    tokens = jnp.zeros((batch_size, max_length), jnp.int32)
    return step, ReadTokens(tokens, jnp.zeros(batch_size, jnp.int32))
