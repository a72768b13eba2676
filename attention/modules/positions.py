"""How a model knows where its tokens stand: one name, and what it does where it can do something.

A scheme adds vectors to the embeddings, turns queries and keys, or changes scores. A new one is a
function and a name in `SCHEMES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import Array

from attention.modules.table import rows
from attention.primitives.choice import one_of
from attention.primitives.positions import rotary, sinusoidal
from attention.primitives.rotary_scaling import SCALINGS
from attention.primitives.scores import Score, alibi, alibi_slopes, relative_bias

if TYPE_CHECKING:
    from attention.modules.config import TransformerConfig

# Raffel et al. 2020, section 2.1: 32 numbers a head, for offsets up to 128.
NUM_BUCKETS, MAX_DISTANCE = 32, 128


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotary positions of one kind: a function `(vectors [..., T, N, H], positions [..., T])`.

    Attributes:
        base: of the wavelengths.
        scaling: for texts longer than those of the training: "none", "linear", "ntk", "llama3" or
            "yarn" of `rotary_scaling.py`.
        factor: how many times longer.
        original_length: the longest text of the training; what "llama3" and "yarn" start from.
    """

    base: float = 10_000.0
    scaling: str = "none"
    factor: float = 1.0
    original_length: int = 8_192

    def __post_init__(self) -> None:
        """Refuses what makes no sense, in one sentence."""
        one_of("rotary.scaling", self.scaling, tuple(SCALINGS))
        for name, least in (("base", 1), ("factor", 1), ("original_length", 1)):
            if not getattr(self, name) >= least:
                raise ValueError(f"rotary.{name} must be at least 1, got {getattr(self, name)}")
        if self.scaling == "none" and self.factor != 1:
            raise ValueError(
                f"rotary.factor={self.factor} needs a rotary.scaling: one of "
                f"{', '.join(name for name in SCALINGS if name != 'none')}"
            )

    def __call__(self, vectors: Array, positions: Array) -> Array:
        """Turns queries or keys, as `attention.rotary` does."""
        scale = SCALINGS[self.scaling]
        scaling = partial(scale, factor=self.factor, original_length=self.original_length)
        return rotary(vectors, positions, self.base, scaling)


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """What a scheme does; by default nothing.

    Attributes:
        add: `(positions [..., T], D, table) -> [..., T, D]`, what the embeddings get on top.
        turn: of a config, the function that turns queries and keys by their positions.
        score: `(N, table, causal)` to what changes the scores of every layer of a stack, where
            `causal` says that no key ahead of the query will be seen.
        add_table: the shape of the table for `add`, of a config.
        score_table: the shape of the table for `score`, of a config.
        even: the field of a config that must be even.
    """

    add: Callable[[Array, int, Array | None], Array] | None = None
    turn: Callable[[TransformerConfig], Rotary | None] = lambda config: None
    score: Callable[[int, Array | None, bool], tuple[Score, ...]] = lambda heads, table, causal: ()
    add_table: Callable[[TransformerConfig], tuple[int, int] | None] = lambda config: None
    score_table: Callable[[TransformerConfig], tuple[int, int] | None] = lambda config: None
    even: str | None = None

    @property
    def is_added(self) -> bool:
        """Whether embeddings know their positions, which may then be given."""
        return self.add is not None


def _sinusoidal(positions: Array, width: int, table: Array | None) -> Array:
    del table
    return sinusoidal(positions, width)


def _learned(positions: Array, width: int, table: Array | None) -> Array:
    return rows(table, positions) * width**0.5  # entries like those of the tokens


def _alibi(num_heads: int, table: Array | None, causal: bool) -> tuple[Score, ...]:
    del table, causal
    return (alibi(alibi_slopes(num_heads)),)


def _relative(num_heads: int, table: Array | None, causal: bool) -> tuple[Score, ...]:
    del num_heads
    return (relative_bias(table, max_distance=MAX_DISTANCE, causal=causal),)


SCHEMES = {
    "none": Scheme(),
    "sinusoidal": Scheme(add=_sinusoidal, even="width"),
    "learned": Scheme(add=_learned, add_table=lambda config: (config.max_length, config.width)),
    "rotary": Scheme(turn=lambda config: config.rotary, even="head_width"),
    "alibi": Scheme(score=_alibi),
    "relative": Scheme(score=_relative, score_table=lambda config: (config.num_heads, NUM_BUCKETS)),
}


def placed(
    vectors: Array,
    kind: str,
    table: Array | None,
    *,
    positions: Array | None = None,
    start: Array | None = None,
) -> Array:
    """Vectors with what their scheme adds where they stand; by most schemes, as they are.

    Args:
        vectors: `[..., T, D]`.
        kind: the name of the scheme.
        table: of the shape `add_table`.
        positions: where the vectors stand, `[..., T]`; counted by default.
        start: where counting starts, `[...]`; 0 by default.

    Returns:
        `[..., T, D]`.

    Raises:
        ValueError: positions where none are added, or beside a start.
    """
    if positions is not None and start is not None:
        raise ValueError("a cache counts the positions of its tokens: give none beside it")
    add = SCHEMES[kind].add
    if add is None:
        if positions is not None:
            raise ValueError(
                f'positions="{kind}" are not added to embeddings: attention counts its own, '
                "and none can be given here"
            )
        return vectors
    length, width = vectors.shape[-2:]
    if positions is None:
        positions = jnp.arange(length, dtype=jnp.int32)
        positions = positions if start is None else jnp.add.outer(start, positions)
    added = add(positions, width, table).astype(vectors.dtype)
    return vectors + jnp.broadcast_to(added, vectors.shape)
