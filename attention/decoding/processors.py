"""Logit processors: functions `(logits [..., V], History) -> logits`.

They apply in the order in which they are given. In sampling they receive logits, in beam search
log-probabilities of each hypothesis (as in Hugging Face Transformers), and their results are
summed; the early stop of beam search is exact if no result exceeds 0. -inf excludes a
token. A row, or a hypothesis of beam search, of which every token is excluded ends without an
answer. The classes raise a ValueError for values out of range.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

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
