"""Sinusoidal and rotary position embeddings."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike


def sinusoidal(positions: ArrayLike, width: int) -> Array:
    """Return sinusoidal position embeddings (Vaswani et al. 2017, section 3.5).

    Entry 2i is sin(position / 10000^(2i/D)) and entry 2i + 1 is the cosine of the same angle, so
    a shift of the position is a rotation of each pair.

    Args:
        positions: `[...]`, any numbers.
        width: D, even.

    Returns:
        `[..., D]` in float32, or in float64 if the positions are float64.

    Raises:
        ValueError: an odd width.
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
    vectors: Array,
    positions: ArrayLike,
    base: float = 10_000.0,
    scaling: Callable[[Array], tuple[Array, float]] | None = None,
) -> Array:
    """Rotate pairs of entries by angles proportional to the position (Su et al. 2021, section 3.2).

    The product of a rotated query and a rotated key depends on their positions only through the
    difference. Entry i is paired with entry i + H/2 and rotated by position / base^(2i/H) radians.

    Args:
        vectors: queries or keys `[..., T, N, H]`, H even.
        positions: `[..., T]`.
        base: of the wavelengths; a larger base distinguishes larger distances.
        scaling: maps the frequencies `[H/2]` to new frequencies and a factor of the rotated
            vectors, like the functions of `rotary_scaling.py`.

    Returns:
        `[..., T, N, H]` in the dtype of the vectors.

    Raises:
        ValueError: an odd head width, or positions for another number of tokens.
    """
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
