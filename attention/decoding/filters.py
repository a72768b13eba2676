"""What may be drawn: functions of logits `[..., V]` that reshape them or rule tokens out (-inf).

They apply in the order in which they are given, and mind only differences between logits, so
log-probabilities do as well.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

Filter = Callable[[Array], Array]
SMALLEST = float(jnp.finfo(jnp.float32).tiny)  # below it, float32 has no inverse
LARGEST = 1 / SMALLEST  # above it, the inverse is taken for 0


@dataclass(frozen=True)
class Temperature:
    """Divides logits by `value`: below 1 the likely tokens gain, above 1 the unlikely ones.

    Raises:
        ValueError: a value that is not positive and finite, or whose inverse is not; 0 is `greedy`.
    """

    value: float

    def __post_init__(self) -> None:
        if not SMALLEST <= self.value <= LARGEST:
            raise ValueError(
                f"temperature must be positive and finite, in [{SMALLEST:.2g}, {LARGEST:.2g}], got "
                f"{self.value}; for 0 use greedy"
            )

    def __call__(self, logits: Array) -> Array:
        """Maps logits `[..., V]`."""
        highest = logits.max(axis=-1, keepdims=True)
        # Differences alone, or the likeliest would overflow with the others.
        return (logits - jnp.where(jnp.isfinite(highest), highest, 0)) / self.value


@dataclass(frozen=True)
class TopK:
    """Keeps the `number` likeliest tokens; of equal ones, the first (Fan et al. 2018, section 5).

    Raises:
        ValueError: no whole number of 1 or more.
    """

    number: int

    def __post_init__(self) -> None:
        if self.number < 1 or self.number % 1:
            raise ValueError(
                f"top-k must keep a whole number of tokens, 1 or more, got {self.number}"
            )

    def __call__(self, logits: Array) -> Array:
        """Maps logits `[..., V]`."""
        return jnp.where(_ranks(logits) < min(self.number, logits.shape[-1]), logits, -jnp.inf)


@dataclass(frozen=True)
class TopP:
    """Keeps the fewest likeliest tokens whose probabilities reach `mass` (Holtzman et al. 2020).

    Raises:
        ValueError: a mass outside (0, 1].
    """

    mass: float

    def __post_init__(self) -> None:
        if not 0 < self.mass <= 1:
            raise ValueError(f"top-p must be in (0, 1], got {self.mass}")

    def __call__(self, logits: Array) -> Array:
        """Maps logits `[..., V]`."""
        if self.mass == 1:
            return logits  # a rounded sum could reach 1 before the last token
        descending = -jnp.sort(-jax.nn.softmax(logits, axis=-1), axis=-1)
        above = jnp.cumsum(descending, axis=-1) - descending
        kept = (above < self.mass).sum(-1, keepdims=True)
        return jnp.where(_ranks(logits) < kept, logits, -jnp.inf)


@dataclass(frozen=True)
class MinP:
    """Keeps tokens at least `share` times as likely as the likeliest (Nguyen et al. 2024).

    Raises:
        ValueError: a share outside (0, 1].
    """

    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"min-p must be in (0, 1], got {self.share}")

    def __call__(self, logits: Array) -> Array:
        """Maps logits `[..., V]`."""
        least = logits.max(axis=-1, keepdims=True) + math.log(self.share)
        return jnp.where(logits >= least, logits, -jnp.inf)


def _ranks(logits: Array) -> Array:
    """How many tokens come before each, the likeliest first, `[..., V]`."""
    order = jnp.argsort(-logits, axis=-1, stable=True)
    return jnp.argsort(order, axis=-1)
