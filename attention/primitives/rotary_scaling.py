"""Scaling of rotary frequencies for contexts longer than those of training.

Each function takes the frequencies `[H/2]` in radians per position, the largest first; the factor
by which the context grows; and the context length of training, in positions. It returns the new
frequencies `[H/2]` and a factor of the rotated vectors. Register a new function in `SCALINGS`.
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

Scaling = Callable[[Array, float, int], tuple[Array, float]]


def unscaled(frequencies: Array, factor: float, original_length: int) -> tuple[Array, float]:
    """Return the frequencies unchanged."""
    del factor, original_length
    return frequencies, 1.0


def linear(frequencies: Array, factor: float, original_length: int) -> tuple[Array, float]:
    """Divide all frequencies by the factor (position interpolation, Chen et al. 2023, eq. 4)."""
    del original_length
    return frequencies / factor, 1.0


def ntk_aware(frequencies: Array, factor: float, original_length: int) -> tuple[Array, float]:
    """Change the base so that only the smallest frequency is divided by the whole factor.

    The base becomes base · factor^(H/(H-2)), which does not change the largest frequency
    ("NTK-aware", Peng et al. 2024, section 3.1).
    """
    del original_length
    exponents = jnp.linspace(0, 1, len(frequencies), dtype=frequencies.dtype)
    return frequencies * factor**-exponents, 1.0


def llama3(frequencies: Array, factor: float, original_length: int) -> tuple[Array, float]:
    """Scale frequencies piecewise, as Llama 3.1 (Dubey et al. 2024; `apply_scaling` of Meta).

    Frequencies of less than one rotation in the context length of training are divided by the
    factor; those of four rotations and more are unchanged; in between, interpolate linearly.
    """
    return _by_parts(frequencies, factor, original_length, fewest=1, most=4), 1.0


def yarn(frequencies: Array, factor: float, original_length: int) -> tuple[Array, float]:
    """Scale as `llama3` between 1 and 32 rotations, and the vectors too (YaRN, Peng et al. 2024).

    Queries and keys are both multiplied by 0.1 ln(factor) + 1, the √(1/t) of section 3.
    """
    parts = _by_parts(frequencies, factor, original_length, fewest=1, most=32)
    return parts, 0.1 * math.log(factor) + 1


def _by_parts(
    frequencies: Array, factor: float, original_length: int, *, fewest: int, most: int
) -> Array:
    """Interpolate between scaled and unchanged frequencies by rotations in the training length."""
    rotations = original_length * frequencies / (2 * math.pi)
    unchanged = jnp.clip((rotations - fewest) / (most - fewest), 0, 1)
    return unchanged * frequencies + (1 - unchanged) * frequencies / factor


SCALINGS: dict[str, Scaling] = {
    "none": unscaled,
    "linear": linear,
    "ntk": ntk_aware,
    "llama3": llama3,
    "yarn": yarn,
}
