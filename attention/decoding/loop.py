"""The one loop: hear what the step says of the last tokens, choose the next, until all is said."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from attention.decoding.rules import Rules
from attention.primitives.precision import wide

State = TypeVar("State")
Search = TypeVar("Search")
Step = Callable[[State, Array], tuple[Array, State]]
Observe = Callable[[State], Any]
Hear = Callable[[Any, Any], tuple[Array, Any, Any]]


class Strategy(Protocol[Search]):
    """A way to choose tokens; what it must remember is a pytree of its own, the search."""

    def select(
        self, search: Search, index: Array, logits: Array, observed: object
    ) -> tuple[Search, object]:
        """Chooses token number `index`: returns the search and what the step hears next."""

    def unfinished(self, search: Search) -> Array:
        """Which rows go on, `[B]`."""


class _Progress(NamedTuple):
    index: Array
    last: object
    state: object
    search: object


def loop(
    hear: Hear, strategy: Strategy[Search], state: object, last: object, search: Search, room: int
) -> Search:
    """Hears and chooses until no row goes on, or there is no more room.

    Args:
        hear: `(state, last) -> (logits, observed, state)`.
        strategy: what chooses.
        state: what the step knows before the first token.
        last: what the step hears first.
        search: what the strategy knows before the first token.
        room: the most tokens that are chosen.

    Returns:
        The search at the end.
    """

    def extend(progress: _Progress) -> _Progress:
        logits, observed, state = hear(progress.state, progress.last)
        search, last = strategy.select(progress.search, progress.index, logits, observed)
        return _Progress(progress.index + 1, last, state, search)

    def goes_on(progress: _Progress) -> Array:
        return strategy.unfinished(progress.search).any() & (progress.index < room)

    first = _Progress(jnp.int32(0), last, state, search)
    return jax.lax.while_loop(goes_on, extend, first).search


def resolve_room(state: object, rules: Rules, room: int | None) -> int:
    """How many tokens are followed: `room`, or `max_length` where nobody says less.

    Raises:
        ValueError: less than one token or more than `max_length`; or a part of the state that knows
            how much it can read (a cache does) and can read less, from its own `check_room`.
    """
    room = rules.max_length if room is None else room
    if not 1 <= room <= rules.max_length:
        raise ValueError(f"room must be between 1 and max_length {rules.max_length}, got {room}")

    def knows(part: object) -> bool:
        return hasattr(part, "check_room")

    for part in jax.tree.leaves(state, is_leaf=knows):
        if knows(part):
            part.check_room(room)
    return room


def hearing(step: Step, observe: Observe) -> Hear:
    """The step, with logits in float32 at least, and what is observed in its state."""

    def hear(state: State, tokens: Array) -> tuple[Array, object, State]:
        logits, state = step(state, tokens)
        (logits,) = wide(logits)
        return logits, observe(state), state

    return hear


def nothing(state: object) -> None:
    """Observes nothing."""
