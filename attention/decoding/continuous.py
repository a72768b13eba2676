"""Continuous batching: when a row ends, its slot is refilled with the next request.

In a batch the loop runs until the longest answer has ended. Here it runs until an eighth of the
slots is free, then admits new rows (iteration-level scheduling, Yu et al. 2022, "Orca", section 3).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from attention.decoding.hypotheses import constant_leaves
from attention.decoding.loop import (
    Decoder,
    Observe,
    Progress,
    Step,
    make_decoder,
    make_request,
)
from attention.decoding.output import GenerationOutput
from attention.decoding.processors import History, LogitProcessor
from attention.decoding.stopping import Prefix, StoppingCriteria
from attention.decoding.strategy import Strategy

Requests = TypeVar("Requests")
Tree = TypeVar("Tree")

SHARE = 8  # an eighth of the slots is refilled at once, by one call of `prefill`


def decode_continuously(
    step: Step,
    prefill: Callable[[Requests], tuple[Any, Array]],
    requests: Requests,
    strategy: Strategy,
    stopping: StoppingCriteria,
    *,
    slots: int,
    history: History,
    logit_processors: Sequence[LogitProcessor] = (),
    prefix: Prefix | None = None,
    rng: Array | None = None,
    active: Array | None = None,
    observe: Observe | None = None,
    max_steps: int | None = None,
) -> GenerationOutput:
    """Generate tokens for Q requests, at most `slots` of them at a time.

    The answers equal those of `decode`. The arguments without a description are the same as there.

    Args:
        step: the step. All that belongs to a row must be in the state; inside `Constant` if steps
            do not change it.
        prefill: maps some requests, leaves `[F, *]`, to the state and the start `[F]` of their
            rows. It is called inside the loop.
        requests: a pytree with leaves `[Q, *]`.
        strategy: as in `decode`.
        stopping: as in `decode`.
        slots: largest number of rows that are followed at once.
        history: tokens `[Q, P]` and length `[Q]` in front of the answers.
        logit_processors: as in `decode`.
        prefix: as in `decode`, `[Q, *]`.
        rng: as in `decode`, `[Q]`.
        active: as in `decode`, `[Q]`; rows that are not active need not be admitted.
        observe: as in `decode`.
        max_steps: as in `decode`.

    Raises:
        ValueError: no slot, and as `decode`.
    """
    if slots < 1:
        raise ValueError(f"slots must be at least 1, got {slots}")
    decoder = make_decoder(step, strategy, stopping, logit_processors, observe, max_steps)
    total = len(history.length)
    request = make_request(history.length, stopping, prefix, history, rng)
    active = jnp.ones(total, bool) if active is None else jnp.asarray(active)
    num_slots = max(1, min(slots, total))
    refill = max(1, num_slots // SHARE)
    some = _shapes_of_rows(requests, refill)
    like = jax.eval_shape(lambda some: decoder.first_prediction(*prefill(some)), some)
    searches = strategy.begin(decoder.settings, request, like)
    if not total:
        return decoder.output(searches, active)
    numbered = jnp.arange(1, total + 1, dtype=jnp.int32)
    end = jnp.max(jnp.where(active, numbered, 0), initial=0)  # behind the last active row
    state, _ = jax.eval_shape(prefill, some)
    predict = decoder.lifted(state)

    def admit(rows: Array) -> Progress:
        here, some, search, asked = _take((active, requests, searches, request), rows)
        state, start = prefill(some)
        state, last = decoder.first(state, start.astype(jnp.int32))
        index = jnp.where(here & (rows < total), 0, decoder.settings.max_steps)
        return Progress(index.astype(jnp.int32), last, state, search, asked)

    def advance(batch: ContinuousBatch) -> ContinuousBatch:
        free = jnp.argsort(decoder.unfinished(batch.progress), stable=True)[:refill]
        left = jnp.take(batch.rows, free), _take(batch.progress.search, free)
        rows = batch.admitted + jnp.arange(refill, dtype=jnp.int32)
        progress = jax.tree.map(partial(_put, free), axes, batch.progress, admit(rows))
        admitted = batch.admitted + refill
        num_ended = jnp.where(admitted < end, refill, num_slots)
        return ContinuousBatch(
            decoder.run(predict, progress, num_ended),
            batch.rows.at[free].set(rows),
            admitted,
            _store(batch.searches, *left),
        )

    no_rows = jnp.full(num_slots, total, jnp.int32)
    shapes = jax.eval_shape(admit, no_rows[:refill])
    axes = _slot_axes(decoder, state, shapes)
    empty = jax.tree.map(partial(_zeros, num_slots), axes, shapes)
    empty = empty._replace(index=jnp.full_like(no_rows, decoder.settings.max_steps))
    batch = ContinuousBatch(empty, no_rows, jnp.int32(0), searches)
    batch = jax.lax.while_loop(lambda batch: batch.admitted < end, advance, batch)
    searches = _store(batch.searches, batch.rows, batch.progress.search)
    return decoder.output(searches, active)


class ContinuousBatch(NamedTuple):
    """State of continuous batching.

    Attributes:
        progress: of the rows in the slots.
        rows: int32 `[slots]`, number of the row in each slot; Q for an empty slot.
        admitted: int32, number of rows that were admitted.
        searches: of all Q rows; for a row in a slot, the search at its admission.
    """

    progress: Progress
    rows: Array
    admitted: Array
    searches: Any


def _slot_axes(decoder: Decoder, state: object, like: Progress) -> Progress:
    """Return the axis of the slots of each leaf: 1 behind hypotheses, else 0."""
    axes = jax.tree.map(lambda _: 0, like)
    if decoder.strategy.num_beams is None:
        return axes
    return axes._replace(state=[0 if constant else 1 for constant in constant_leaves(state)])


def _shapes_of_rows(tree: Tree, number: int) -> Tree:
    """Return the shapes of so many rows of leaves `[Q, *]`."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((number, *leaf.shape[1:]), leaf.dtype), tree
    )


def _take(tree: Tree, rows: Array) -> Tree:
    """Return rows `[F]` of leaves `[Q, *]`; the last one for a number out of range."""
    return jax.tree.map(lambda leaf: jnp.take(leaf, rows, axis=0, mode="clip"), tree)


def _put(slots: Array, axis: int, into: Array, some: Array) -> Array:
    """Write rows `[F]` of one array into slots of another."""
    index = (*[slice(None)] * axis, slots)
    return into.at[index].set(some, mode="promise_in_bounds", unique_indices=True)


def _zeros(num_slots: int, axis: int, like: jax.ShapeDtypeStruct) -> Array:
    return jnp.zeros((*like.shape[:axis], num_slots, *like.shape[axis + 1 :]), like.dtype)


def _store(searches: Tree, rows: Array, found: Tree) -> Tree:
    """Write the searches of rows `[F]` into those of all; a number out of range is dropped."""
    return jax.tree.map(lambda all_, some: all_.at[rows].set(some, mode="drop"), searches, found)
