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
        """Whether any row goes on."""


class _Progress(NamedTuple):
    index: Array
    last: object
    state: object
    search: object


def loop(
    hear: Hear, strategy: Strategy[Search], state: object, last: object, search: Search
) -> Search:
    """Hears and chooses until no row goes on.

    Args:
        hear: `(state, last) -> (logits, observed, state)`.
        strategy: what chooses.
        state: what the step knows before the first token.
        last: what the step hears first.
        search: what the strategy knows before the first token.

    Returns:
        The search at the end.
    """

    def extend(progress: _Progress) -> _Progress:
        logits, observed, state = hear(progress.state, progress.last)
        search, last = strategy.select(progress.search, progress.index, logits, observed)
        return _Progress(progress.index + 1, last, state, search)

    first = _Progress(jnp.int32(0), last, state, search)
    return jax.lax.while_loop(lambda p: strategy.unfinished(p.search), extend, first).search


def check_room(state: object, rules: Rules) -> None:
    """Refuses a state with a part that knows how much it can read (a cache does) and has no room.

    Raises:
        ValueError: from the `check_room` of that part.
    """

    def knows(part: object) -> bool:
        return hasattr(part, "check_room")

    for part in jax.tree.leaves(state, is_leaf=knows):
        if knows(part):
            part.check_room(rules.max_length)


def hearing(step: Step, observe: Observe) -> Hear:
    """The step, with logits in float32 at least, and what is observed in its state."""

    def hear(state: State, tokens: Array) -> tuple[Array, object, State]:
        logits, state = step(state, tokens)
        (logits,) = wide(logits)
        return logits, observe(state), state

    return hear


def nothing(state: object) -> None:
    """Observes nothing."""
