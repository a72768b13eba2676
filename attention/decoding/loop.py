"""The decoding loop over any step function, for a batch or with continuous batching."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from attention.decoding.hypotheses import (
    Predict,
    check_state,
    for_each_hypothesis,
    repeat_state,
)
from attention.decoding.output import GenerationOutput, Prediction, discard, where_rows
from attention.decoding.processors import History, LogitProcessor
from attention.decoding.stopping import Prefix, StoppingCriteria, check_prefix
from attention.decoding.strategy import Request, Selected, Settings, Strategy
from attention.primitives.precision import wide

State = TypeVar("State")
Step = Callable[[State, Array], tuple[Any, State]]
"""`(state, tokens [B]) -> (result, state)`: reads a token of each row and scores the next ones.

`result` is logits `[B, V]`, or an object with the attribute `logits`, such as `Output`."""
Observe = Callable[[Any], Any]
"""Maps the result of a step to a pytree with leaves `[B, *]`, which is kept for each token."""


class Progress(NamedTuple):
    """Progress of the rows that are followed.

    Attributes:
        index: int32 `[B]`, number of steps of each row.
        last: the tokens that the step reads next.
        state: of the step.
        search: of the strategy.
        request: what each row is given.
    """

    index: Array
    last: Any
    state: Any
    search: Any
    request: Request


@dataclass(frozen=True)
class Decoder:
    """A step, a strategy and the settings of a decoding loop.

    Attributes:
        step: the step function.
        strategy: chooses the tokens.
        settings: common to all rows.
        observe: applied to the result of each step.
    """

    step: Step
    strategy: Strategy
    settings: Settings
    observe: Observe | None = None

    def predict(self, state: State, tokens: Array) -> tuple[Prediction, State]:
        """Run the step for one hypothesis of each row.

        Raises:
            ValueError: logits of another batch, of a step that closes over arrays of all rows.
        """
        result, state = self.step(state, tokens)
        logits = getattr(result, "logits", result)
        if logits.ndim != 2 or logits.shape[:1] != tokens.shape:
            raise ValueError(
                f"a step that reads tokens {tokens.shape} returns logits ({len(tokens)}, V), "
                f"got {logits.shape}"
            )
        (logits,) = wide(logits)
        return Prediction(logits, None if self.observe is None else self.observe(result)), state

    def first(self, state: object, start: Array) -> tuple[Any, Any]:
        """Return the state and the tokens that the first step of the loop reads."""
        num_beams = self.strategy.num_beams
        if num_beams is None:
            return state, start
        tokens = jnp.stack([start] * num_beams, axis=1)
        return repeat_state(state, num_beams), Selected(tokens, jnp.zeros_like(tokens))

    def lifted(self, state: object) -> Predict:
        """Return the step for all hypotheses, given shapes of the state."""
        if self.strategy.num_beams is None:
            return self.predict
        return for_each_hypothesis(self.predict, state)

    def first_prediction(self, state: object, start: Array) -> Prediction:
        """Return the first prediction, of which shapes are needed before the loop.

        Raises:
            ValueError: a state that does not fit the batch or the number of steps.
        """
        check_state(state, len(start), self.settings.max_steps)
        return self.lifted(state)(*self.first(state, start))[0]

    def unfinished(self, progress: Progress) -> Array:
        """Return which rows need more tokens and have steps left: bool `[B]`."""
        has_steps = progress.index < self.settings.max_steps
        return self.strategy.unfinished(progress.search) & has_steps

    def advance(self, predict: Predict, progress: Progress) -> Progress:
        """Predict and choose one token of each row."""
        index, last, state, search, request = progress
        prediction, state = predict(state, last)
        new, last = self.strategy.select(self.settings, request, search, index, prediction)
        # A row without steps left must not finish while the loop continues for other rows.
        has_steps = index < self.settings.max_steps
        search = jax.tree.map(lambda new, old: where_rows(has_steps, new, old), new, search)
        return Progress(index + 1, last, state, search, request)

    def run(self, predict: Predict, progress: Progress, num_ended: ArrayLike) -> Progress:
        """Advance until so many rows have ended."""

        def too_few(progress: Progress) -> Array:
            return jnp.sum(~self.unfinished(progress), dtype=jnp.int32) < num_ended

        return jax.lax.while_loop(too_few, lambda now: self.advance(predict, now), progress)

    def output(self, search: object, active: Array | None) -> GenerationOutput:
        """Return the answers, without those of rows that are unfinished or not active."""
        removed = self.strategy.unfinished(search)
        if active is not None:
            removed |= ~active
        return discard(self.strategy.output(search), removed, self.settings.stopping.pad)


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

    Returns:
        The answers.

    Raises:
        TypeError: start tokens or a prefix that are not integers.
        ValueError: arguments that do not fit the batch, the vocabulary or each other; a cache that
            is too small.
    """
    decoder = make_decoder(step, strategy, stopping, logit_processors, observe, max_steps)
    request = make_request(start, stopping, prefix, history, rng)
    start = start.astype(jnp.int32)
    check_state(state, len(start), decoder.settings.max_steps)  # lengths of caches may be known
    like = jax.eval_shape(decoder.first_prediction, state, start)
    search = strategy.begin(decoder.settings, request, like)
    index = jnp.zeros(start.shape, jnp.int32)
    if active is not None:
        index = jnp.where(active, index, decoder.settings.max_steps)
    predict = decoder.lifted(state)
    state, last = decoder.first(state, start)
    progress = Progress(index, last, state, search, request)
    progress = decoder.run(predict, progress, num_ended=len(start))
    return decoder.output(progress.search, active)


def make_decoder(
    step: Step,
    strategy: Strategy,
    stopping: StoppingCriteria,
    logit_processors: Sequence[LogitProcessor],
    observe: Observe | None,
    max_steps: int | None,
) -> Decoder:
    """Return the decoder of these settings.

    Raises:
        ValueError: a number of steps outside [1, max_tokens].
    """
    max_steps = stopping.max_tokens if max_steps is None else max_steps
    if not 1 <= max_steps <= stopping.max_tokens:
        raise ValueError(
            f"max_steps must be between 1 and max_tokens {stopping.max_tokens}, got {max_steps}"
        )
    settings = Settings(stopping, tuple(logit_processors), max_steps)
    return Decoder(step, strategy, settings, observe)


def make_request(
    start: Array,
    stopping: StoppingCriteria,
    prefix: Prefix | None,
    history: History | None,
    rng: Array | None,
) -> Request:
    """Return what each row is given.

    Raises:
        TypeError: start tokens that are not integers.
        ValueError: arguments for another number of rows.
    """
    if start.ndim != 1 or not jnp.issubdtype(start.dtype, jnp.integer):
        raise TypeError(
            f"start needs one integer token per row [B], got {start.dtype} {start.shape}"
        )
    if rng is not None and rng.shape[:1] != start.shape:
        raise ValueError(
            f"rng needs one random key for each of {len(start)} rows, as "
            f"jax.random.split(rng, {len(start)}) makes them, got shape {rng.shape}"
        )
    if history is None:
        history = History(start[:, None], jnp.ones(start.shape, jnp.int32))
    history = History(*(jnp.asarray(part).astype(jnp.int32) for part in history))
    return Request(history, check_prefix(prefix, len(start), stopping.max_tokens), rng)
