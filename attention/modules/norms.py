"""Norms over the last axis, by name."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from attention.modules.linear import named
from attention.primitives.numerics import score_dtype


class Norm(nnx.Module):
    """Layer norm (Ba et al. 2016) or root mean square norm (Zhang and Sennrich 2019).

    It computes in float32 at least, whatever the dtypes of inputs and parameters.
    """

    def __init__(
        self,
        width: int,
        *,
        is_centred: bool,
        epsilon: float = 1e-6,
        axis: str = "embed",
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        """Make a norm that multiplies by 1, and adds 0 if it is centred.

        Args:
            width: size of the last axis.
            is_centred: True for layer norm, False for root mean square norm.
            epsilon: added to the variance or the mean square.
            axis: logical name of the last axis.
            dtype: of the outputs; that of the inputs if None.
            param_dtype: of the parameters.
            rngs: not used; every norm in `NORMS` has this argument.
        """
        del rngs
        self.scale = nnx.Param(jnp.ones(width, param_dtype), axes=(axis,))
        self.bias = nnx.Param(jnp.zeros(width, param_dtype), axes=(axis,)) if is_centred else None
        self.epsilon, self.dtype = epsilon, dtype

    def __call__(self, inputs: Array) -> Array:
        """Normalise `[..., D]`."""
        dtype = score_dtype(inputs)
        vectors, scale = inputs.astype(dtype), self.scale[...].astype(dtype)
        factor = scale.reshape((1,) * (inputs.ndim - 1) + scale.shape)
        if self.bias is None:
            variance = jnp.mean(vectors**2, axis=-1, keepdims=True)
            outputs = vectors * (jax.lax.rsqrt(variance + self.epsilon) * factor)
        else:
            # A constant near the mean, without which the difference below cancels far from 0.
            vectors -= jax.lax.stop_gradient(vectors.mean(axis=-1, keepdims=True))
            mean = vectors.mean(axis=-1, keepdims=True)
            variance = jnp.mean(vectors**2, axis=-1, keepdims=True) - mean**2
            variance = jnp.maximum(variance, 0)
            outputs = (vectors - mean) * (jax.lax.rsqrt(variance + self.epsilon) * factor)
            outputs += self.bias[...].astype(dtype).reshape(factor.shape)
        return outputs.astype(self.dtype or inputs.dtype)


layer_norm = partial(Norm, is_centred=True)
rms_norm = partial(Norm, is_centred=False)

# name -> f(width, *, epsilon, axis, dtype, param_dtype, rngs). Add your own.
NORMS: dict[str, Callable[..., Any]] = {"layer": layer_norm, "rms": rms_norm}


def norm_of(given: str | Callable[..., Any], name: str = "norm") -> Callable[..., Any]:
    """Return a norm by its name in `NORMS`, or the function that was given as this argument.

    Raises:
        ValueError: an unknown name.
    """
    return named(name, given, "NORMS", NORMS)
