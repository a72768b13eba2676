"""The decoding loop over any step function, for a batch or for slots that are refilled.

In a batch the loop runs until the longest answer has ended. In slots it runs until an eighth of
them is free, then admits new rows: continuous batching, or iteration-level scheduling (Yu et al.
2022, "Orca", section 3).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from attention.decoding.output import (
    GenerationOutput,
    Prediction,
    Prefix,
    StoppingCriteria,
    check_prefix,
    discard,
    select_rows,
)
from attention.decoding.sampling import (
    DecodingOptions,
    History,
    LogitProcessor,
    NextTokens,
    Observe,
    RowInputs,
    Strategy,
)
from attention.primitives.cache import Constant, check_lengths
from attention.primitives.masks import to_int32
from attention.primitives.numerics import wide

State = TypeVar("State")
Step = Callable[[State, Array], tuple[Any, State]]
"""`(state, tokens [B]) -> (result, state)`: reads a token of each row and scores the next ones.

`result` is logits `[B, V]`, or an object with the attribute `logits`, such as `Output`."""

SHARE = 8  # an eighth of the slots is refilled at once, by one call of `prefill`


class LoopState(NamedTuple):
    """The carry of the loop.

    Attributes:
        index: int32 `[B]`, number of steps of each row.
        tokens: that the step reads next: `[B]`, or `NextTokens`.
        model_state: of the step; with W hypotheses per row, leaves `[W, B, *]` outside `Constant`.
        strategy_state: of the strategy.
        inputs: of each row.
    """

    index: Array
    tokens: Any
    model_state: Any
    strategy_state: Any
    inputs: RowInputs


@dataclass(frozen=True)
class DecodingLoop:
    """The operations of a loop with a step function and options."""

    step: Step
    options: DecodingOptions

    @cached_property
    def predict_one(self) -> Callable[[Any, Array], tuple[Prediction, Any]]:
        """The step for one hypothesis of each row, which is traced once for each shape.

        Raises a ValueError for a step that closes over arrays of all rows, at another batch.
        """

        def predict(state: State, tokens: Array) -> tuple[Prediction, State]:
            result, state = self.step(state, tokens)
            logits = getattr(result, "logits", result)
            if logits.ndim != 2 or logits.shape[:1] != tokens.shape:
                raise ValueError(
                    f"a step that reads tokens {tokens.shape} returns logits ({len(tokens)}, V), "
                    f"got {logits.shape}"
                )
            (logits,) = wide(logits)
            observe = self.options.observe
            return Prediction(logits, None if observe is None else observe(result)), state

        # Inlined, as arrays that the step closes over would be constants of the program.
        return jax.jit(predict, inline=True)

    def predict(self, state: State, last: Array | NextTokens) -> tuple[Prediction, State]:
        """Read tokens `[B]`, or those of W hypotheses of each row, from the states of parents."""
        if self.options.strategy.num_beams is None:
            return self.predict_one(state, last)
        state = _gather_state(state, last.parents)
        axes = _map_parts(lambda part: None if _is_constant(part) else 0, state)

        def one(state: State, tokens: Array) -> tuple[Prediction, State]:
            prediction, new = self.predict_one(state, tokens)
            # A step cannot change a constant.
            return prediction, _map_parts(
                lambda old, new: old if _is_constant(old) else new, state, new
            )

        lifted = jax.vmap(one, in_axes=(axes, 1), out_axes=(Prediction(0, 1), axes))
        return lifted(state, last.tokens)

    def first(self, state: State, start: Array) -> tuple[State, Any]:
        """Return the state and the tokens for the first step, repeated for each hypothesis."""
        num_beams, start = self.options.strategy.num_beams, start.astype(jnp.int32)
        if num_beams is None:
            return state, start
        tokens = jnp.stack([start] * num_beams, axis=1)
        state = _map_parts(
            lambda part: part if _is_constant(part) else jnp.stack([part] * num_beams), state
        )
        return state, NextTokens(tokens, jnp.zeros_like(tokens))

    def shapes(self, state: object, start: Array) -> Prediction:
        """Return the shapes of a prediction; the state is checked."""

        def first_prediction(state: object, start: Array) -> Prediction:
            check_state(state, len(start), self.options.max_steps)
            return self.predict(*self.first(state, start))[0]

        return jax.eval_shape(first_prediction, state, start)

    def begin(self, state: object, start: Array, inputs: RowInputs, active: Array) -> LoopState:
        """Return the first carry of the loop."""
        options = self.options
        check_state(state, len(start), options.max_steps)  # the lengths of caches may be known
        strategy_state = options.strategy.begin(options, inputs, self.shapes(state, start))
        index = jnp.where(active, 0, options.max_steps).astype(jnp.int32)
        state, tokens = self.first(state, start)
        return LoopState(index, tokens, state, strategy_state, inputs)

    def unfinished(self, carry: LoopState) -> Array:
        """Return which rows need more tokens and have steps left: bool `[B]`."""
        has_steps = carry.index < self.options.max_steps
        return self.options.strategy.unfinished(carry.strategy_state) & has_steps

    def advance(self, carry: LoopState) -> LoopState:
        """Predict and choose one token of each row."""
        index, tokens, model_state, old, inputs = carry
        prediction, model_state = self.predict(model_state, tokens)
        new, tokens = self.options.strategy.select(self.options, inputs, old, index, prediction)
        # A row without steps left must not finish while the loop continues for other rows.
        new = select_rows(index < self.options.max_steps, new, old)
        return LoopState(index + 1, tokens, model_state, new, inputs)

    def run(self, carry: LoopState, num_ended: ArrayLike) -> LoopState:
        """Advance until so many rows have ended."""

        def too_few(carry: LoopState) -> Array:
            return jnp.sum(~self.unfinished(carry), dtype=jnp.int32) < num_ended

        return jax.lax.while_loop(too_few, self.advance, carry)

    def run_batch(
        self, state: object, start: Array, inputs: RowInputs, active: Array
    ) -> GenerationOutput:
        """Run the loop until all rows have ended."""
        carry = self.run(self.begin(state, start, inputs, active), num_ended=len(start))
        return self.output(carry.strategy_state, active)

    def output(self, strategy_state: object, active: Array) -> GenerationOutput:
        """Return the answers, without those of rows that are unfinished or not active."""
        strategy = self.options.strategy
        removed = strategy.unfinished(strategy_state) | ~active
        return discard(strategy.output(strategy_state), removed, self.options.stopping.pad)


def decode(
    step: Step,
    state: State,
    start: Array,
    strategy: Strategy,
    stopping: StoppingCriteria,
    *,
    logit_processors: Sequence[LogitProcessor] = (),
    prefix: Prefix | None = None,
    history: History | None = None,
    rng: Array | None = None,
    observe: Observe | None = None,
) -> GenerationOutput:
    """Generate tokens with a step function until every row has ended.

    Args:
        step: `(state, tokens [B]) -> (logits [B, V], state)`, or with an object that has `logits`.
            Beam search lifts it by `vmap`; arrays that it closes over are not repeated.
        state: of the step before the first token: a pytree with leaves `[B, *]`. Leaves
            inside `Constant` are shared by the hypotheses of a row.
        start: int `[B]`, the token that each row reads first; not part of the answer.
        strategy: `Greedy`, `Sample`, `Beam`, or any other `Strategy`.
        stopping: when an answer ends.
        logit_processors: functions `(logits, History) -> logits`.
        prefix: tokens that the answers begin with.
        history: tokens `[B, P]` and length `[B]` in front of the answers, for logit processors;
            `start` by default.
        rng: `[B]` random keys, one for each row.
        observe: a function of the result of a step to leaves `[B, *]`, kept for each token.

    Raises:
        TypeError: ids that are not integers.
        ValueError: arguments that do not fit the batch or each other; a cache that is too small.
    """
    options = DecodingOptions(strategy, stopping, logit_processors, observe)
    start = to_int32("start", start, 1)
    rows = len(start)
    if rng is not None and rng.shape[:1] != (rows,):
        raise ValueError(f"rng needs one random key for each of {rows} rows, got {rng.shape}")
    if history is None:
        history = History(start[:, None], jnp.ones_like(start))
    history = History(*(to_int32("history", part, 1) for part in history))
    check_lengths(history.length, history.tokens.shape[-1])
    if prefix is not None:
        prefix = check_prefix(prefix, rows, stopping.max_tokens)
    inputs, active = RowInputs(history, prefix, rng), jnp.ones(rows, bool)
    return DecodingLoop(step, options).run_batch(state, start, inputs, active)


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
    prefill: Callable[[Any], tuple[Any, Array]],
    requests: Any,  # noqa: ANN401 - a pytree
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
    numbered = jnp.arange(1, total + 1, dtype=jnp.int32)
    end = jnp.max(jnp.where(active, numbered, 0), initial=0)  # after the last active row

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
            loop.run(carry, num_ended),
            batch.rows.at[free].set(rows),
            admitted,
            _store(batch.strategy_states, *ended),
        )

    no_rows = jnp.full(num_slots, total, jnp.int32)
    shapes = jax.eval_shape(admit, no_rows[:refill])
    axes = jax.tree.map(lambda _: 0, shapes)  # of the slots; hypotheses are in front of them
    if strategy.num_beams is not None:
        model_axes = _map_parts(
            lambda part: jax.tree.map(lambda _: 0, part) if _is_constant(part) else 1, state
        )
        axes = axes._replace(model_state=model_axes)
    empty = jax.tree.map(partial(_zeros, num_slots), axes, shapes)
    empty = empty._replace(index=jnp.full_like(no_rows, max_steps))
    batch = ContinuousBatch(empty, no_rows, jnp.int32(0), strategy_states)
    batch = jax.lax.while_loop(lambda batch: batch.admitted < end, advance, batch)
    final_states = _store(batch.strategy_states, batch.rows, batch.carry.strategy_state)
    return loop.output(final_states, active)


def _shapes_of_rows(tree: State, number: int) -> State:
    """Return the shapes of so many rows of leaves `[Q, *]`."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((number, *leaf.shape[1:]), leaf.dtype), tree
    )


