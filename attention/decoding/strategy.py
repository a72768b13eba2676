"""Strategies choose the next tokens: the protocol, greedy decoding and sampling."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from attention.decoding.output import (
    GenerationOutput,
    Prediction,
    append,
    discard,
    empty_output,
)
from attention.decoding.processors import (
    History,
    LogitProcessor,
    MinP,
    Temperature,
    TopK,
    TopP,
    apply_processor,
    check_processors,
    join_history,
)
from attention.decoding.stopping import Prefix, StoppingCriteria, at_index

State = TypeVar("State")
Observe = Callable[[Any], Any]
"""Maps the result of a step to a pytree with leaves `[B, *]`, which is kept for each token."""


@dataclass(frozen=True)
class DecodingOptions:
    """Static options of a decoding loop, common to all rows; the fields are those of `decode`.

    Raises:
        TypeError: a strategy or a logit processor that is none.
        ValueError: a number of steps outside [1, max_tokens].
    """

    strategy: "Strategy"
    stopping: StoppingCriteria
    logit_processors: Sequence[LogitProcessor] = ()
    observe: Observe | None = None
    max_steps: int | None = None

    def __post_init__(self) -> None:
        most = self.stopping.max_tokens
        if isinstance(self.strategy, type) or not hasattr(self.strategy, "select"):
            raise TypeError(
                "strategy needs an instance, such as Greedy() or Sample(top_k=40), "
                f"got {self.strategy!r}"
            )
        check_processors(self.logit_processors)
        object.__setattr__(self, "logit_processors", tuple(self.logit_processors))
        object.__setattr__(self, "max_steps", most if self.max_steps is None else self.max_steps)
        if not 1 <= self.max_steps <= most:
            raise ValueError(
                f"max_steps must be between 1 and max_tokens {most}, got {self.max_steps}"
            )

    def process(self, logits: Array, inputs: "RowInputs", tokens: Array, index: Array) -> Array:
        """Apply `min_tokens` and the logit processors to `[B, *, V]`.

        Args:
            logits: scores of the next token.
            inputs: of each row.
            tokens: `[B, *, L]`, the answers.
            index: `[B]`, number of tokens of each answer.
        """
        if self.stopping.min_tokens > 1:
            ids = jax.lax.broadcasted_iota(
                jnp.int32, (1,) * (logits.ndim - 1) + logits.shape[-1:], logits.ndim - 1
            )
            logits = jnp.where(self.stopping.too_early(ids, index, tokens), -jnp.inf, logits)
        if self.logit_processors:
            history = join_history(inputs.history, tokens, index)
            for processor in self.logit_processors:
                logits = apply_processor(processor, logits, history)
        return logits


class RowInputs(NamedTuple):
    """Inputs of each row, leaves `[B, *]`.

    Attributes:
        history: the tokens in front of the answer, for logit processors.
        prefix: the tokens that the answer begins with, if any.
        rng: a random key for each row, if any.
    """

    history: History
    prefix: Prefix | None
    rng: Array | None


class NextTokens(NamedTuple):
    """The tokens that the W hypotheses of each row read next.

    Attributes:
        tokens: `[B, W]`.
        parents: `[B, W]`, number of the hypothesis that each extends.
    """

    tokens: Array
    parents: Array


class Strategy(Protocol[State]):
    """A way to choose tokens. Its state between steps is a pytree with leaves `[B, *]`.

    Subclass `TokenStrategy` for one that follows a single hypothesis per row.

    Attributes:
        num_beams: W, number of hypotheses per row; None if there is one, and the state of the model
            is not repeated.
    """

    num_beams: int | None

    def begin(self, options: DecodingOptions, inputs: RowInputs, like: Prediction) -> State:
        """Return the state before the first token.

        Args:
            options: common to all rows.
            inputs: of each row.
            like: shapes of a prediction, for any number of rows.

        Raises:
            ValueError: options that do not fit the strategy.
        """

    def select(
        self,
        options: DecodingOptions,
        inputs: RowInputs,
        state: State,
        index: Array,
        prediction: Prediction,
    ) -> tuple[State, Array | NextTokens]:
        """Choose token number `index` `[B]`.

        Returns:
            The state, and the tokens that the step reads next: `[B]`, or `NextTokens` of W.
        """

    def unfinished(self, state: State) -> Array:
        """Return which rows need more tokens: bool `[B]`."""

    def output(self, state: State) -> GenerationOutput:
        """Return the answers."""


class TokenState(NamedTuple):
    """The answers so far, and which of them have ended, `[B]`."""

    output: GenerationOutput
    finished: Array


class TokenStrategy:
    """Base class of strategies that follow one hypothesis per row: subclasses define `choose`.

    A row whose chosen token is excluded, because all tokens are, has no answer.
    """

    num_beams = None

    @abstractmethod
    def choose(self, logits: Array, rng: Array | None) -> Array:
        """Choose a token of each row.

        Args:
            logits: `[B, V]`, after the logit processors.
            rng: `[B]` random keys, different at each step; None if none were given.

        Returns:
            int `[B]`.
        """

    def begin(self, options: DecodingOptions, inputs: RowInputs, like: Prediction) -> TokenState:
        """Return answers without a token."""
        shape = inputs.history.length.shape
        output = empty_output(shape, options.max_steps, options.stopping.pad, like)
        return TokenState(output, jnp.zeros(shape, bool))

    def select(
        self,
        options: DecodingOptions,
        inputs: RowInputs,
        state: TokenState,
        index: Array,
        prediction: Prediction,
    ) -> tuple[TokenState, Array]:
        """Choose token number `index` `[B]` of each row that has not ended."""
        stopping, prefix, logits = options.stopping, inputs.prefix, prediction.logits
        processed = options.process(logits, inputs, state.output.tokens, index)
        rng = None if inputs.rng is None else jax.vmap(jax.random.fold_in)(inputs.rng, index)
        chosen = self.choose(processed, rng).astype(jnp.int32)
        if prefix is not None:
            is_forced = index < prefix.lengths
            chosen = jnp.where(is_forced, at_index(prefix.tokens, index), chosen)
        log_prob, impossible = _log_prob(logits, chosen), _at(processed, chosen) == -jnp.inf
        if prefix is not None:
            log_prob = jnp.where(is_forced, 0, log_prob)
            impossible &= ~is_forced
        active = ~state.finished
        impossible &= active
        output = append(state.output, index, chosen, log_prob, prediction.observed, active)
        output = discard(output, impossible, stopping.pad)
        ended = stopping.ends(output.tokens, index) | (index + 1 == stopping.max_tokens)
        next_tokens = jnp.where(active & ~impossible, chosen, stopping.pad)
        return TokenState(output, state.finished | ended | impossible), next_tokens

    def unfinished(self, state: TokenState) -> Array:
        """Return which rows need more tokens: bool `[B]`."""
        return ~state.finished

    def output(self, state: TokenState) -> GenerationOutput:
        """Return the answers, `...` = B."""
        return state.output


@dataclass(frozen=True)
class Greedy(TokenStrategy):
    """Choose the most likely token; of equal ones, the first."""

    def choose(self, logits: Array, rng: Array | None) -> Array:
        """Choose a token of each row."""
        del rng
        return jnp.argmax(logits, axis=-1)


@dataclass(frozen=True)
class Sample(TokenStrategy):
    """Draw tokens. The draws of a row depend on its random key and on nothing else in the batch.

    `Temperature`, `TopK`, `TopP` and `MinP` apply in this order, after the logit processors.

    Attributes:
        temperature: divides the logits.
        top_k: number of tokens that are kept; None for all, and so below.
        top_p: probability of the tokens that are kept.
        min_p: smallest probability, as a share of the largest one.

    Raises:
        ValueError: a value out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        self._processors()

    def begin(self, options: DecodingOptions, inputs: RowInputs, like: Prediction) -> TokenState:
        """Return answers without a token.

        Raises:
            ValueError: no random keys.
        """
        if inputs.rng is None:
            raise ValueError("sampling needs random numbers: pass rng=jax.random.key(seed)")
        return super().begin(options, inputs, like)

    def choose(self, logits: Array, rng: Array | None) -> Array:
        """Draw a token of each row."""
        for processor in self._processors():
            logits = processor(logits)
        return jax.vmap(jax.random.categorical)(rng, logits)

    def _processors(self) -> Sequence[LogitProcessor]:
        found = [] if self.temperature == 1 else [Temperature(self.temperature)]
        for kind, value in ((TopK, self.top_k), (TopP, self.top_p), (MinP, self.min_p)):
            found += [] if value is None else [kind(value)]
        return found


def _log_prob(logits: Array, tokens: Array) -> Array:
    """Return the log-probability of tokens `[B]` by logits `[B, V]`."""
    peak = logits.max(axis=-1)
    rest = jnp.log(jnp.exp(logits - peak[:, None]).sum(axis=-1))
    return _at(logits, tokens) - peak - rest


def _at(logits: Array, tokens: Array) -> Array:
    """Return the entries `[B]` of logits `[B, V]` for tokens `[B]`."""
    return jnp.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
