"""Where a token stands, as a vector."""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike


def sinusoidal(positions: ArrayLike, width: int) -> Array:
    """Sines and cosines of geometrically growing wavelengths (Vaswani et al. 2017, section 3.5).

    Entry 2i is sin(position / 10000^(2i/D)) and entry 2i + 1 the cosine of the same angle, so a
    shift of the position is a rotation of each pair.

    Args:
        positions: `[...]`, any numbers.
        width: D, even.

    Returns:
        float32 `[..., D]`.

    Raises:
        ValueError: an odd width.
    """
    if width % 2:
        raise ValueError(f"sinusoidal positions come in pairs: the width must be even, got {width}")
    frequencies = 10_000.0 ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angles = jnp.multiply.outer(jnp.asarray(positions, jnp.float32), frequencies)
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return pairs.reshape(*angles.shape[:-1], width)
