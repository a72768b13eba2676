"""Distance from the exact result, which the definition computes in float64."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attention import attend
from experiments.benchmarks.cases import Case, Inputs


def exact(case: Case, inputs: Inputs) -> tuple[np.ndarray, ...]:
    """Output and gradients of query, key and value in float64, `[B, T, N, H]` each."""

    def function(query: Array, key: Array, value: Array) -> Array:
        mask = case.mask(case.segments())
        return attend(query, key, value, mask=mask, implementation="reference")

    with jax.enable_x64(True):
        *arguments, cotangent = (jnp.asarray(array, jnp.float64) for array in inputs)
        output, pull = jax.vjp(jax.jit(function), *arguments)
        return tuple(np.asarray(array) for array in (output, *pull(cotangent)))


def relative_errors(found: Sequence[np.ndarray], true: Sequence[np.ndarray]) -> list[float]:
    """Norm of the difference over the norm of the truth, of each array."""
    return [
        float(np.linalg.norm((ours - theirs).ravel()) / np.linalg.norm(theirs.ravel()))
        for ours, theirs in zip(found, true, strict=True)
    ]
