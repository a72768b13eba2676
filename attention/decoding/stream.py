"""Tokens as they come, for a person who waits."""

import functools
import itertools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from attention.decoding.filters import Filter
from attention.decoding.loop import State, Step, nothing, predicting
from attention.decoding.queue import Queue, example
from attention.decoding.room import resolve_room
from attention.decoding.rules import Forced, Rules
from attention.decoding.sample import Sampler, Sampling
from attention.primitives.precision import wide


def stream(
    step: Step,
    state: State,
    start: Array,
    rules: Rules,
    keys: Array | None = None,
    *,
    filters: Sequence[Filter] = (),
    forced: Forced | None = None,
) -> Iterator[Array]:
    """Yields the tokens that `sample`, or `greedy` without keys, would return at the end.

    The loop runs in Python, so each token costs two calls of compiled functions, a wait for the
    device and a copy of what the step changes in its state; `sample` pays none of them. The step
    is compiled by `jax.jit` here: hand over the same function again and nothing compiles anew, and
    keep what changes between calls in the state, since what a function closes over is read once.

    Args:
        step: `(state, tokens [B]) -> (logits [B, V], state)`: reads a token, scores the next.
        state: what the step knows before the first token; any pytree.
        start: the first token of each row, `[B]`; not yielded.
        rules: the end and the lengths of an answer.
        keys: a random key for each row, `[B]`; without keys each token is the likeliest.
        filters: what may be drawn.
        forced: tokens that come first; they are yielded too.

    Returns:
        An iterator over the next token of each row, `[B]`; `pad` for rows that have ended.

    Raises:
        TypeError: a queue, or as `sample`.
        ValueError: as `sample`.
    """
    if isinstance(state, Queue):
        raise TypeError(
            "stream needs the state of a batch: the rows of a Queue do not go on together"
        )
    room = resolve_room(state, rules, None)
    step, sampler = jax.jit(step), Sampler(rules, tuple(filters))
    logits, seen, _ = jax.eval_shape(predicting(step, nothing), *example(state, start))
    sampling = sampler.begin(start, room, keys, forced, logits, seen)
    return _speak(step, state, start, sampler, sampling)


def _speak(
    step: Step, state: State, last: Array, sampler: Sampler, sampling: Sampling
) -> Iterator[Array]:
    for index in itertools.count():
        logits, state = step(state, last)
        sampling, last = _select(sampler, sampling, jnp.full(len(last), index, jnp.int32), logits)
        yield last
        if not sampler.unfinished(sampling).any():
            return


@functools.partial(jax.jit, static_argnames="sampler")
def _select(
    sampler: Sampler, sampling: Sampling, index: Array, logits: Array
) -> tuple[Sampling, Array]:
    (logits,) = wide(logits)  # as `predicting` does where a step and its choice are compiled as one
    return sampler.select(sampling, index, logits, None)
