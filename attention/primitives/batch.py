"""From one example to any batch axes, by `vmap` or in a loop."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.pytree_dataclass import arrays_of

Result = TypeVar("Result")
Tree = Any


def over_batch(
    function: Callable[..., Result],
    operands: Sequence[Tree],
    ranks: Sequence[int | None],
    batch: Sequence[int],
    map_axis: Callable[..., Callable] = jax.vmap,
) -> Result:
    """Map a function of single examples over leading batch axes.

    Args:
        function: takes the operands in order, each without batch axes.
        operands: arrays, or pytree dataclasses. Batch axes broadcast to `batch`; an array without
            any is shared by all examples.
        ranks: the rank of each operand for one example; None for a pytree dataclass, whose fields
            declare it.
        batch: the sizes of the batch axes.
        map_axis: `jax.vmap`, or another function of a function, in_axes (each 0 or None) and
            axis_size.

    Returns:
        The results of the function with the batch axes in front.
    """
    leaf_ranks = []
    for operand, rank in zip(operands, ranks, strict=True):
        declared = rank is None
        leaf_ranks += [each for _, each in arrays_of(operand)] if declared else [rank]
    leaves, structure = jax.tree.flatten(tuple(operands))
    leaves = [to_batch(leaf, rank, batch) for leaf, rank in zip(leaves, leaf_ranks, strict=True)]
    axes = tuple(
        None if leaf.ndim == rank else 0 for leaf, rank in zip(leaves, leaf_ranks, strict=True)
    )

    def flat(*leaves: Array) -> Result:
        return function(*jax.tree.unflatten(structure, leaves))

    for size in reversed(batch):
        flat = map_axis(flat, in_axes=axes, axis_size=size)
    return flat(*leaves)


def to_batch(
    array: Array | None, rank: int, batch: Sequence[int], name: str = "array"
) -> Array | None:
    """Give an array all batch axes, or none if several examples share it."""
    if array is None or array.ndim == rank:
        return array
    leading, core = array.shape[: array.ndim - rank], array.shape[array.ndim - rank :]
    check_broadcasts(name, leading, batch)
    if prod(leading) == 1 < prod(batch):
        return array.reshape(core)
    return jnp.broadcast_to(array, (*batch, *core))


def check_broadcasts(name: str, leading: Sequence[int], batch: Sequence[int]) -> None:
    """Check that some leading axes broadcast to the batch axes.

    Raises:
        ValueError: they do not.
    """
    pairs = zip(reversed(leading), reversed(batch), strict=False)
    if len(leading) > len(batch) or any(ours not in (1, theirs) for ours, theirs in pairs):
        raise ValueError(
            f"{name} has the leading axes {tuple(leading)}, which do not broadcast to "
            f"the batch axes {tuple(batch)} of the query"
        )
