"""The decoding loop over any step function, and `decode`, which runs it for a batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from attention.decoding.hypotheses import Predict, check_state, repeat_state, vmap_hypotheses
from attention.decoding.output import GenerationOutput, Prediction, discard, select_rows
from attention.decoding.processors import History, LogitProcessor
from attention.decoding.stopping import Prefix, StoppingCriteria, check_prefix
from attention.decoding.strategy import (
    DecodingOptions,
    NextTokens,
    Observe,
    RowInputs,
    Strategy,
)
from attention.primitives.numerics import wide

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
