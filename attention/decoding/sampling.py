"""Logit processors, and strategies that choose the next tokens: the protocol, greedy, sampling.

Logit processors are functions `(logits [..., V], History) -> logits`, applied in the order in which
they are given. In sampling they receive logits, in beam search log-probabilities of each hypothesis
(as in Hugging Face Transformers), and their results are summed; the early stop of beam search is
exact if no result exceeds 0. -inf excludes a token. A row, or a hypothesis of beam search, of which
every token is excluded ends without an answer.

`NoRepeatNgram` and `AllowedTokens` keep the dtype of the logits, the other classes compute in
float32 at least. Numbers out of range raise a ValueError.
"""

import math
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
    Prefix,
    StoppingCriteria,
    append,
    at_index,
    discard,
    empty_output,
    unit_axes,
)
from attention.modules.numbers import check_count, check_number
from attention.primitives.numerics import wide

State = TypeVar("State")
Observe = Callable[[Any], Any]
"""Maps the result of a step to a pytree with leaves `[B, *]`, which is kept for each token."""

FACTOR = {"required": True, "at_least": 1e-30, "at_most": 1e30}  # no overflow in float32


class History(NamedTuple):
    """Tokens before the one that is chosen.

    Attributes:
        tokens: int32 `[..., L]`: the prompt, or the start token of an encoder-decoder model,
            followed by the answer so far; padded at the end.
        length: int32 `[...]`, number of valid tokens.
    """

    tokens: Array
    length: Array


LogitProcessor = Callable[[Array, History], Array]


@dataclass(frozen=True)
class Temperature:
    """Divide logits by `temperature`: below 1 likely tokens gain, above 1 unlikely ones."""

    temperature: float

    def __post_init__(self) -> None:
        check_number("temperature (for 0 use Greedy)", self.temperature, **FACTOR)

    def __call__(self, logits: Array, history: History | None = None) -> Array:
        (logits,) = wide(logits)
        return logits / self.temperature


@dataclass(frozen=True)
class TopK:
    """Keep the `top_k` most likely tokens; first of equal ones (Fan et al. 2018, section 5)."""

    top_k: int

    def __post_init__(self) -> None:
        check_count("top_k", self.top_k, required=True, at_least=1)

    def __call__(self, logits: Array, history: History | None = None) -> Array:
        (logits,) = wide(logits)
        number = min(int(self.top_k), logits.shape[-1])
        smallest = jax.lax.top_k(logits, number)[0][..., -1:]
        return _keep_first(logits, smallest, number)


@dataclass(frozen=True)
class TopP:
    """Keep the fewest most likely tokens of total probability `top_p` (Holtzman et al. 2020)."""

    top_p: float

    def __post_init__(self) -> None:
        check_number("top_p", self.top_p, required=True, above=0, at_most=1)

    def __call__(self, logits: Array, history: History | None = None) -> Array:
        (logits,) = wide(logits)
        if self.top_p == 1:
            return logits  # a rounded sum could reach 1 before the last token
        descending = -jnp.sort(-logits, axis=-1)
        probabilities = jax.nn.softmax(descending, axis=-1)
        above = jnp.cumsum(probabilities, axis=-1) - probabilities
        number = (above < self.top_p).sum(-1, keepdims=True, dtype=jnp.int32)
        number = jnp.maximum(number, 1)  # a very small `top_p` is rounded to 0
        smallest = jnp.take_along_axis(descending, number - 1, axis=-1)
        return _keep_first(logits, smallest, number)


@dataclass(frozen=True)
class MinP:
    """Keep tokens at least `min_p` times as likely as the most likely one (Nguyen et al. 2024)."""

    min_p: float

    def __post_init__(self) -> None:
        check_number("min_p", self.min_p, required=True, above=0, at_most=1)

    def __call__(self, logits: Array, history: History | None = None) -> Array:
        (logits,) = wide(logits)
        least = logits.max(axis=-1, keepdims=True) + math.log(self.min_p)
        return jnp.where(logits < least, -jnp.inf, logits)


@dataclass(frozen=True)
class RepetitionPenalty:
    """Make tokens of the history less likely (Keskar et al. 2019, section 4.1).

    Positive logits are divided by `penalty` and negative ones are multiplied by it.
    """

    penalty: float

    def __post_init__(self) -> None:
        check_number("repetition penalty", self.penalty, **FACTOR)

    def __call__(self, logits: Array, history: History) -> Array:
        (logits,) = wide(logits)
        valid = _counted(history.tokens) < history.length[..., None]
        is_repeated = _mark(history.tokens, valid, logits.shape[-1])
        penalized = jnp.where(logits > 0, logits / self.penalty, logits * self.penalty)
        return jnp.where(is_repeated, penalized, logits)