def _take(tree: State, rows: Array) -> State:
    """Return rows `[F]` of leaves `[Q, *]`; the last one for a number out of range."""
    return jax.tree.map(lambda leaf: jnp.take(leaf, rows, axis=0, mode="clip"), tree)


def _put(slots: Array, axis: int, into: Array, some: Array) -> Array:
    """Write rows `[F]` of one array into slots of another."""
    index = (*[slice(None)] * axis, slots)
    return into.at[index].set(some, mode="promise_in_bounds", unique_indices=True)


def _zeros(num_slots: int, axis: int, like: jax.ShapeDtypeStruct) -> Array:
    return jnp.zeros((*like.shape[:axis], num_slots, *like.shape[axis + 1 :]), like.dtype)


def _store(states: State, rows: Array, some: State) -> State:
    """Write the states of rows `[F]` into those of all; a number out of range is dropped."""
    return jax.tree.map(lambda into, new: into.at[rows].set(new, mode="drop"), states, some)


def check_state(state: object, rows: int, num_steps: int) -> None:
    """Raise a ValueError for leaves without B rows, and for caches without space for all steps.

    `state` may be its shapes; parts with `check_capacity` check the number of steps.
    """
    for path, part in jax.tree.leaves_with_path(state, is_leaf=_is_constant):
        if not _is_constant(part) and jnp.shape(part)[:1] != (rows,):
            raise ValueError(
                f"state{jax.tree_util.keystr(path)} needs the batch of {rows} rows in front, got "
                f"shape {jnp.shape(part)}; what all rows share belongs into Constant"
            )
    for part in jax.tree.leaves(state, is_leaf=_is_part("check_capacity")):
        if hasattr(part, "check_capacity"):
            part.check_capacity(num_steps)


