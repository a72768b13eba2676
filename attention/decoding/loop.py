"""The one loop: score the next tokens, choose one for each row, until all rows have ended."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from attention.primitives.precision import wide

State = TypeVar("State")
Search = TypeVar("Search")
Step = Callable[[State, Array], tuple[Array, State]]
Observe = Callable[[State], Any]
Predict = Callable[[Any, Any], tuple[Array, Any, Any]]


class Strategy(Protocol[Search]):
    """A way to choose tokens; what it must remember is a pytree of its own, the search."""

    def select(
        self, search: Search, index: Array, logits: Array, observed: object
    ) -> tuple[Search, object]:
        """Chooses token number `index [B]`: returns the search and what the step reads next."""

    def unfinished(self, search: Search) -> Array:
        """Which rows go on, `[B]`."""


class Progress(NamedTuple):
    """How far rows have come.

    Attributes:
        index: how many tokens each was followed for, `[B]`.
        last: what the step reads of each next.
        state: what the step knows of each.
        search: what the strategy knows of each.
    """

    index: Array
    last: Any
    state: Any
    search: Any


def goes_on(strategy: Strategy, progress: Progress, room: int) -> Array:
    """Which rows go on, `[B]`: they have not ended, and have room for another token."""
    return strategy.unfinished(progress.search) & (progress.index < room)


def loop(
    predict: Predict, strategy: Strategy, progress: Progress, room: int, enough: ArrayLike
) -> Progress:
    """Predicts and chooses until enough rows do not go on.

    Args:
        predict: `(state, last) -> (logits, observed, state)`.
        strategy: what chooses.
        progress: of each row, which need not have come equally far.
        room: the most tokens that a row is followed for.
        enough: how many rows.

    Returns:
        How far they have come.
    """

    def extend(progress: Progress) -> Progress:
        logits, observed, state = predict(progress.state, progress.last)
        search, last = strategy.select(progress.search, progress.index, logits, observed)
        # A row without room must not end any more: it is given up, however long others go on.
        has_room = progress.index < room
        search = jax.tree.map(partial(_where_rows, has_room), search, progress.search)
        return Progress(progress.index + 1, last, state, search)

    def too_few_ended(progress: Progress) -> Array:
        return jnp.sum(~goes_on(strategy, progress, room), dtype=jnp.int32) < enough

    return jax.lax.while_loop(too_few_ended, extend, progress)


def _where_rows(rows: Array, new: Array, old: Array) -> Array:
    return jnp.where(jnp.expand_dims(rows, tuple(range(1, new.ndim))), new, old)


def predicting(step: Step, observe: Observe) -> Predict:
    """The step, with logits in float32 at least, and what is observed in its state.

    Raises:
        ValueError: logits of another batch, as of a step that closes over all rows of a `Queue`.
    """

    def predict(state: State, tokens: Array) -> tuple[Array, object, State]:
        logits, state = step(state, tokens)
        if logits.shape[:-1] != tokens.shape:
            raise ValueError(
                f"a step scores the vocabulary for each of the tokens {tokens.shape} that it "
                f"reads, got logits {logits.shape}"
            )
        (logits,) = wide(logits)
        return logits, observe(state), state

    return predict


def nothing(state: object) -> None:
    """Observes nothing."""