@dataclass(frozen=True)
class NoRepeatNgram:
    """Exclude tokens that would complete an n-gram of the history (Paulus et al. 2017)."""

    size: int

    def __post_init__(self) -> None:
        check_count("the size of an n-gram", self.size, required=True, at_least=1)

    def __call__(self, logits: Array, history: History) -> Array:
        tokens, length, before = history.tokens, history.length, self.size - 1
        num_starts = tokens.shape[-1] - before
        if num_starts < 1:
            return logits
        ends = _counted(tokens)[..., before:]
        repeats = ends < length[..., None]  # n-grams that are in the history
        for offset in range(before):
            newest = jnp.take_along_axis(
                tokens, (length - before + offset)[..., None], axis=-1, mode="clip"
            )
            repeats &= tokens[..., offset : offset + num_starts] == newest
        return jnp.where(_mark(tokens[..., before:], repeats, logits.shape[-1]), -jnp.inf, logits)


@dataclass(frozen=True)
class AllowedTokens:
    """Exclude all tokens but those that a function of the history allows.

    Attributes:
        allowed: `(History) -> bool [..., V]`, or a shape that broadcasts to it.
    """

    allowed: Callable[[History], Array]

    def __call__(self, logits: Array, history: History) -> Array:
        allowed = jnp.asarray(self.allowed(history))
        if allowed.dtype != bool:
            raise TypeError(f"allowed must return bool [..., V], got {allowed.dtype}")
        return jnp.where(jnp.broadcast_to(allowed, logits.shape), logits, -jnp.inf)


def _counted(tokens: Array) -> Array:
    """Return the index of each of tokens `[..., L]`, from 0."""
    return jax.lax.broadcasted_iota(jnp.int32, tokens.shape, tokens.ndim - 1)


def _mark(tokens: Array, valid: Array, vocab_size: int) -> Array:
    """Return which ids are among the valid tokens `[..., L]`: bool `[..., V]`."""
    flat = jnp.where(valid, tokens, vocab_size).reshape(-1, tokens.shape[-1])
    rows = jnp.arange(len(flat), dtype=flat.dtype)[:, None]
    marks = jnp.zeros((len(flat), vocab_size), bool).at[rows, flat].set(True, mode="drop")
    return marks.reshape(*tokens.shape[:-1], vocab_size)


def _keep_first(logits: Array, smallest: Array, number: int | Array) -> Array:
    """Exclude logits below `smallest`, and those equal to it after the first `number` in all."""
    equal = logits == smallest
    num_equal = number - (logits > smallest).sum(-1, keepdims=True, dtype=jnp.int32)
    excess = equal & (jnp.cumsum(equal, axis=-1, dtype=jnp.int32) > num_equal)
    return jnp.where((logits < smallest) | excess, -jnp.inf, logits)


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

    def history_with(self, tokens: Array, index: Array) -> History:
        """Return the history `[B, *, P + L]` of answers `[B, *, L]` of `index` `[B]` tokens."""
        front, length = (
            jnp.expand_dims(leaf, tuple(range(1, tokens.ndim - 1))) for leaf in self.history
        )
        front = jnp.broadcast_to(front, (*tokens.shape[:-1], front.shape[-1]))
        joined = jnp.concatenate([front, tokens], axis=-1)
        places, padding = _counted(joined), front.shape[-1] - length[..., None]
        places = jnp.where(places < length[..., None], places, places + padding)
        joined = jnp.take_along_axis(joined, places, axis=-1, mode="clip")
        length = length + unit_axes(index, tokens.ndim - 1)
        return History(joined, jnp.broadcast_to(length, tokens.shape[:-1]))


