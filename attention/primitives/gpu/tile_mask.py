"""Masks inside a kernel, which has no gathers: segments are compared, not indexed by position."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from attention.primitives import masks
from attention.primitives.masks import Mask
from attention.primitives.pytree_dataclass import array_field, pytree_dataclass


@pytree_dataclass
class TileSegments(Mask):
    """`masks.segments` with the segments of the queries and keys of one tile."""

    query: Any = array_field(rank=2)
    key: Any = array_field(rank=2)

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        del query_position, key_position
        return self.query == self.key


def mask_refusal(mask: Mask | None, counted: bool) -> str | None:
    """Return why a kernel cannot evaluate a mask; None if it can.

    Args:
        mask: an expression or None.
        counted: whether positions count from 0, so that they are indices.
    """
    match mask:
        case (
            None
            | masks.Causal()
            | masks.Window()
            | masks.Lengths()
            | masks.QueryLengths()
            | masks.Block()
        ):
            return None
        case masks.CuSeqlens(causal=True):
            return "its kernels do not evaluate cu_seqlens with causal=True"
        case masks.Segments() | masks.CuSeqlens():
            why = "segments at explicit positions need a gather, which kernels do not have"
            return None if counted else why
        case masks.And() | masks.Or():
            return mask_refusal(mask.left, counted) or mask_refusal(mask.right, counted)
        case masks.Not():
            return mask_refusal(mask.inner, counted)
        case _:
            return "its kernels do not evaluate a mask that is a function or an array"


def to_tile_mask(mask: Mask, num_queries: int, num_keys: int) -> Mask:
    """Return the expression with every kind of segments as `TileSegments`, arrays `[E, ...]`."""
    match mask:
        case masks.Segments():
            return TileSegments(mask.query_segments, mask.key_segments)
        case masks.CuSeqlens():
            # Numbers from 1; a position after the last sequence gets -1 or -2, which differ.
            return TileSegments(
                _sequence_numbers(mask.query_offsets, num_queries, -1),
                _sequence_numbers(mask.key_offsets, num_keys, -2),
            )
        case masks.And() | masks.Or():
            parts = (to_tile_mask(part, num_queries, num_keys) for part in (mask.left, mask.right))
            return type(mask)(*parts)
        case masks.Not():
            return masks.Not(to_tile_mask(mask.inner, num_queries, num_keys))
        case _:
            return mask


def _sequence_numbers(offsets: Array, num_tokens: int, outside: int) -> Array:
    """Return the number of each token's sequence: int32 `[E, tokens]` from offsets `[E, n + 1]`."""
    positions = jnp.arange(num_tokens, dtype=jnp.int32)
    numbers = jax.vmap(lambda row: jnp.searchsorted(row, positions, side="right"))(offsets)
    return jnp.where(numbers < offsets.shape[-1], numbers, outside).astype(jnp.int32)


def mask_axes(mask: Mask) -> Mask:
    """Return a tile mask with the name of an axis in place of each array.

    "row" = one entry per query, "column" = one per key, "scalar" = one number.
    """

    def axis(node: TileSegments | Array) -> TileSegments | str:
        return TileSegments("row", "column") if isinstance(node, TileSegments) else "scalar"

    return jax.tree.map(axis, mask, is_leaf=lambda node: isinstance(node, TileSegments))
