"""Random inputs whose axes all have different sizes, which shows errors in their order."""

import chex
import jax.numpy as jnp
import numpy as np
from jax import Array

# The letters of the axis legend. v is Hv, the head width of the values: a chex dimension has a name
# of one letter.
DIMS = chex.Dimensions(B=2, K=3, T=5, N=6, S=7, H=11, v=13)
T, S, N, K = DIMS["TSNK"]
GROUP = N // K

# The queries are at the end of the keys, so causality masks keys for every query but the last.
POSITIONS = (np.arange(S - T, S), np.arange(S))
CAUSAL = POSITIONS[1][None, :] <= POSITIONS[0][:, None]


def draw(*shapes: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> tuple[Array, ...]:
    """Draw standard normal numbers, one array for each shape."""
    random = np.random.default_rng(seed)
    return tuple(jnp.asarray(random.standard_normal(shape), dtype) for shape in shapes)


def query_key_value(
    batch: tuple[int, ...] = (), dtype: str = "float32", seed: int = 0
) -> tuple[Array, Array, Array]:
    """Draw query [*batch, T, N, H], key [*batch, S, K, H] and value [*batch, S, K, Hv]."""
    shapes = ((*batch, *DIMS[axes]) for axes in ("TNH", "SKH", "SKv"))
    return draw(*shapes, dtype=dtype, seed=seed)


def in_tiles(implementation: str, *tile_sizes: int) -> dict[str, object]:
    """Return arguments of `attend`; the reference has no tile sizes."""
    tiles = {"tile_sizes": tile_sizes} if implementation == "tiled" else {}
    return {"implementation": implementation, **tiles}
