"""Norms over the last axis, by name."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from attention.modules.linear import named


def layer_norm(
    width: int,
    *,
    epsilon: float = 1e-6,
    axis: str = "embed",
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
) -> nnx.LayerNorm:
    """Make a layer norm (Ba et al. 2016) of an axis with a size and a logical name."""
    return nnx.LayerNorm(
        width,
        epsilon=epsilon,
        dtype=dtype,
        param_dtype=param_dtype,
        rngs=rngs,
        scale_metadata={"axes": (axis,)},
        bias_metadata={"axes": (axis,)},
    )


def rms_norm(
    width: int,
    *,
    epsilon: float = 1e-6,
    axis: str = "embed",
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
) -> nnx.RMSNorm:
    """Make a root mean square norm, without centering and bias (Zhang and Sennrich 2019)."""
    return nnx.RMSNorm(
        width,
        epsilon=epsilon,
        dtype=dtype,
        param_dtype=param_dtype,
        rngs=rngs,
        scale_metadata={"axes": (axis,)},
    )


# Functions with the arguments of `layer_norm`. Add your own.
NORMS: dict[str, Callable[..., Any]] = {"layer": layer_norm, "rms": rms_norm}


def norm_of(given: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return a norm by its name in `NORMS`, or the function that was given.

    Raises:
        ValueError: an unknown name.
    """
    return named("norm", given, NORMS)
