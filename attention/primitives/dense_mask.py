"""From a mask and positions to the bool array of who may attend to whom."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from attention.primitives.masks import Mask, checked_array


def allowed_pairs(
    mask: Mask | ArrayLike | None,
    query_positions: Array,
    key_positions: Array,
    *,
    explicit: bool = True,
) -> Array | None:
    """The dense form of a mask.

    Args:
        mask: a `Mask`; or a bool array `[..., T, S]` whose rows are the queries and whose columns
            are the keys, wherever they stand; or None, which allows everything.
        query_positions: integers `[..., T]`.
        key_positions: integers `[..., S]`.
        explicit: whether a person gave the positions. If not, T and S must be equal for a mask
            that compares them: to align both at the start is as much a guess as at the end.

    Returns:
        bool `[..., T, S]`, or None if everything is allowed.

    Raises:
        TypeError: a mask that is neither a predicate nor bool.
        ValueError: an array of another size, or positions missing where they matter.
    """
    if mask is None:
        return None
    sizes = query_positions.shape[-1], key_positions.shape[-1]
    if not isinstance(mask, Mask):
        array = checked_array(mask)
        _check_extent(array.shape[-2:], sizes)
        return array
    if not explicit:
        _check_counted_from_zero(mask, sizes)
    query, key = query_positions[..., :, None], key_positions[..., None, :]
    batch = jnp.broadcast_shapes(_batch_shape(mask), query.shape[:-2], key.shape[:-2])
    query, key = _to_batch(query, batch, 2), _to_batch(key, batch, 2)
    predicate = type(mask).__call__
    if _batch_shape(mask):
        mask = _map_arrays(mask, lambda array, rank: _to_batch(array, batch, rank))
        for _ in batch:
            predicate = jax.vmap(predicate)
    return jnp.broadcast_to(predicate(mask, query, key), (*batch, *sizes))


def _check_counted_from_zero(mask: Mask, sizes: tuple[int, int]) -> None:
    for leaf in _leaves(mask):
        _check_extent(leaf.extent(), sizes)
        if leaf.compares_positions and sizes[0] != sizes[1]:
            raise ValueError(
                f"{sizes[0]} queries and {sizes[1]} keys leave open where the queries stand among "
                "the keys, which this mask compares: pass positions=(query_positions, "
                "key_positions)"
            )


def _check_extent(extent: tuple[int | None, ...], sizes: tuple[int, int]) -> None:
    for axis, ours, theirs in zip(("queries (T)", "keys (S)"), extent, sizes, strict=True):
        if ours is not None and ours != theirs:
            raise ValueError(f"the mask describes {ours} {axis}, but there are {theirs}")


def _leaves(mask: Mask) -> Iterator[Mask]:
    """The masks of an expression that are not made of other masks."""
    parts = [getattr(mask, part.name) for part in fields(mask)]
    parts = [part for part in parts if isinstance(part, Mask)]
    for part in parts:
        yield from _leaves(part)
    if not parts:
        yield mask


def _batch_shape(mask: Mask) -> tuple[int, ...]:
    """The leading axes of the arrays inside an expression."""
    shapes: list[tuple[int, ...]] = []

    def note(array: Array, rank: int) -> Array:
        shapes.append(array.shape[: array.ndim - rank])
        return array

    _map_arrays(mask, note)
    return jnp.broadcast_shapes(*shapes)


def _map_arrays(mask: Mask, function: Callable[[Array, int], Array]) -> Mask:
    """Applies a function of (array, its rank for one example) to every array of an expression."""
    changed = {}
    for part in fields(mask):
        value = getattr(mask, part.name)
        if isinstance(value, Mask):
            changed[part.name] = _map_arrays(value, function)
        elif "rank" in part.metadata:
            changed[part.name] = function(value, part.metadata["rank"])
    return replace(mask, **changed)


def _to_batch(array: Array, batch: tuple[int, ...], rank: int) -> Array:
    return jnp.broadcast_to(array, (*batch, *array.shape[array.ndim - rank :]))
