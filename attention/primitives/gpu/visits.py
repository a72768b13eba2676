"""Which tiles a kernel visits, as lists of their indices."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.masks import Mask
from attention.primitives.touched import Tiles, Touched


class Visits(NamedTuple):
    """For each tile of one side the tiles of the other, those that need no mask first.

    Two lists, of whole and of partial tiles, as in FlexAttention (Dong et al. 2024, section 4.2);
    here the second follows the first.

    Attributes:
        tiles: int32 `[E, tiles, visits]`, indices; those after the last visit mean nothing.
        num_whole: int32 `[E, tiles, 1]`, how many hold only allowed pairs.
        num_visits: int32 `[E, tiles, 1]`, how many may hold an allowed pair.
    """

    tiles: Array
    num_whole: Array
    num_visits: Array

    @classmethod
    def of_rows(cls, touched: Touched) -> "Visits":
        """For each tile of queries the tiles of keys to visit."""
        tiles, *counts = touched.in_order()
        return cls(tiles, *(count[..., None] for count in counts))

    @classmethod
    def of_columns(cls, touched: Touched) -> "Visits":
        """For each tile of keys the tiles of queries to visit."""
        return cls.of_rows(Touched(*(jnp.swapaxes(array, -1, -2) for array in touched)))


def touched_tiles(
    mask: Mask | None,
    query_positions: Array,
    key_positions: Array,
    num_keys: int,
    rows: int,
    columns: int,
) -> Touched | None:
    """What a mask allows of each tile, bool `[E, tiles, tiles]`; None if it allows everything.

    Args:
        mask: with arrays `[E, ...]`, where each E is 1 or B, here as below.
        query_positions: `[E, T]` in whole tiles.
        key_positions: `[E, S]` in whole tiles.
        num_keys: without those that only fill the last tile.
        rows: of a tile.
        columns: of a tile.
    """
    filled = key_positions.shape[-1]
    if mask is None and num_keys == filled:
        return None
    operands = query_positions, key_positions, mask
    examples = max(leaf.shape[0] for leaf in jax.tree.leaves(operands))
    operands = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (examples, *leaf.shape[1:])), operands
    )

    def example(query_positions: Array, key_positions: Array, mask: Mask | None) -> Touched:
        query = Tiles.of(query_positions.reshape(-1, rows))
        key = Tiles.of(key_positions.reshape(-1, columns))
        if mask is None:
            everything = jnp.ones((query.low.shape[0], key.low.shape[0]), bool)
            return Touched(everything, everything)
        return mask.touches(query, key)

    some, every = jax.vmap(example)(*operands)
    is_full = jnp.arange(filled // columns) < num_keys // columns
    return Touched(some, every & is_full[None, None, :])
