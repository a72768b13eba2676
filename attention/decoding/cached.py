"""A decoding step with a cache: it reads one token, and remembers those before."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.cache import check_lengths

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


class Attending(NamedTuple):
    """A cache, and what the last token was read with: leaves `[B, *]`."""

    cache: object
    seen: object


def attending(
    read: Callable[[Array, State], tuple[Array, object, State]],
) -> Callable[[Attending, Array], tuple[Array, Attending]]:
    """Makes a step that also keeps what it attended to, so that each token has its alignment.

    Args:
        read: `(tokens [B, 1], cache) -> (logits [B, 1, V], seen, cache)`, of which `seen` has
            leaves `[B, *]`, for instance the weights of cross-attention.

    Returns:
        The step for `beam_search` and its like, with `observe=lambda state: state.seen`, from
        `nothing_seen` on.
    """

    def step(state: Attending, tokens: Array) -> tuple[Array, Attending]:
        logits, seen, cache = read(tokens[:, None], state.cache)
        return logits[:, 0], Attending(cache, seen)

    return step


def nothing_seen(
    read: Callable[[Array, State], tuple[Array, object, State]], cache: State, batch_size: int
) -> Attending:
    """The state that a step of `attending` starts from.

    Args:
        read: the same as there.
        cache: what `read` knows before the first token.
        batch_size: B.
    """
    tokens = jax.ShapeDtypeStruct((batch_size, 1), jnp.int32)
    _, seen, _ = jax.eval_shape(read, tokens, cache)
    return Attending(cache, jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), seen))


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

    Raises:
        TypeError: lengths that are not integers.
        ValueError: lengths outside [1, T], where that is known.
    """
    check_lengths(lengths, prompts.shape[1], least=1)
    _, cache = read(prompts, cache, lengths - 1)
    return cache, jnp.take_along_axis(prompts, lengths[:, None] - 1, axis=1)[:, 0]