def gather_hypotheses(leaf: Array, parents: Array, axis: int = 1) -> Array:
    """Select the parents `[B, X]` of `[B, W, *]`; with axis 0, of `[W, B, *]`."""
    take = jax.vmap(lambda own, parents: jnp.take(own, parents, axis=0), (1 - axis, 0), 1 - axis)
    return take(leaf, parents)


def _gather_state(state: State, parents: Array) -> State:
    """Return the state of the parent of each hypothesis."""
    gather = partial(gather_hypotheses, parents=parents, axis=0)

    def gather_part(part: Any) -> Any:  # noqa: ANN401 - of a user
        if _is_constant(part):
            return part
        return part.gather_rows(gather) if hasattr(part, "gather_rows") else gather(part)

    return jax.tree.map(gather_part, state, is_leaf=_is_part("gather_rows"))


def _map_parts(function: Callable[..., Any], *states: State) -> State:
    """Map the leaves of states; constants are mapped whole."""
    return jax.tree.map(function, *states, is_leaf=_is_constant)


def _is_constant(part: object) -> bool:
    """Return whether a part of a state is inside `Constant`, which hypotheses share."""
    return isinstance(part, Constant)


def _is_part(method: str) -> Callable[[object], bool]:
    """Return a function that is True for constants and for parts with a method."""
    return lambda part: _is_constant(part) or hasattr(part, method)
