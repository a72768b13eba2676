"""Logit processors and strategies: greedy decoding and sampling."""

import inspect
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
    append,
    discard,
    empty_output,
)
from attention.decoding.stopping import Prefix, StoppingCriteria, at_index

LIMIT = 1e30  # of temperatures and their inverses: quotients stay far from overflow in float32


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


def check_processors(processors: Sequence[LogitProcessor]) -> None:
    """Raise a TypeError if these are not functions `(logits, history) -> logits`."""
    if callable(processors):
        raise TypeError(
            f"logit_processors needs a sequence of functions, got {_name(processors)} alone"
        )
    for processor in processors:
        try:
            inspect.signature(processor).bind("logits", "history")
        except TypeError:
            raise TypeError(
                f"logit processor {_name(processor)} needs the arguments (logits, history)"
            ) from None
        except ValueError:  # the signature of some compiled functions is not known
            pass


def check_hashable(processors: Sequence[LogitProcessor]) -> None:
    """Raise a TypeError if compiled programs cannot be found again by these processors."""
    for processor in processors:
        try:
            hash(processor)
        except TypeError as error:
            raise TypeError(
                f"logit processor {_name(processor)} must be hashable ({error}): use a frozen "
                "dataclass without arrays, or jax.tree_util.Partial(function, array), made once"
            ) from None


def apply_processor(processor: LogitProcessor, logits: Array, history: History) -> Array:
    """Return the processed logits.

    Raises:
        TypeError: a function that cannot be traced, or that returns no array.
        ValueError: logits of another shape.
    """
    try:
        processed = processor(logits, history)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        raise TypeError(
            f"logit processor {_name(processor)} needs the values of a traced array: use jnp.where "
            "in place of if, and jnp in place of NumPy"
        ) from error
    if not hasattr(processed, "shape"):
        got = type(processed).__name__
        raise TypeError(f"logit processor {_name(processor)} must return logits, got {got}")
    if processed.shape != logits.shape:
        raise ValueError(
            f"logit processor {_name(processor)} maps logits of shape {logits.shape} to shape "
            f"{processed.shape}"
        )
    return processed


def _name(processor: object) -> str:
    return getattr(processor, "__name__", type(processor).__name__)


@dataclass(frozen=True)
class Temperature:
    """Divide logits by `value`: below 1 likely tokens gain, above 1 unlikely ones."""

    value: float

    def __post_init__(self) -> None:
        if not 1 / LIMIT <= self.value <= LIMIT:
            raise ValueError(
                f"temperature must be between {1 / LIMIT:g} and {LIMIT:g}, got {self.value}; "
                "for 0 use Greedy"
            )

    def __call__(self, logits: Array, history: History | None = None) -> Array:
        return logits / self.value


@dataclass(frozen=True)
class TopK:
    """Keep the `number` most likely tokens; first of equal ones (Fan et al. 2018, section 5)."""

    number: int

    def __post_init__(self) -> None:
        _check_integer("top_k", self.number)

    def __call__(self, logits: Array, history: History | None = None) -> Array:
        number = min(int(self.number), logits.shape[-1])
        smallest = jax.lax.top_k(logits, number)[0][..., -1:]
        return _keep_first(logits, smallest, number)


@dataclass(frozen=True)
class TopP:
    """Keep the fewest most likely tokens of total probability `mass` (Holtzman et al. 2020)."""

    mass: float

    def __post_init__(self) -> None:
        _check_share("top_p", self.mass)

    def __call__(self, logits: Array, history: History | None = None) -> Array:
        if self.mass == 1:
            return logits  # a rounded sum could reach 1 before the last token
        descending = -jnp.sort(-logits, axis=-1)
        probabilities = jax.nn.softmax(descending, axis=-1)
        above = jnp.cumsum(probabilities, axis=-1) - probabilities
        number = (above < self.mass).sum(-1, keepdims=True, dtype=jnp.int32)
        smallest = jnp.take_along_axis(descending, number - 1, axis=-1)
        return _keep_first(logits, smallest, number)


