"""Rotary frequencies for texts longer than those of the training.

Each function takes the frequencies `[H/2]` in radians per position, the largest first; the factor
by which the longest text grows; and the longest of the training, in positions. It returns the new
frequencies `[H/2]` and a factor for the turned vectors. A new one needs a name in `SCALINGS`.
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

Scaling = Callable[[Array, float, int], tuple[Array, float]]


def unscaled(frequencies: Array, factor: float, original_length: int) -> tuple[Array, float]:
    """The frequencies as they are."""
    del factor, original_length
    return frequencies, 1.0


def linear(frequencies: Array, factor: float, original_length: int) -> tuple[Array, float]:
    """Squeezes all positions into the trained range (Chen et al. 2023, equation 4)."""
    del original_length
    return frequencies / factor, 1.0


def ntk_aware(frequencies: Array, factor: float, original_length: int) -> tuple[Array, float]:
    """Changes the base so that only the slowest pair is squeezed by the whole factor.

    The base becomes base · factor^(H/(H-2)), which leaves the fastest pair as it is ("NTK-aware",
    Peng et al. 2024, section 3.1).
    """
    del original_length
    way = jnp.linspace(0, 1, len(frequencies), dtype=frequencies.dtype)
    return frequencies * factor**-way, 1.0


def llama3(frequencies: Array, factor: float, original_length: int) -> tuple[Array, float]:
    """Squeezes pairs that turn less than once in training, keeps those of four turns and more.

    The piecewise rule of Llama 3.1 (Dubey et al. 2024; `apply_scaling` of Meta's release).
    """
    return _by_parts(frequencies, factor, original_length, fewest=1, most=4), 1.0


def yarn(frequencies: Array, factor: float, original_length: int) -> tuple[Array, float]:
    """The same between one and 32 turns, with sharper scores (YaRN; Peng et al. 2024, section 3).

    Queries and keys are both multiplied by 0.1 ln(factor) + 1, the paper's √(1/t).
    """
    parts = _by_parts(frequencies, factor, original_length, fewest=1, most=32)
    return parts, 0.1 * math.log(factor) + 1


def _by_parts(
    frequencies: Array, factor: float, original_length: int, *, fewest: int, most: int
) -> Array:
    """Blends squeezed and kept frequencies by how often they turn in the trained length."""
    turns = original_length * frequencies / (2 * math.pi)
    kept = jnp.clip((turns - fewest) / (most - fewest), 0, 1)
    return kept * frequencies + (1 - kept) * frequencies / factor


SCALINGS: dict[str, Scaling] = {
    "none": unscaled,
    "linear": linear,
    "ntk": ntk_aware,
    "llama3": llama3,
    "yarn": yarn,
}
