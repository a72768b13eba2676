"""The likeliest token at every step."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

State = TypeVar("State")


class _Progress(NamedTuple):
    index: Array
    last: Array
    finished: Array
    tokens: Array
    state: object


def greedy(
    step: Callable[[State, Array], tuple[Array, State]],
    state: State,
    start: Array,
    *,
    end: int,
    pad: int,
    max_length: int,
) -> Array:
    """Says the likeliest token, hears itself say it, and goes on until every row has ended.

    Args:
        step: `(state, tokens [B]) -> (logits [B, V], state)`: reads a token, scores the next.
        state: what the step knows before the first token; any pytree.
        start: the first token of each row, `[B]`; not part of the result.
        end: the token that ends a row.
        pad: what stands after the end.
        max_length: the most tokens said, the end included.

    Returns:
        `[B, max_length]`. A row that did not end in time holds no `end`.

    Raises:
        ValueError: a `max_length` below 1.
    """
    if max_length < 1:
        raise ValueError(f"max_length must be at least 1, got {max_length}")

    def unfinished(progress: _Progress) -> Array:
        return (progress.index < max_length) & ~progress.finished.all()

    def extend(progress: _Progress) -> _Progress:
        logits, state = step(progress.state, progress.last)
        said = jnp.argmax(logits, axis=-1).astype(start.dtype)
        said = jnp.where(progress.finished, pad, said)
        return _Progress(
            index=progress.index + 1,
            last=said,
            finished=progress.finished | (said == end),
            tokens=jax.lax.dynamic_update_index_in_dim(
                progress.tokens, said, progress.index, axis=1
            ),
            state=state,
        )

    first = _Progress(
        index=jnp.int32(0),
        last=start,
        finished=jnp.zeros(start.shape, bool),
        tokens=jnp.full((*start.shape, max_length), pad, start.dtype),
        state=state,
    )
    return jax.lax.while_loop(unfinished, extend, first).tokens