@dataclass(frozen=True)
class MinP:
    """Keep tokens at least `share` times as likely as the most likely one (Nguyen et al. 2024)."""

    share: float

    def __post_init__(self) -> None:
        _check_share("min_p", self.share)

    def __call__(self, logits: Array, history: History | None = None) -> Array:
        least = logits.max(axis=-1, keepdims=True) + math.log(self.share)
        return jnp.where(logits < least, -jnp.inf, logits)


@dataclass(frozen=True)
class RepetitionPenalty:
    """Make tokens of the history less likely (Keskar et al. 2019, section 4.1).

    Positive logits are divided by `penalty` and negative ones are multiplied by it.
    """

    penalty: float

    def __post_init__(self) -> None:
        if not 0 < self.penalty < math.inf:
            raise ValueError(f"repetition penalty must be positive, got {self.penalty}")

    def __call__(self, logits: Array, history: History) -> Array:
        valid = _counted(history.tokens) < history.length[..., None]
        is_repeated = _mark(history.tokens, valid, logits.shape[-1])
        penalized = jnp.where(logits > 0, logits / self.penalty, logits * self.penalty)
        return jnp.where(is_repeated, penalized, logits)


@dataclass(frozen=True)
class NoRepeatNgram:
    """Exclude tokens that would complete an n-gram of the history (Paulus et al. 2017)."""

    size: int

    def __post_init__(self) -> None:
        _check_integer("the size of an n-gram", self.size)

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
        return jnp.where(jnp.broadcast_to(self.allowed(history), logits.shape), logits, -jnp.inf)


def join_history(before: History, tokens: Array, index: Array) -> History:
    """Return the history of answers.

    Args:
        before: tokens `[B, P]`, length `[B]`, in front of the answers.
        tokens: `[B, *, L]`, the answers.
        index: `[B]`, number of tokens of each answer.

    Returns:
        Tokens `[B, *, P + L]`, length `[B, *]`.
    """
    axes = tuple(range(1, tokens.ndim - 1))
    length = jnp.broadcast_to(jnp.expand_dims(before.length, axes), tokens.shape[:-1])[..., None]
    front = jnp.expand_dims(before.tokens, axes)
    front = jnp.broadcast_to(front, (*tokens.shape[:-1], front.shape[-1]))
    places = _counted(jnp.concatenate([front, tokens], axis=-1))
    prompt = jnp.take_along_axis(front, places, axis=-1, mode="clip")
    answer = jnp.take_along_axis(tokens, places - length, axis=-1, mode="clip")
    joined = jnp.where(places < length, prompt, answer)
    return History(joined, length[..., 0] + jnp.expand_dims(index, axes))


def _counted(tokens: Array) -> Array:
    """Return the index of each of tokens `[..., L]`, from 0."""
    return jax.lax.broadcasted_iota(jnp.int32, tokens.shape, tokens.ndim - 1)


def _mark(tokens: Array, valid: Array, vocab_size: int) -> Array:
    """Return which ids are among the valid tokens `[..., L]`: bool `[..., V]`."""
    flat = jnp.where(valid, tokens, vocab_size).reshape(-1, tokens.shape[-1])
    rows = jnp.arange(len(flat), dtype=flat.dtype)[:, None]
    found = jnp.zeros((len(flat), vocab_size), bool).at[rows, flat].set(True, mode="drop")
    return found.reshape(*tokens.shape[:-1], vocab_size)


def _keep_first(logits: Array, smallest: Array, number: int | Array) -> Array:
    """Exclude logits below `smallest`, and those equal to it after the first `number` in all."""
    equal = logits == smallest
    num_equal = number - (logits > smallest).sum(-1, keepdims=True, dtype=jnp.int32)
    excess = equal & (jnp.cumsum(equal, axis=-1, dtype=jnp.int32) > num_equal)
    return jnp.where((logits < smallest) | excess, -jnp.inf, logits)


def _check_integer(name: str, value: float) -> None:
    if value < 1 or value % 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value}")


def _check_share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{name} must be in (0, 1], got {value}")


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
