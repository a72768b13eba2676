"""Continuous batching: when a row ends, its slot is refilled with the next request.

In a batch the loop runs until the longest answer has ended. Here it runs until an eighth of the
slots is free, then admits new rows (iteration-level scheduling, Yu et al. 2022, "Orca", section 3).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from attention.decoding.hypotheses import constant_leaves
from attention.decoding.loop import DecodingLoop, LoopState
from attention.decoding.output import GenerationOutput
from attention.decoding.strategy import RowInputs

Requests = TypeVar("Requests")
Tree = TypeVar("Tree")
Prefill = Callable[[Requests], tuple[Any, Array]]

SHARE = 8  # an eighth of the slots is refilled at once, by one call of `prefill`


class ContinuousBatch(NamedTuple):
    """State of continuous batching.

    Attributes:
        carry: of the loop for the rows in the slots.
        rows: int32 `[slots]`, number of the row in each slot; Q for an empty slot.
        admitted: int32, number of rows that were admitted.
        strategy_states: of all Q rows; for a row in a slot, the one at its admission.
    """

    carry: LoopState
    rows: Array
    admitted: Array
    strategy_states: Any


def run_in_slots(
    loop: DecodingLoop,
    prefill: Prefill,
    requests: Requests,
    inputs: RowInputs,
    active: Array,
    slots: int,
) -> GenerationOutput:
    """Run a loop for Q requests, at most `slots` at a time; the answers are those of a batch.

    Args:
        loop: all that belongs to a row must be in the state of its step.
        prefill: maps some requests, leaves `[F, *]`, to the state and the start `[F]` of their
            rows; called inside the loop.
        requests: a pytree with leaves `[Q, *]`.
        inputs: of the Q rows.
        active: bool `[Q]`; rows after the last active one are not prefilled.
        slots: at least 1.
    """
    total, max_steps, strategy = len(active), loop.options.max_steps, loop.options.strategy
    num_slots = max(1, min(slots, total))
    refill = max(1, num_slots // SHARE)  # number of slots that are refilled at once
    state, start = jax.eval_shape(prefill, _shapes_of_rows(requests, refill))
    prediction = loop.shapes(*_shapes_of_rows((state, start), num_slots))
    strategy_states = strategy.begin(loop.options, inputs, prediction)
    if not total:
        return loop.output(strategy_states, active)
    numbered = jnp.arange(1, total + 1, dtype=jnp.int32)
    end = jnp.max(jnp.where(active, numbered, 0), initial=0)  # after the last active row
    predict = loop.predict_all(state)

    def admit(rows: Array) -> LoopState:
        some = (active, requests, strategy_states, inputs)
        is_active, requested, strategy_state, row = _take(some, rows)
        state, tokens = loop.first(*prefill(requested))
        index = jnp.where(is_active & (rows < total), 0, max_steps).astype(jnp.int32)
        return LoopState(index, tokens, state, strategy_state, row)

    def advance(batch: ContinuousBatch) -> ContinuousBatch:
        free = jnp.argsort(loop.unfinished(batch.carry), stable=True)[:refill]
        ended = jnp.take(batch.rows, free), _take(batch.carry.strategy_state, free)
        rows = batch.admitted + jnp.arange(refill, dtype=jnp.int32)
        carry = jax.tree.map(partial(_put, free), axes, batch.carry, admit(rows))
        admitted = batch.admitted + refill
        num_ended = jnp.where(admitted < end, refill, num_slots)
        return ContinuousBatch(
            loop.run(predict, carry, num_ended),
            batch.rows.at[free].set(rows),
            admitted,
            _store(batch.strategy_states, *ended),
        )

    no_rows = jnp.full(num_slots, total, jnp.int32)
    shapes = jax.eval_shape(admit, no_rows[:refill])
    axes = jax.tree.map(lambda _: 0, shapes)  # of the slots; hypotheses are in front of them
    if strategy.num_beams is not None:
        axes = axes._replace(model_state=[0 if fixed else 1 for fixed in constant_leaves(state)])
    empty = jax.tree.map(partial(_zeros, num_slots), axes, shapes)
    empty = empty._replace(index=jnp.full_like(no_rows, max_steps))
    batch = ContinuousBatch(empty, no_rows, jnp.int32(0), strategy_states)
    batch = jax.lax.while_loop(lambda batch: batch.admitted < end, advance, batch)
    found = _store(batch.strategy_states, batch.rows, batch.carry.strategy_state)
    return loop.output(found, active)


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


def _store(states: Tree, rows: Array, found: Tree) -> Tree:
    """Write the states of rows `[F]` into those of all; a number out of range is dropped."""
    return jax.tree.map(lambda all_, some: all_.at[rows].set(some, mode="drop"), states, found)
