"""The decoding loop over any step function, for a batch and for slots that are refilled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from attention.decoding.output import GenerationOutput, Prediction, discard, select_rows
from attention.decoding.sampling import (
    DecodingOptions,
    History,
    LogitProcessor,
    NextTokens,
    Observe,
    RowInputs,
    Strategy,
)
from attention.decoding.stopping import Prefix, StoppingCriteria, check_prefix
from attention.primitives.cache import Constant
from attention.primitives.numerics import wide

Predict = Callable[[Any, Any], tuple[Prediction, Any]]
"""`(state, tokens [B]) -> (prediction, state)`."""


def is_constant(part: object) -> bool:
    """Return whether a part of a state is inside `Constant`."""
    return isinstance(part, Constant)


def constant_leaves(state: object) -> list[bool]:
    """Return which leaves of a state are inside `Constant`."""
    parts = jax.tree.leaves(state, is_leaf=is_constant)
    return [is_constant(part) for part in parts for _ in jax.tree.leaves(part)]


def check_state(state: object, rows: int, num_steps: int) -> None:
    """Check that leaves have the batch in front, and that caches can hold the tokens to come.

    Args:
        state: a state, or its shapes.
        rows: B.
        num_steps: number of tokens; passed to `check_capacity` of each part that has it.

    Raises:
        ValueError: a leaf of another shape, outside `Constant`; a cache that is too small.
    """
    leaves = jax.tree.leaves_with_path(state)
    for (path, leaf), constant in zip(leaves, constant_leaves(state), strict=True):
        if not constant and jnp.shape(leaf)[:1] != (rows,):
            raise ValueError(
                f"state{jax.tree_util.keystr(path)} needs the batch of {rows} rows in front, got "
                f"shape {jnp.shape(leaf)}; what all rows share belongs into Constant"
            )
    for part in _parts(state, "check_capacity"):
        if hasattr(part, "check_capacity"):
            part.check_capacity(num_steps)


def repeat_state(state: object, num_beams: int) -> list[Array]:
    """Return the leaves of a state, `[W, B, *]`; those inside `Constant` are not repeated."""
    return [
        leaf if constant else jnp.stack([leaf] * num_beams)
        for leaf, constant in zip(jax.tree.leaves(state), constant_leaves(state), strict=True)
    ]


def vmap_hypotheses(predict: Predict, like: object) -> Predict:
    """Lift a step for B rows to W hypotheses of each, with the states of their parents.

    Args:
        predict: the step.
        like: shapes of its state.

    Returns:
        `(leaves, NextTokens) -> (prediction with logits [W, B, V], leaves)`.
    """
    structure, constants = jax.tree.structure(like), constant_leaves(like)
    axes = [None if constant else 0 for constant in constants]

    def one(leaves: list[Array], tokens: Array) -> tuple[Array, object, list[Array]]:
        prediction, state = predict(jax.tree.unflatten(structure, leaves), tokens)
        new = [  # a step cannot change a constant
            old if constant else leaf
            for old, leaf, constant in zip(leaves, jax.tree.leaves(state), constants, strict=True)
        ]
        return prediction.logits, prediction.observed, new

    vmapped = jax.vmap(one, in_axes=(axes, 1), out_axes=(0, 1, axes))

    def predict_all(leaves: list[Array], last: NextTokens) -> tuple[Prediction, list[Array]]:
        leaves = _gather_state(jax.tree.unflatten(structure, leaves), last.parents)
        logits, observed, leaves = vmapped(leaves, last.tokens)
        return Prediction(logits, observed), leaves

    return predict_all


def gather_hypotheses(leaf: Array, parents: Array, axis: int = 1) -> Array:
    """Select hypotheses of each row.

    Args:
        leaf: `[B, W, *]`, or `[W, B, *]`.
        parents: `[B, X]`.
        axis: of W.

    Returns:
        `[B, X, *]`, or `[X, B, *]`.
    """
    take = jax.vmap(lambda own, parents: jnp.take(own, parents, axis=0), (1 - axis, 0), 1 - axis)
    return take(leaf, parents)


def _gather_state(state: object, parents: Array) -> list[Array]:
    """Return the leaves `[W, B, *]` of the parent of each hypothesis."""

    def gather(leaf: Array) -> Array:
        return gather_hypotheses(leaf, parents, axis=0)

    found = []
    for part in _parts(state, "gather_rows"):
        if is_constant(part):
            found += jax.tree.leaves(part)
        elif hasattr(part, "gather_rows"):
            found += jax.tree.leaves(part.gather_rows(gather))
        else:
            found.append(gather(part))
    return found


def _parts(state: object, method: str) -> list[Any]:
    """Return the constants, the parts that have a method, and the other leaves."""
    return jax.tree.leaves(state, is_leaf=lambda x: is_constant(x) or hasattr(x, method))


State = TypeVar("State")
Step = Callable[[State, Array], tuple[Any, State]]
"""`(state, tokens [B]) -> (result, state)`: reads a token of each row and scores the next ones.

