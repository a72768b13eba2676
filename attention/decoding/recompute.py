"""A decoding step without a cache: it reads the whole prefix again for every token."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class Prefix(NamedTuple):
    """The tokens read so far.

    Attributes:
        tokens: `[B, T]`, zeros from `index` on.
        index: how many were read.
    """

    tokens: Array
    index: Array

    def check_capacity(self, num_tokens: int) -> None:
        """Checks that so many tokens fit into the longest prefix.

        Raises:
            ValueError: they do not.
        """
        longest = self.tokens.shape[1]
        if num_tokens > longest:
            raise ValueError(f"a prefix of at most {longest} tokens has no room for {num_tokens}")


def recompute(
    score: Callable[[Array, Array], Array], *, batch_size: int, max_length: int
) -> tuple[Callable[[Prefix, Array], tuple[Array, Prefix]], Prefix]:
    """Makes a step of a function that scores prefixes.

    Args:
        score: `(tokens [B, max_length], index) -> logits [B, V]` of the token after `index`; it
            must be causal, since what stands behind `index` has no meaning.
        batch_size: B.
        max_length: the longest prefix.

    Returns:
        The step for `greedy` and the state it starts from. Tokens after `max_length` score NaN.
    """

    def step(prefix: Prefix, tokens: Array) -> tuple[Array, Prefix]:
        # Past the end there is no place for the token: NaN, which nobody overlooks.
        fits = prefix.index < max_length
        tokens = tokens.astype(prefix.tokens.dtype)
        read = jax.lax.dynamic_update_index_in_dim(prefix.tokens, tokens, prefix.index, axis=1)
        return jnp.where(fits, score(read, prefix.index), jnp.nan), Prefix(read, prefix.index + 1)

    return step, Prefix(jnp.zeros((batch_size, max_length), jnp.int32), jnp.int32(0))
