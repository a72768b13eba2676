"""Random inputs whose axes all have different sizes, and programs with results of NumPy."""

from collections.abc import Callable, Iterator
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

# The letters of the axis legend. v is Hv, the head width of the values: a chex dimension has a name
# of one letter.
DIMS = chex.Dimensions(B=2, K=3, T=5, N=6, S=7, H=11, v=13)
T, S, N, K = DIMS["TSNK"]
GROUP = N // K

# The queries are at the end of the keys, so causality masks keys for every query but the last.
POSITIONS = (np.arange(S - T, S), np.arange(S))
CAUSAL = POSITIONS[1][None, :] <= POSITIONS[0][:, None]


def draw(*shapes: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> tuple[np.ndarray, ...]:
    """Draw standard normal numbers, one array of NumPy for each shape.

    An operation on an array of jax outside of jit compiles a program for each shape.
    """
    random, kind = np.random.default_rng(seed), jnp.dtype(dtype)
    return tuple(random.standard_normal(shape).astype(kind) for shape in shapes)


def jitted(function: Callable[..., Any], **options: object) -> Callable[..., Any]:
    """Return `jax.jit(function, **options)`, with results of NumPy where it is not traced.

    A comparison or a slice of an array of jax compiles a program for each shape.
    """
    compiled = jax.jit(function, **options)

    def run(*args: object, **kwargs: object) -> Any:
        results = compiled(*args, **kwargs)
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(results))
        return results if traced else jax.device_get(results)

    return run


def equations_of(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a program, also those of programs among their parameters."""
    for equation in jaxpr.eqns:
        yield equation
        for leaf in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(leaf, "jaxpr", leaf)
            if hasattr(inner, "eqns"):
                yield from equations_of(inner)


def changed(array: np.ndarray, index: object, number: float) -> np.ndarray:
    """Return a copy with another number at an index, as `array.at[index].set(number)` of jax."""
    array = np.array(array)
    array[index] = number
    return array


def query_key_value(
    batch: tuple[int, ...] = (), dtype: str = "float32", seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw query [*batch, T, N, H], key [*batch, S, K, H] and value [*batch, S, K, Hv]."""
    shapes = ((*batch, *DIMS[axes]) for axes in ("TNH", "SKH", "SKv"))
    return draw(*shapes, dtype=dtype, seed=seed)


def in_tiles(implementation: str, *tile_sizes: int) -> dict[str, object]:
    """Return arguments of `attend`; the reference has no tile sizes."""
    tiles = {"tile_sizes": tile_sizes} if implementation == "tiled" else {}
    return {"implementation": implementation, **tiles}
