"""Logit processors: functions `(logits [..., V], History) -> logits`.

They apply in the order in which they are given. In sampling they receive logits, in beam search
log-probabilities of each hypothesis (as in Hugging Face Transformers), and their results are
summed; the early stop of beam search is exact if no result exceeds 0. -inf excludes a token.
"""

import math
from collections.abc import Callable
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
            followed by the answer so far; padded behind.
        length: int32 `[...]`, number of valid tokens.
    """

    tokens: Array
    length: Array


LogitProcessor = Callable[[Array, History], Array]


@dataclass(frozen=True)
class Temperature:
    """Divide logits by `value`: below 1 likely tokens gain, above 1 unlikely ones.

    Raises:
        ValueError: a value that is not positive and finite.
    """

    value: float

    def __post_init__(self) -> None:
        if not 1 / LIMIT <= self.value <= LIMIT:
            raise ValueError(
                f"temperature must be between {1 / LIMIT:g} and {LIMIT:g}, got {self.value}; "
                "for 0 use Greedy"
            )

    def __call__(self, logits: Array, history: History | None = None) -> Array:
        """Map logits `[..., V]`."""
        return logits / self.value


@dataclass(frozen=True)
class TopK:
    """Keep the `number` likeliest tokens; of equal ones, the first (Fan et al. 2018, section 5).

    Raises:
        ValueError: a number that is not an integer of at least 1.
    """

    number: int

    def __post_init__(self) -> None:
        if self.number < 1 or self.number % 1:
            raise ValueError(f"top_k must be an integer of at least 1, got {self.number}")

    def __call__(self, logits: Array, history: History | None = None) -> Array:
        """Map logits `[..., V]`."""
        return jnp.where(_ranks(logits) < min(self.number, logits.shape[-1]), logits, -jnp.inf)


@dataclass(frozen=True)
class TopP:
    """Keep the fewest likeliest tokens with probability `mass` in all (Holtzman et al. 2020).

    Raises:
        ValueError: a mass outside (0, 1].
    """

    mass: float

    def __post_init__(self) -> None:
        if not 0 < self.mass <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.mass}")

    def __call__(self, logits: Array, history: History | None = None) -> Array:
        """Map logits `[..., V]`."""
        if self.mass == 1:
            return logits  # a rounded sum could reach 1 before the last token
        descending = -jnp.sort(-jax.nn.softmax(logits, axis=-1), axis=-1)
        above = jnp.cumsum(descending, axis=-1) - descending
        kept = (above < self.mass).sum(-1, keepdims=True)
        return jnp.where(_ranks(logits) < kept, logits, -jnp.inf)


@dataclass(frozen=True)
class MinP:
    """Keep tokens at least `share` times as likely as the likeliest (Nguyen et al. 2024).

    Raises:
        ValueError: a share outside (0, 1].
    """

    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"min_p must be in (0, 1], got {self.share}")

    def __call__(self, logits: Array, history: History | None = None) -> Array:
        """Map logits `[..., V]`."""
        least = logits.max(axis=-1, keepdims=True) + math.log(self.share)
        return jnp.where(logits >= least, logits, -jnp.inf)


@dataclass(frozen=True)
class RepetitionPenalty:
    """Make tokens of the history less likely (Keskar et al. 2019, section 4.1).

    Positive logits are divided by `penalty` and negative ones are multiplied by it.

    Raises:
        ValueError: a penalty that is not positive and finite.
    """

    penalty: float

    def __post_init__(self) -> None:
        if not 0 < self.penalty < math.inf:
            raise ValueError(f"repetition penalty must be positive, got {self.penalty}")

    def __call__(self, logits: Array, history: History) -> Array:
        """Map logits `[..., V]`."""
        valid = _counted(history.tokens) < history.length[..., None]
        seen = _mark(history.tokens, valid, logits.shape[-1])
        penalized = jnp.where(logits > 0, logits / self.penalty, logits * self.penalty)
        return jnp.where(seen, penalized, logits)


@dataclass(frozen=True)
class NoRepeatNgram:
    """Exclude tokens that would complete an n-gram of the history (Paulus et al. 2017).

    Raises:
        ValueError: a size that is not an integer of at least 1.
    """

    size: int

    def __post_init__(self) -> None:
        if self.size < 1 or self.size % 1:
            raise ValueError(f"the size of an n-gram must be at least 1, got {self.size}")

    def __call__(self, logits: Array, history: History) -> Array:
        """Map logits `[..., V]`."""
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
        """Map logits `[..., V]`."""
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
    """Return the place of each of tokens `[..., L]`, from 0."""
    return jax.lax.broadcasted_iota(jnp.int32, tokens.shape, tokens.ndim - 1)


def _mark(tokens: Array, valid: Array, vocab_size: int) -> Array:
    """Return which ids are among the valid tokens `[..., L]`: bool `[..., V]`."""
    flat = jnp.where(valid, tokens, vocab_size).reshape(-1, tokens.shape[-1])
    rows = jnp.arange(len(flat), dtype=flat.dtype)[:, None]
    found = jnp.zeros((len(flat), vocab_size), bool).at[rows, flat].set(True, mode="drop")
    return found.reshape(*tokens.shape[:-1], vocab_size)


def _ranks(logits: Array) -> Array:
    """Return how many tokens are likelier than each, `[..., V]`; of equal ones, the first is."""
    order = jnp.argsort(-logits, axis=-1, stable=True)
    return jnp.argsort(order, axis=-1)
