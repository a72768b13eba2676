"""From a mask and positions to the bool array of who may attend to whom."""

from collections.abc import Iterator, Sequence
from dataclasses import fields

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from attention.primitives.batch import check_broadcasts
from attention.primitives.pytree_dataclass import array_field, pytree_dataclass, static
from attention.primitives.masks import Mask, checked_array


def check_mask(
    mask: Mask | ArrayLike | None,
    batch: Sequence[int],
    sizes: tuple[int, int],
    *,
    counted: bool,
) -> Mask | Array | None:
    """Checks a mask for T queries and S keys.

    Args:
        mask: a `Mask`; or a bool array `[..., T, S]` whose rows are the queries and whose columns
            are the keys, wherever they stand; or None, which allows everything.
        batch: the leading axes, to which those of the mask must broadcast.
        sizes: T and S.
        counted: whether positions count from 0 because nobody gave them. Then T and S must be equal
            for a mask that compares them: to align both at the start is as much a guess as at the
            end.

    Raises:
        TypeError: a mask that is neither a predicate nor bool.
        ValueError: an array of another size, or positions missing where they matter.
    """
    if mask is None:
        return None
    if isinstance(mask, Mask):
        if counted:
            _check_counted_from_zero(mask, sizes)
        leading = batch_shapes(mask)
    else:
        mask = checked_array(mask)
        _check_extent(mask.shape[-2:], sizes)
        leading = [mask.shape[:-2]]
    for axes in leading:
        check_broadcasts("mask", axes, batch)
    return mask


def allowed_pairs(
    mask: Mask | Array | None, query_positions: Array, key_positions: Array
) -> Array | None:
    """The dense form of a mask that was checked: bool `[..., T, S]`, or None if all is allowed.

    Args:
        mask: as `check_mask` returns it.
        query_positions: integers `[..., T]`.
        key_positions: integers `[..., S]`.
    """
    if mask is None or not isinstance(mask, Mask):
        return mask
    query, key = query_positions[..., :, None], key_positions[..., None, :]
    batch = jnp.broadcast_shapes(*batch_shapes(mask), query.shape[:-2], key.shape[:-2])
    query, key = _spread(query, batch, 2), _spread(key, batch, 2)
    predicate = type(mask).__call__
    if any(batch_shapes(mask)):
        mask = map_arrays(mask, lambda array, rank: _spread(array, batch, rank))
        for _ in batch:
            predicate = jax.vmap(predicate)
    sizes = query_positions.shape[-1], key_positions.shape[-1]
    return jnp.broadcast_to(predicate(mask, query, key), (*batch, *sizes))


def visible_keys(
    mask: Mask | ArrayLike | None, batch: Sequence[int], num_keys: int
) -> Array | None:
    """The keys that a mask shows to every query alike: bool `[..., S]`, or None if it shows all.

    For readers that have no queries, such as a recurrent cell.

    Args:
        mask: `masks.lengths`, or an expression of such masks.
        batch: the leading axes.
        num_keys: S.

    Raises:
        ValueError: a mask that asks where the query stands, or an array of rows for the queries.
    """
    if mask is None:
        return None
    if not isinstance(mask, Mask) or any(
        leaf.compares_positions or leaf.extent()[0] is not None for leaf in _leaves(mask)
    ):
        raise ValueError(
            "here a mask can only say which tokens are no padding, the same to all, as "
            "masks.lengths does: this one depends on the position of the query"
        )
    check_mask(mask, batch, (num_keys, num_keys), counted=True)
    anywhere, keys = jnp.zeros(1, jnp.int32), jnp.arange(num_keys, dtype=jnp.int32)
    return jnp.broadcast_to(allowed_pairs(mask, anywhere, keys)[..., 0, :], (*batch, num_keys))


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


def batch_shapes(mask: Mask) -> list[tuple[int, ...]]:
    """The leading axes of each array inside an expression."""
    return [array.shape[: array.ndim - rank] for array, rank in arrays(mask)]


def _spread(array: Array, batch: tuple[int, ...], rank: int) -> Array:
    return jnp.broadcast_to(array, (*batch, *array.shape[array.ndim - rank :]))