@dataclass(frozen=True)
class DecodingOptions:
    """Static options of a decoding loop, common to all rows: those of `decode`, and `max_steps`.

    Rows that are unfinished after `max_steps`, by default `max_tokens`, get length 0 and score
    -inf; caches need to hold so many tokens.
    """

    strategy: "Strategy"
    stopping: StoppingCriteria
    logit_processors: Sequence[LogitProcessor] = ()
    observe: Observe | None = None
    max_steps: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.strategy, type) or not hasattr(self.strategy, "select"):
            raise TypeError(f"strategy needs an instance, such as Greedy(), got {self.strategy!r}")
        object.__setattr__(self, "logit_processors", tuple(self.logit_processors))
        object.__setattr__(self, "max_steps", self.max_steps or self.stopping.max_tokens)

    def process(self, logits: Array, inputs: RowInputs, tokens: Array, index: Array) -> Array:
        """Apply `min_tokens` and the logit processors to scores of the next token `[B, *, V]`.

        `tokens` are the answers `[B, *, L]`, and `index` `[B]` is the number of their tokens.
        Raises a ValueError for a logit processor that returns another shape.
        """
        if self.stopping.min_tokens > 1:
            shape = (1,) * (logits.ndim - 1) + logits.shape[-1:]
            ids = jax.lax.broadcasted_iota(jnp.int32, shape, logits.ndim - 1)
            logits = jnp.where(self.stopping.too_early(ids, index, tokens), -jnp.inf, logits)
        history = inputs.history_with(tokens, index) if self.logit_processors else None
        for processor in self.logit_processors:
            processed, shape = processor(logits, history), logits.shape
            if jnp.shape(processed) != shape:
                raise ValueError(f"{processor} maps {shape} logits to {jnp.shape(processed)}")
            logits = processed
        return logits


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
    """

    @property
    def num_beams(self) -> int | None:
        """W, hypotheses per row; None if there is one, and the model state is not repeated."""

    def begin(self, options: DecodingOptions, inputs: RowInputs, like: Prediction) -> State:
        """Return the state before the first token, given shapes of a prediction of some rows.

        Raises a ValueError for options that do not fit the strategy.
        """

    def select(
        self,
        options: DecodingOptions,
        inputs: RowInputs,
        state: State,
        index: Array,
        prediction: Prediction,
    ) -> tuple[State, Array | NextTokens]:
        """Choose token number `index` `[B]`; return the state and what the step reads next.

        That is tokens `[B]`, or `NextTokens` of W hypotheses.
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
        """Choose a token of each row, int `[B]`.

        `logits` `[B, V]` are those after the logit processors. The random keys `[B]` are different
        at each step, and None if none were given.
        """

    def begin(self, options: DecodingOptions, inputs: RowInputs, like: Prediction) -> TokenState:
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
        stopping, prefix, logits = options.stopping, inputs.prefix, prediction.logits
        processed = options.process(logits, inputs, state.output.tokens, index)
        rng = None if inputs.rng is None else jax.vmap(jax.random.fold_in)(inputs.rng, index)
        chosen = self.choose(processed, rng).astype(jnp.int32)
        if prefix is not None:
            is_forced = index < prefix.lengths
            chosen = jnp.where(is_forced, at_index(prefix.tokens, index), chosen)
        peak, rest = log_normalizer(logits)
        log_prob = (_at(logits, chosen) - peak - rest)[:, 0]
        impossible = _at(processed, chosen)[:, 0] == -jnp.inf
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
        return ~state.finished

    def output(self, state: TokenState) -> GenerationOutput:
        return state.output


@dataclass(frozen=True)
class Greedy(TokenStrategy):
    """Choose the most likely token; of equal ones, the first."""

    def choose(self, logits: Array, rng: Array | None) -> Array:
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
        ValueError: a value out of range; when decoding begins, no random keys.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if hasattr(value, "item"):  # an array cannot be hashed
                object.__setattr__(self, name, value.item())
        self._processors()

    def begin(self, options: DecodingOptions, inputs: RowInputs, like: Prediction) -> TokenState:
        if inputs.rng is None:
            raise ValueError("sampling needs random numbers: pass rng=jax.random.key(seed)")
        return super().begin(options, inputs, like)

    def choose(self, logits: Array, rng: Array | None) -> Array:
        for processor in self._processors():
            logits = processor(logits)
        return jax.vmap(jax.random.categorical)(rng, logits)

    def _processors(self) -> Sequence[LogitProcessor]:
        processors = [] if self.temperature == 1 else [Temperature(self.temperature)]
        for processor, value in ((TopK, self.top_k), (TopP, self.top_p), (MinP, self.min_p)):
            processors += [] if value is None else [processor(value)]
        return processors


def log_normalizer(logits: Array) -> tuple[Array, Array]:
    """Return two parts `[..., 1]` of the logsumexp: the largest logit and the rest.

    Both are 0 where all logits are -inf, so that log-probabilities are -inf and not NaN.
    """
    peak = logits.max(axis=-1, keepdims=True)
    peak = jnp.where(peak == -jnp.inf, 0, peak)
    total = jnp.exp(logits - peak).sum(axis=-1, keepdims=True)
    return peak, jnp.log(jnp.where(total == 0, 1, total))


def _at(logits: Array, tokens: Array) -> Array:
    """Return the entries `[B, 1]` of logits `[B, V]` for tokens `[B]`."""
    return jnp.take_along_axis(logits, tokens[:, None], axis=-1)
