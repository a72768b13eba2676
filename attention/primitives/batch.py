"""From one example to any leading axes, by `vmap`."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array

Result = TypeVar("Result")


def over_batch(
    function: Callable[..., Result],
    arrays: Mapping[str, tuple[Array | None, int]],
    batch: Sequence[int],
) -> Result:
    """Maps a function of single examples over leading batch axes.

    Args:
        function: takes the arrays in order, each with its own rank.
        arrays: name → (array, its rank for one example). An array without leading axes is shared
            by all examples; leading axes broadcast to the batch. None passes as it is.
        batch: the sizes of the leading axes.

    Returns:
        What the function returns, with the batch axes in front.

    Raises:
        ValueError: leading axes that do not broadcast to the batch.
    """
    lifted = [to_batch(name, array, batch, rank) for name, (array, rank) in arrays.items()]
    ranks = [rank for _, rank in arrays.values()]
    axes = tuple(
        None if array is None or array.ndim == rank else 0
        for array, rank in zip(lifted, ranks, strict=True)
    )
    for _ in batch:
        function = jax.vmap(function, in_axes=axes)
    return function(*lifted)


def to_batch(name: str, array: Array | None, batch: Sequence[int], rank: int) -> Array | None:
    """Gives an array all axes of the batch, or leaves it alone if it has none."""
    if array is None or array.ndim == rank:
        return array
    leading, core = array.shape[: array.ndim - rank], array.shape[array.ndim - rank :]
    check_broadcasts(name, leading, batch)
    return jnp.broadcast_to(array, (*batch, *core))


def check_broadcasts(name: str, leading: Sequence[int], batch: Sequence[int]) -> None:
    """Checks that some leading axes broadcast to those of the batch.

    Raises:
        ValueError: they do not.
    """
    pairs = zip(reversed(leading), reversed(batch), strict=False)
    if len(leading) > len(batch) or any(ours not in (1, theirs) for ours, theirs in pairs):
        raise ValueError(
            f"{name} has the leading axes {tuple(leading)}, which do not broadcast to "
            f"the batch axes {tuple(batch)} of the query"
        )