`result` is logits `[B, V]`, or an object with the attribute `logits`, such as `Output`."""


class LoopState(NamedTuple):
    """The carry of the loop.

    Attributes:
        index: int32 `[B]`, number of steps of each row.
        tokens: that the step reads next: `[B]`, or `NextTokens`.
        model_state: of the step.
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
    def predict(self) -> Predict:
        """The step for one hypothesis of each row, which is traced once for each shape.

        Raises:
            ValueError: logits of another batch, of a step that closes over arrays of all rows.
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

    def first(self, state: object, start: Array) -> tuple[Any, Any]:
        """Return the state and the tokens for the first step, repeated for each hypothesis."""
        num_beams, start = self.options.strategy.num_beams, start.astype(jnp.int32)
        if num_beams is None:
            return state, start
        tokens = jnp.stack([start] * num_beams, axis=1)
        return repeat_state(state, num_beams), NextTokens(tokens, jnp.zeros_like(tokens))

    def predict_all(self, state: object) -> Predict:
        """Return the step for all hypotheses, given shapes of the state."""
        if self.options.strategy.num_beams is None:
            return self.predict
        return vmap_hypotheses(self.predict, state)

    def shapes(self, state: object, start: Array) -> Prediction:
        """Return the shapes of a prediction.

        Raises:
            ValueError: a state that does not fit the batch or the number of steps.
        """

        def first_prediction(state: object, start: Array) -> Prediction:
            check_state(state, len(start), self.options.max_steps)
            return self.predict_all(state)(*self.first(state, start))[0]

        return jax.eval_shape(first_prediction, state, start)

    def begin(
        self, state: object, start: Array, inputs: RowInputs, active: Array | None
    ) -> LoopState:
        """Return the first carry of the loop."""
        options = self.options
        check_state(state, len(start), options.max_steps)  # the lengths of caches may be known
        strategy_state = options.strategy.begin(options, inputs, self.shapes(state, start))
        index = jnp.zeros(start.shape, jnp.int32)
        if active is not None:
            index = jnp.where(active, index, options.max_steps)
        state, tokens = self.first(state, start)
        return LoopState(index, tokens, state, strategy_state, inputs)

    def unfinished(self, carry: LoopState) -> Array:
        """Return which rows need more tokens and have steps left: bool `[B]`."""
        has_steps = carry.index < self.options.max_steps
        return self.options.strategy.unfinished(carry.strategy_state) & has_steps

    def advance(self, predict: Predict, carry: LoopState) -> LoopState:
        """Predict and choose one token of each row."""
        index, tokens, model_state, old, inputs = carry
        prediction, model_state = predict(model_state, tokens)
        new, tokens = self.options.strategy.select(self.options, inputs, old, index, prediction)
        # A row without steps left must not finish while the loop continues for other rows.
        new = select_rows(index < self.options.max_steps, new, old)
        return LoopState(index + 1, tokens, model_state, new, inputs)

    def run(self, predict: Predict, carry: LoopState, num_ended: ArrayLike) -> LoopState:
        """Advance until so many rows have ended."""

        def too_few(carry: LoopState) -> Array:
            return jnp.sum(~self.unfinished(carry), dtype=jnp.int32) < num_ended

        return jax.lax.while_loop(too_few, lambda carry: self.advance(predict, carry), carry)

    def run_batch(
        self, state: object, start: Array, inputs: RowInputs, active: Array | None
    ) -> GenerationOutput:
        """Run the loop until all rows have ended."""
        carry = self.begin(state, start, inputs, active)
        carry = self.run(self.predict_all(state), carry, num_ended=len(start))
        return self.output(carry.strategy_state, active)

    def output(self, strategy_state: object, active: Array | None) -> GenerationOutput:
        """Return the answers, without those of rows that are unfinished or not active."""
        strategy = self.options.strategy
        removed = strategy.unfinished(strategy_state)
        if active is not None:
            removed |= ~active
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
    active: Array | None = None,
    observe: Observe | None = None,
    max_steps: int | None = None,
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
        active: bool `[B]`; other rows get length 0 and score -inf, and cost no steps.
        observe: a function of the result of a step to leaves `[B, *]`, kept for each token.
        max_steps: the step after which an unfinished row is discarded (length 0, score -inf);
            `max_tokens` by default. Caches need to hold this many tokens.

    Raises:
        TypeError: start tokens or a prefix that are not integers.
        ValueError: arguments that do not fit the batch, the vocabulary or each other; a cache that
            is too small.
    """
    options = DecodingOptions(strategy, stopping, logit_processors, observe, max_steps)
    if start.ndim != 1 or not jnp.issubdtype(start.dtype, jnp.integer):
        raise TypeError(
            f"start needs one integer token per row [B], got {start.dtype} {start.shape}"
        )
    if history is None:
        history = History(start[:, None], jnp.ones(start.shape, jnp.int32))
    inputs = row_inputs(history, prefix, rng, stopping.max_tokens)
    return DecodingLoop(step, options).run_batch(state, start, inputs, active)


def row_inputs(
    history: History, prefix: Prefix | None, rng: Array | None, max_tokens: int
) -> RowInputs:
    """Return the inputs of each row in int32.

    Raises:
        TypeError: a prefix that is not of integers.
        ValueError: arguments for another number of rows.
    """
    history = History(*(jnp.asarray(part).astype(jnp.int32) for part in history))
    rows = len(history.length)
    if rng is not None and rng.shape[:1] != (rows,):
        raise ValueError(
            f"rng needs one random key for each of {rows} rows, as "
            f"jax.random.split(rng, {rows}) makes them, got shape {rng.shape}"
        )
    return RowInputs(history, check_prefix(prefix, rows, max_tokens), rng)


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
