"""Error relative to the reference implementation in float64."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attention import attend
from experiments.benchmarks.cases import Case, Inputs


def exact(case: Case, inputs: Inputs) -> tuple[np.ndarray, ...]:
    """Return output and gradients of query, key and value in float64, each `[B, T, N, H]`."""

    def function(query: Array, key: Array, value: Array) -> Array:
        mask = case.mask(case.segments())
        return attend(query, key, value, mask=mask, implementation="reference")

    with jax.enable_x64(True):
        *arguments, cotangent = (jnp.asarray(array, jnp.float64) for array in inputs)
        output, pull = jax.vjp(jax.jit(function), *arguments)
        return tuple(np.asarray(array) for array in (output, *pull(cotangent)))


def relative_errors(found: Sequence[np.ndarray], true: Sequence[np.ndarray]) -> list[float]:
    """Return the norm of the difference over the norm of the exact array, for each array."""
    return [
        float(np.linalg.norm((one - exactly).ravel()) / np.linalg.norm(exactly.ravel()))
        for one, exactly in zip(found, true, strict=True)
    ]
