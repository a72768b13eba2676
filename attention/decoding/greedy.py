"""The likeliest token at every step."""

from jax import Array

from attention.decoding.answer import Answer
from attention.decoding.loop import Observe, State, Step, nothing
from attention.decoding.rules import Forced, Rules
from attention.decoding.sample import sample


def greedy(
    step: Step,
    state: State,
    start: Array,
    rules: Rules,
    *,
    forced: Forced | None = None,
    observe: Observe = nothing,
    room: int | None = None,
) -> Answer:
    """Takes the likeliest token, reads it, and goes on until every row has ended.

    It is `sample` without chance; of equal tokens it takes the first.

    Args:
        step: `(state, tokens [B]) -> (logits [B, V], state)`: reads a token, scores the next.
        state: what the step knows before the first token; any pytree, or a `Queue` of rows.
        start: the first token of each row, `[B]`; not part of the answer.
        rules: the end and the lengths of an answer.
        forced: tokens that come first; this is how prompts of several lengths are read.
        observe: a function of the state the step returned, with leaves `[B, *]`, kept for each
            token.
        room: as in `sample`.

    Returns:
        The answers, `...` = B.

    Raises:
        ValueError: forced tokens that do not fit the batch, or a room or a cache as in `sample`.
    """
    return sample(step, state, start, rules, None, forced=forced, observe=observe, room=room)
