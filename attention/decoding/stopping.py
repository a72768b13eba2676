"""Conditions on an answer: how it ends, how long it is, and the tokens that it begins with."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from attention.decoding.output import unit_axes
from attention.primitives.cache import check_lengths

FEW = 32  # ids, with each of which a token is compared


class Prefix(NamedTuple):
    """Tokens that the answer of each row begins with.

    Their log-probability is 0, so an answer is scored given its prefix, and they do not count in a
    length penalty.

    Attributes:
        tokens: int `[B, P]`, padded at the end.
        lengths: int `[B]`, number of valid tokens per row.
    """

    tokens: Array
    lengths: Array


@dataclass(frozen=True)
class StoppingCriteria:
    """When an answer ends.

    Attributes:
        max_tokens: largest number of tokens of an answer, prefix and end included.
        stop: a token id, ids, or sequences of ids: an answer ends with any of them. An id outside
            the vocabulary never ends one. Stored as a tuple of tuples.
        min_tokens: smallest number of tokens, counted in the same way; no stop sequence is
            completed earlier, except by the prefix.
        pad: the token that fills an answer after its end.

    Raises:
        ValueError: an empty stop sequence, or limits that no answer can satisfy.
    """

    max_tokens: int
    stop: int | Sequence[int | Sequence[int]] = ()
    min_tokens: int = 0
    pad: int = 0

    def __post_init__(self) -> None:
        stop = [self.stop] if isinstance(self.stop, Integral) else self.stop
        sequences = [[ids] if isinstance(ids, Integral) else ids for ids in stop]
        sequences = dict.fromkeys(tuple(map(int, ids)) for ids in sequences)
        object.__setattr__(self, "stop", tuple(sequences))
        if () in self.stop:
            raise ValueError("a stop sequence needs at least 1 token, got an empty one")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise ValueError(
                f"min_tokens must be between 0 and max_tokens {self.max_tokens}, "
                f"got {self.min_tokens}"
            )

    @property
    def last_ids(self) -> tuple[int, ...]:
        """Return the ids that can complete a stop sequence."""
        return tuple(dict.fromkeys(ids[-1] for ids in self.stop))

    @property
    def single_ids(self) -> tuple[int, ...]:
        """Return the stop sequences of one token."""
        return tuple(ids[0] for ids in self.stop if len(ids) == 1)

    @property
    def sequences(self) -> tuple[tuple[int, ...], ...]:
        """Return the stop sequences of more than one token."""
        return tuple(ids for ids in self.stop if len(ids) > 1)

    def ends(self, tokens: Array, index: Array) -> Array:
        """Return which answers `[B, *, L]` end with token number `index` `[B]`: bool `[B, *]`."""
        found = [_is_one_of(at_index(tokens, index), self.single_ids)]
        found += [_ends_with(tokens, index, ids) for ids in self.sequences]
        return jnp.any(jnp.stack(found), axis=0)

    def too_early(self, candidates: Array, index: Array, tokens: Array | None = None) -> Array:
        """Return which candidates would end an answer before `min_tokens`.

        Args:
            candidates: ids, of a shape that broadcasts with `[B, *, 1]`.
            index: `[B]`, number of tokens of each answer.
            tokens: `[B, *, L]`, the answers, needed for stop sequences of several tokens.
        """
        ends = _is_one_of(candidates, self.single_ids)
        for ids in self.sequences:
            ends |= (candidates == ids[-1]) & _ends_with(tokens, index - 1, ids[:-1])[..., None]
        return ends & unit_axes(index + 1 < self.min_tokens, candidates.ndim)


def check_prefix(prefix: Prefix | None, rows: int, max_tokens: int) -> Prefix | None:
    """Return the prefix in int32, if one is given.

    Raises:
        TypeError: tokens or lengths that are not integers.
        ValueError: a prefix of another batch, or longer than an answer may be; where they are
            known, lengths outside [0, P].
    """
    if prefix is None:
        return None
    tokens, lengths = map(jnp.asarray, prefix)
    width = tokens.shape[-1]
    if tokens.shape != (rows, width) or lengths.shape != (rows,):
        raise ValueError(
            f"prefix needs tokens [{rows}, P] and lengths [{rows}] for {rows} rows, "
            f"got {tokens.shape} and {lengths.shape}"
        )
    if not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise TypeError(f"tokens of a prefix must be integers, got {tokens.dtype}")
    if not 1 <= width <= max_tokens:
        raise ValueError(f"a prefix needs 1 to max_tokens {max_tokens} tokens, got {width}")
    check_lengths(lengths, width)
    return Prefix(tokens.astype(jnp.int32), jnp.minimum(lengths, width).astype(jnp.int32))


def at_index(tokens: Array, index: Array) -> Array:
    """Return token number `index` `[B]` of each of `[B, *, L]`, clipped to the first and last."""
    index = jnp.broadcast_to(unit_axes(index, tokens.ndim), (*tokens.shape[:-1], 1))
    return jnp.take_along_axis(tokens, index, axis=-1, mode="clip")[..., 0]


def _is_one_of(tokens: Array, ids: tuple[int, ...]) -> Array:
    """Return which tokens are among some ids, of which there may be thousands."""
    method = "auto" if len(ids) < FEW else "binary_search"
    return jnp.isin(tokens, jnp.array(ids, jnp.int32), method=method)


def _ends_with(tokens: Array, index: Array, ids: tuple[int, ...]) -> Array:
    """Return whether `ids` are the tokens of `[B, *, L]` up to number `index` `[B]`."""
    found = jnp.broadcast_to(unit_axes(index >= len(ids) - 1, tokens.ndim - 1), tokens.shape[:-1])
    for back, number in enumerate(reversed(ids)):
        found &= at_index(tokens, index - back) == number
    return found
