"""Mesh axes that arrays inside `shard_map` vary over."""

from collections.abc import Sequence

import jax
from jax import Array


def varying_alike(arrays: Sequence[Array]) -> list[Array]:
    """Make arrays vary over the mesh axes that any of them varies over.

    Functions of `jax.numpy` do this for their arguments, but loops and the operations of a jaxpr
    do not. Outside of `shard_map`, no array varies.
    """
    varying = [jax.typeof(array).manual_axis_type.varying for array in arrays]
    missing = [tuple(frozenset().union(*varying) - own) for own in varying]
    return [
        jax.lax.pcast(array, axes, to="varying") if axes else array
        for array, axes in zip(arrays, missing, strict=True)
    ]
