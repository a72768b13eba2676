"""What a step knows and never changes, in a state of which it changes the rest."""

from typing import Any, NamedTuple

import jax


class WithMemory(NamedTuple):
    """A part of a state, and what is read beside it.

    A step may as well close over its memory, unless rows come and go: those of a `Queue` bring
    theirs along.

    Attributes:
        memory: of an encoder for instance, leaves `[B, *]`; what a step makes of it is not looked
            at. The hypotheses of a row share it.
        state: what the step changes.
    """

    memory: Any
    state: Any


def without_memory(state: object) -> object:
    """Only what the step changes."""

    def changed(part: object) -> object:
        return without_memory(part.state) if _has_memory(part) else part

    return jax.tree.map(changed, state, is_leaf=_has_memory)


def are_memory(state: object) -> list[bool]:
    """Which of the leaves of a state are memory."""

    def marked(part: object) -> object:
        if not _has_memory(part):
            return False
        return WithMemory(jax.tree.map(lambda _: True, part.memory), are_memory(part.state))

    return jax.tree.leaves(jax.tree.map(marked, state, is_leaf=_has_memory))


def _has_memory(part: object) -> bool:
    return isinstance(part, WithMemory)
