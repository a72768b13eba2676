"""Lists of the tiles that a kernel computes: full tiles, which need no mask, then partial ones.

As in FlexAttention (Dong et al. 2024, section 4.2).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.masks import Mask, PositionTiles, TileBounds


class TileLists(NamedTuple):
    """For each tile of one axis, the tiles of the other axis that are not empty.

    Attributes:
        indices: int32 `[E, tiles, other tiles]`: full tiles, partial tiles, then empty ones.
        num_full: int32 `[E, tiles, 1]`, number of full tiles.
        num_visible: int32 `[E, tiles, 1]`, number of full and partial tiles.
    """

    indices: Array
    num_full: Array
    num_visible: Array

    @classmethod
    def of_rows(cls, bounds: TileBounds) -> "TileLists":
        """Return the tiles of keys for each tile of queries."""
        full = bounds.any & bounds.all
        order = jnp.where(full, 0, jnp.where(bounds.any, 1, 2))
        indices = jnp.argsort(order, axis=-1, stable=True).astype(jnp.int32)
        counts = (x.sum(axis=-1, keepdims=True, dtype=jnp.int32) for x in (full, bounds.any))
        return cls(indices, *counts)

    @classmethod
    def of_columns(cls, bounds: TileBounds) -> "TileLists":
        """Return the tiles of queries for each tile of keys."""
        return cls.of_rows(TileBounds(*(jnp.swapaxes(bound, -1, -2) for bound in bounds)))


def tile_bounds(
    mask: Mask | None,
    query_positions: Array,
    key_positions: Array,
    num_keys: int,
    rows: int,
    columns: int,
) -> TileBounds | None:
    """Return which tiles are empty or full, bool `[E, tiles, tiles]`; None if all are full.

    Args:
        mask: with arrays `[E, ...]`, where each E is 1 or B, here as below.
        query_positions: `[E, T]`, T a multiple of `rows`.
        key_positions: `[E, S]`, S a multiple of `columns`.
        num_keys: number of keys without padding; a tile with padding is partial.
        rows: queries per tile.
        columns: keys per tile.
    """
    padded_keys = key_positions.shape[-1]
    if mask is None and num_keys == padded_keys:
        return None
    operands = query_positions, key_positions, mask
    examples = max(leaf.shape[0] for leaf in jax.tree.leaves(operands))
    operands = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (examples, *leaf.shape[1:])), operands
    )

    def one_example(query_positions: Array, key_positions: Array, mask: Mask | None) -> TileBounds:
        query = PositionTiles.of(query_positions.reshape(-1, rows))
        key = PositionTiles.of(key_positions.reshape(-1, columns))
        if mask is None:
            full = jnp.ones((query.low.shape[0], key.low.shape[0]), bool)
            return TileBounds(full, full)
        return mask.tile_bounds(query, key)

    bounds = jax.vmap(one_example)(*operands)
    unpadded = jnp.arange(padded_keys // columns) < num_keys // columns
    return TileBounds(bounds.any, bounds.all & unpadded[None, None, :])
