"""A decoding step with a cache: it reads one token, and remembers those before."""

from collections.abc import Callable
from typing import TypeVar

import jax.numpy as jnp
from jax import Array

State = TypeVar("State")


def cached(
    read: Callable[[Array, State], tuple[Array, State]],
) -> Callable[[State, Array], tuple[Array, State]]:
    """Makes a step of a function that reads tokens and remembers them.

    Args:
        read: `(tokens [B, T], cache) -> (logits [B, T, V], cache)`, as a language model does by
            `lambda tokens, cache: model(tokens, cache=cache)`.

    Returns:
        The step for `greedy` and its like, whose state is the cache.
    """

    def step(cache: State, tokens: Array) -> tuple[Array, State]:
        logits, cache = read(tokens[:, None], cache)
        return logits[:, 0], cache

    return step


def prefill(
    read: Callable[[Array, State, Array], tuple[Array, State]],
    cache: State,
    prompts: Array,
    lengths: Array,
) -> tuple[State, Array]:
    """Reads prompts at once, up to the token that each row goes on from.

    Args:
        read: `(tokens [B, T], cache, lengths [B]) -> (logits, cache)`, of which `lengths` tokens
            in each row are no padding.
        cache: what `read` knows before.
        prompts: `[B, T]`, padded behind.
        lengths: `[B]`, at least 1: how many tokens of each row are no padding.

    Returns:
        The state and the start `[B]` of a decoding loop: the last token of each prompt is the first
        that its step reads.
    """
    _, cache = read(prompts, cache, lengths - 1)
    return cache, jnp.take_along_axis(prompts, lengths[:, None] - 1, axis=1)[:, 0]
