"""How many tokens are followed, and whether caches have slots for them."""

import jax

from attention.decoding.memory import without_memory
from attention.decoding.queue import Queue
from attention.decoding.rules import Rules


def resolve_room(state: object, rules: Rules, room: int | None) -> int:
    """How many tokens are followed: `room`, or `max_length` where nobody asks for less.

    Raises:
        ValueError: less than one token or more than `max_length`; or a part of the state that knows
            how much it can read (a cache does) and can read less, from its own `check_capacity`.
    """
    room = rules.max_length if room is None else room
    if not 1 <= room <= rules.max_length:
        raise ValueError(f"room must be between 1 and max_length {rules.max_length}, got {room}")
    if isinstance(state, Queue):
        jax.eval_shape(lambda prefilled: _check(prefilled, room), state.prefilled())
    else:
        _check(state, room)
    return room


def _check(state: object, room: int) -> None:
    def knows(part: object) -> bool:
        return hasattr(part, "check_capacity")

    for part in jax.tree.leaves(without_memory(state), is_leaf=knows):
        if knows(part):
            part.check_capacity(room)
