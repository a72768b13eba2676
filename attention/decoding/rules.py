"""What an answer must obey, whoever chooses its tokens: its end, its length, its first tokens."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.cache import check_lengths


class Forced(NamedTuple):
    """Tokens with which each row must begin, its prompt for instance.

    Attributes:
        tokens: `[B, P]`; what stands behind a row's length has no meaning.
        lengths: how many of them each row begins with, `[B]`; more than there are is an error where
            that is known, and all of them where it is traced.
    """

    tokens: Array
    lengths: Array


@dataclass(frozen=True)
class Rules:
    """When an answer may end and when it must.

    Attributes:
        end: the token that ends an answer; one outside the vocabulary never does.
        pad: what stands behind the end.
        max_length: the most tokens of an answer, forced ones and the end included.
        min_length: the fewest, counted the same way; `end` may not come before.

    Raises:
        ValueError: lengths that no answer can have.
    """

    end: int
    pad: int
    max_length: int
    min_length: int = 0

    def __post_init__(self) -> None:
        if self.max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {self.max_length}")
        if not 0 <= self.min_length <= self.max_length:
            raise ValueError(
                f"min_length must be between 0 and max_length {self.max_length}, "
                f"got {self.min_length}"
            )

    def constrain(self, log_probs: Array, tokens: Array, index: Array, forced: Forced) -> Array:
        """Leaves only the tokens that may come now.

        A forced token is given, not chosen: its log-probability is 0, so an answer is scored as
        what follows given what was forced. It comes even if the step holds it impossible. All
        tokens but the `exception` stay in their order.

        Args:
            log_probs: of some tokens, `[B, *]`.
            tokens: which, integers of a shape that broadcasts to it.
            index: how many tokens the answers have, `[B]`.
            forced: as `prepare` made it.

        Returns:
            `[B, *]`, -inf for what may not come.
        """
        each_row = (-1, *[1] * (log_probs.ndim - 1))
        too_early = (tokens == self.end) & (index + 1 < self.min_length).reshape(each_row)
        free = jnp.where(too_early, -jnp.inf, log_probs)
        is_said = tokens == _at(forced.tokens, index).reshape(each_row)
        only = jnp.where(is_said, 0, -jnp.inf).astype(log_probs.dtype)
        return jnp.where((index < forced.lengths).reshape(each_row), only, free)

    def exception(self, index: Array, forced: Forced) -> Array:
        """The one token of each row, `[B]`, that `constrain` may treat unlike all others."""
        return jnp.where(index < forced.lengths, _at(forced.tokens, index), self.end)

    def prepare(self, forced: Forced | None, start: Array, vocab_size: int) -> Forced:
        """Gives the forced tokens, or none at all, the width of an answer.

        Args:
            forced: the tokens, if any.
            start: the first token each row reads, `[B]`.
            vocab_size: V.

        Raises:
            TypeError: tokens or lengths that are not integers.
            ValueError: a start whose dtype, that of the answer, holds no such tokens; forced tokens
                of another batch, or longer than an answer may be; where that
                is known, lengths that are not those of the tokens, and tokens that nobody knows.
        """
        if vocab_size - 1 > jnp.iinfo(start.dtype).max:
            raise ValueError(
                f"an answer has the dtype of start, and {start.dtype} holds no token "
                f"{vocab_size - 1}"
            )
        if forced is None:
            forced = Forced(start[:, None], jnp.zeros(start.shape, jnp.int32))
        rows, width = start.shape[0], forced.tokens.shape[-1]
        if forced.tokens.shape != (rows, width) or forced.lengths.shape != (rows,):
            raise ValueError(
                f"forced needs tokens [{rows}, P] and lengths [{rows}], as start has {rows} rows, "
                f"got {forced.tokens.shape} and {forced.lengths.shape}"
            )
        if width > self.max_length:
            raise ValueError(
                f"forced has {width} tokens, and an answer at most {self.max_length} (max_length)"
            )
        check_lengths(forced.lengths, width)
        _check_known(forced, vocab_size)
        tokens = jnp.pad(forced.tokens, ((0, 0), (0, self.max_length - width)))
        lengths = jnp.minimum(jnp.asarray(forced.lengths), width)
        return Forced(tokens.astype(jnp.int32), lengths.astype(jnp.int32))


def _at(tokens: Array, index: Array) -> Array:
    """Token number `index [B]` of each row of `[B, L]`; the last where there are not so many."""
    return jnp.take_along_axis(tokens, index[:, None], axis=1, mode="clip")[:, 0]


def _check_known(forced: Forced, vocab_size: int) -> None:
    """Checks that a vocabulary has the tokens, as far as they are known yet."""
    if not jnp.issubdtype(forced.tokens.dtype, jnp.integer):
        raise TypeError(f"forced tokens must be integers, got {forced.tokens.dtype}")
    with jax.ensure_compile_time_eval():  # under jit too, constants are known
        tokens, lengths = map(jnp.asarray, forced)
        unknown = (tokens < 0) | (tokens >= vocab_size)
        places = jnp.arange(tokens.shape[-1], dtype=lengths.dtype)
        wrong = jnp.any(unknown & (places[None] < lengths[:, None]))
    if not isinstance(wrong, jax.core.Tracer) and wrong:
        raise ValueError(f"forced tokens must lie in 0 to {vocab_size - 1}, got {forced.tokens}")
