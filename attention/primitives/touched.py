"""What a mask leaves of the tiles of a matrix of pairs, and the order in which they are visited."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class Tiles(NamedTuple):
    """The positions of tiles of queries or keys `[tiles, size]`, with the bounds of each tile."""

    positions: Array
    low: Array
    high: Array

    @classmethod
    def of(cls, positions: Array) -> "Tiles":
        """Finds the bounds of positions `[tiles, size]`."""
        return cls(positions, positions.min(axis=-1), positions.max(axis=-1))


class Touched(NamedTuple):
    """Bool `[query tiles, key tiles]`: false in `some` = allows no pair; true in `every` = all.

    Both err on the safe side: `some` may be true and `every` false where it was not worth knowing.
    """

    some: Array
    every: Array

    def in_order(self) -> tuple[Array, Array, Array]:
        """The key tiles that each query tile visits, those that need no mask first.

        Returns:
            Their indices `[..., query tiles, key tiles]`, of which the last mean nothing; how many
            need no mask, and how many are visited, both `[..., query tiles]`; all int32.
        """
        every = self.some & self.every
        rank = jnp.where(every, 0, jnp.where(self.some, 1, 2))
        tiles = jnp.argsort(rank, axis=-1, stable=True).astype(jnp.int32)
        return tiles, *(which.sum(axis=-1, dtype=jnp.int32) for which in (every, self.some))
