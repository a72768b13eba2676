"""Sinusoidal and rotary position embeddings, and rotary scaling for contexts beyond the training.

A scaling maps the rotary frequencies `[H/2]` in radians per position, the largest first, to new
frequencies `[H/2]` and a factor of the rotated vectors. `rotary` takes any such function; register
one in `SCALINGS` to name it in configs.
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

Scaling = Callable[[Array], tuple[Array, float]]


def sinusoidal(positions: ArrayLike, width: int) -> Array:
    """Return sinusoidal position embeddings (Vaswani et al. 2017, section 3.5).

    Entry 2i is sin(position / 10000^(2i/D)) and entry 2i + 1 is the cosine of the same angle, so
    a shift of the position is a rotation of each pair.

    Args:
        positions: `[...]`, any numbers.
        width: D, even; otherwise ValueError.

    Returns:
        `[..., D]` in float32, or in float64 if the positions are float64.
    """
    if width % 2:
        raise ValueError(f"the width of sinusoidal positions must be even, got {width}")
    positions = jnp.asarray(positions)
    dtype = jnp.float64 if positions.dtype == jnp.float64 else jnp.float32
    frequencies = 10_000.0 ** (-jnp.arange(0, width, 2, dtype=dtype) / width)
    angles = jnp.multiply.outer(positions.astype(dtype), frequencies)
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return pairs.reshape(*angles.shape[:-1], width)


def rotary(
    vectors: Array, positions: ArrayLike, base: float = 10_000.0, scaling: Scaling | None = None
) -> Array:
    """Rotate pairs of entries by angles proportional to the position (Su et al. 2021, section 3.2).

    The product of a rotated query and a rotated key depends on their positions only through the
    difference. Entry i is paired with entry i + H/2 and rotated by position / base^(2i/H) radians.

    Args:
        vectors: queries or keys `[..., T, N, H]`, H even.
        positions: `[..., T]`.
        base: of the wavelengths; a larger base distinguishes larger distances.
        scaling: of frequencies `[H/2]`, to new ones and a factor of the rotated vectors, for longer
            contexts than those of training: for example `yarn_scaling(8, original_length=4096)`.

    Returns:
        `[..., T, N, H]` in the dtype of the vectors.

    Raises:
        ValueError: vectors without heads, an odd head width, positions of another length than T.
    """
    if jnp.ndim(vectors) < 3:
        raise ValueError(
            "rotary takes queries or keys with the axes [..., T, N, H], got shape "
            f"{jnp.shape(vectors)}: one head is an axis of 1"
        )
    length, _, width = vectors.shape[-3:]
    if jnp.shape(positions)[-1:] != (length,):
        raise ValueError(
            f"positions must end in an axis of {length} tokens, got shape {jnp.shape(positions)}"
        )
    if width % 2:
        raise ValueError(f"the head width of rotary positions must be even, got {width}")
    dtype = jnp.float64 if vectors.dtype == jnp.float64 else jnp.float32
    frequencies = base ** (-jnp.arange(0, width, 2, dtype=dtype) / width)
    frequencies, factor = (frequencies, 1.0) if scaling is None else scaling(frequencies)
    angles = jnp.multiply.outer(jnp.asarray(positions, dtype), frequencies)[..., None, :]
    angles = jnp.broadcast_to(angles, (*vectors.shape[:-1], width // 2))
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(vectors.astype(dtype), 2, axis=-1)
    rotated = (first * cosine - second * sine, first * sine + second * cosine)
    return (factor * jnp.concatenate(rotated, axis=-1)).astype(vectors.dtype)


def linear_scaling(factor: float) -> Scaling:
    """Divide frequencies by the factor by which the context grows (Chen et al. 2023, eq. 4)."""
    return lambda frequencies: (frequencies / factor, 1.0)


def ntk_scaling(factor: float) -> Scaling:
    """Divide only the smallest frequency by the whole factor by which the context grows.

    The base becomes base · factor^(H/(H-2)), which does not change the largest frequency
    ("NTK-aware", Peng et al. 2024, section 3.1).
    """

    def scaling(frequencies: Array) -> tuple[Array, float]:
        exponents = jnp.linspace(0, 1, len(frequencies), dtype=frequencies.dtype)
        return frequencies * factor**-exponents, 1.0

    return scaling


def llama3_scaling(factor: float, original_length: int) -> Scaling:
    """Scale frequencies piecewise, as Llama 3.1 (Dubey et al. 2024; `apply_scaling` of Meta).

    Frequencies of less than one rotation in the context length of training are divided by the
    factor; those of four rotations and more are unchanged; in between, interpolate linearly.

    Args:
        factor: by which the context grows.
        original_length: the context length of training, in positions.
    """
    return _piecewise_scaling(factor, original_length, 4)


def yarn_scaling(factor: float, original_length: int) -> Scaling:
    """Scale as Llama 3 between 1 and 32 rotations, and the vectors too (YaRN, Peng et al. 2024).

    A frequency f becomes u·f + (1 - u)·f / factor, where u = clip((r - 1) / 31, 0, 1) and
    r = original_length·f / 2π is its number of rotations. Queries and keys are both multiplied by
    0.1 ln(factor) + 1, the √(1/t) of section 3. Released models differ: u is linear in the index of
    the frequency. The arguments are those of `llama3_scaling`.
    """
    return _piecewise_scaling(factor, original_length, 32, 0.1 * math.log(factor) + 1)


def _piecewise_scaling(
    factor: float, original_length: int, most: int, of_vectors: float = 1.0
) -> Scaling:
    """Interpolate between divided frequencies, of one rotation, and unchanged ones, of `most`."""

    def scaling(frequencies: Array) -> tuple[Array, float]:
        rotations = original_length * frequencies / (2 * math.pi)
        unchanged = jnp.clip((rotations - 1) / (most - 1), 0, 1)
        return unchanged * frequencies + (1 - unchanged) * frequencies / factor, of_vectors

    return scaling


# Name in configs → function of (factor, original_length).
SCALINGS: dict[str, Callable[[float, int], Scaling | None]] = {
    "none": lambda factor, original_length: None,
    "linear": lambda factor, original_length: linear_scaling(factor),
    "ntk": lambda factor, original_length: ntk_scaling(factor),
    "llama3": llama3_scaling,
    "yarn": yarn_scaling,
}
