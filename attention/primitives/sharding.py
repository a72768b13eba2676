"""Explicitly sharded inputs: each device computes its examples and heads."""

from collections.abc import Callable

from jax import Array

from attention.primitives.arguments import Arguments


def per_shard(
    function: Callable[[Arguments], dict[str, Array]], arguments: Arguments
) -> dict[str, Array]:
    """TODO."""
    return function(arguments)
