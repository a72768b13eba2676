"""Length penalties: the divisor of the log-probability of a finished hypothesis of n tokens."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from jax import Array

LengthPenalty = Callable[[Array], Array]
"""Maps lengths (floats, at least 1) to positive divisors; monotone, in either direction."""


@dataclass(frozen=True)
class GNMT:
    """`((5 + n) / 6) ** alpha` (Wu et al. 2016, equation 14, without coverage).

    Attributes:
        alpha: 0 for no penalty; above 0, long hypotheses gain.
    """

    alpha: float

    def __post_init__(self) -> None:
        _check_finite("alpha", self.alpha)

    def __call__(self, length: Array) -> Array:
        return ((5 + length) / 6) ** self.alpha


@dataclass(frozen=True)
class Power:
    """`n ** exponent`, as `length_penalty` of Hugging Face Transformers and `lenpen` of fairseq.

    Attributes:
        exponent: 1 for the mean log-probability; above 0, long hypotheses gain.
    """

    exponent: float

    def __post_init__(self) -> None:
        _check_finite("exponent", self.exponent)

    def __call__(self, length: Array) -> Array:
        return length**self.exponent


def _check_finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise ValueError(f"{name} of a length penalty must be finite, got {value}")
