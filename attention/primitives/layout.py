"""How `attend_in_tiles` cuts its arguments: tile sizes, tiles to visit, heads and examples at once.

The tiles that are visited are those in which a mask may allow a pair: the block mask of
FlexAttention (Dong et al. 2024, section 4.2), computed in each call.
"""

from dataclasses import dataclass
from math import ceil, prod
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from attention.primitives.arguments import Arguments
from attention.primitives.masks import Mask
from attention.primitives.pytree_dataclass import arrays_of, batch_shapes
from attention.primitives.vectorize import Cut, cut, possible_shards

# Tile sizes without a mask and with one, and scores computed at once. Those of "cpu" were measured,
# the others were not.
SIZES = {
    "cpu": ((1024, 512), (512, 512), 2**18),
    "cuda": ((1024, 1024), (512, 512), 2**25),
    "rocm": ((1024, 1024), (512, 512), 2**25),
    "tpu": ((1024, 1024), (512, 512), 2**24),
}


class Visits(NamedTuple):
    """The key tiles that a row of query tiles visits; of all rows, with an axis in front.

    Attributes:
        stop: int32, the end of the visit numbers, which are `stop - count <= number < stop`.
        count: int32, how many visits there are.
        columns: int32 `[columns]`, the key tile of each visit number; None if it is the number.
    """

    stop: Array
    count: Array
    columns: Array | None

    def column(self, number: Array) -> Array:
        """Return the key tile of the visit with this number."""
        return number if self.columns is None else self.columns[number]

    def flags(self, columns: int) -> Array:
        """Return which key tiles the row visits: bool `[columns]`."""
        numbers = jnp.arange(columns, dtype=jnp.int32)
        flags = (numbers >= self.stop - self.count) & (numbers < self.stop)
        return flags if self.columns is None else jnp.zeros_like(flags).at[self.columns].set(flags)


@dataclass(frozen=True)
class Layout:
    """How arguments are cut.

    Attributes:
        sizes: queries and keys per tile.
        shape: rows and columns of tiles.
        most: how many tiles a row visits at most.
        visit_all: whether all tiles are visited.
        cast: whether products are computed in the dtype of the scores.
        kv_heads: how to map over K.
        examples: how to map over each batch axis.
    """

    sizes: tuple[int, int]
    shape: tuple[int, int]
    most: int
    visit_all: bool
    cast: bool
    kv_heads: Cut
    examples: tuple[Cut, ...]


def layout_of(arguments: Arguments, platform: str) -> Layout:
    """Decide how to cut the arguments on a platform.

    Heads are computed at once first, then examples; examples that skip different tiles, one at a
    time. Up to one tile, all heads of several examples are computed at once.
    """
    mask, shards = arguments.mask, possible_shards(arguments.query, arguments.key, arguments.value)
    lengths = arguments.query.shape[-3], arguments.key.shape[-3]
    sizes = arguments.tile_sizes or _tile_sizes(mask, platform, lengths, shards)
    sizes = tuple(map(min, lengths, sizes))
    shape = tuple(-(-length // size) for length, size in zip(lengths, sizes, strict=True))
    is_one = shape == (1, 1)
    # Examples may have other tiles than their neighbours if the mask has arrays for each of them.
    # If devices may share the batch, they would have to agree on the tiles to skip, and a vmap may
    # map over any array of the mask: then all tiles are visited.
    own = batch_shapes(mask)
    visit_all = mask is None or is_one or (shards > 1 and own != [])
    own_tiles = any(own) and not visit_all
    num_heads, num_kv_heads = arguments.query.shape[-2], arguments.key.shape[-2]
    at_once = max(1, SIZES[platform][-1] // prod(sizes))
    at_once = max(at_once, num_heads) if is_one and prod(arguments.batch) != 1 else at_once
    kv_heads = cut(num_kv_heads, at_once * num_kv_heads // num_heads, shards)
    at_once = at_once // num_heads if kv_heads.steps == 1 and not own_tiles else 1
    examples = []
    for size in reversed(arguments.batch):
        examples.append(cut(size, max(1, at_once), shards))
        at_once = at_once // size if isinstance(size, int) and examples[-1].steps == 1 else 1
    return Layout(
        sizes=sizes,
        shape=shape,
        most=_most_visits(arguments, shape, sizes),
        visit_all=visit_all,
        cast=platform == "cpu",
        kv_heads=kv_heads,
        examples=tuple(reversed(examples)),
    )


def _tile_sizes(
    mask: Mask | None, platform: str, lengths: tuple[int, int], shards: int
) -> tuple[int, int]:
    full, masked, _ = SIZES[platform]
    largest = full if mask is None else masked
    # As `segments` has, one number per position of each example. No tile is skipped where the
    # compiler may shard.
    packs_sequences = any(axes in ("t", "s", "p") and x.ndim > 1 for x, axes in arrays_of(mask))
    if platform == "cpu" and shards == 1 and packs_sequences:
        # Larger tiles make faster products, and smaller ones compute fewer masked pairs: from 4,096
        # tokens on, eight sequences of about the same length visit less than a fifth of all pairs.
        largest = min(max(128, lengths[0] // 32), 512), min(max(128, lengths[1] // 64), 256)
    return tuple(map(_equal_tiles, lengths, largest))


def _equal_tiles(length: int, largest: int) -> int:
    """Make tiles equal: 520 queries become two tiles of 264, not one of 512 and one of 8."""
    return -(-ceil(length / ceil(length / largest)) // 8) * 8


def visits_of(layout: Layout, one: Arguments) -> Visits:
    """Return the tiles that each row visits in one example, indexed by query and key."""
    (num_rows, num_columns), (rows, columns) = layout.shape, layout.sizes
    # In NumPy as far as they are known when JAX traces: each kernel takes time to compile.
    first = np.arange(num_rows, dtype=np.int32) * rows
    if layout.visit_all:
        return Visits(0 * first + num_columns, 0 * first + num_columns, None)
    if one.counted and (ranges := one.mask.key_range(first)) is not None:
        num_queries, num_keys = one.query_positions.shape[0], one.key_positions.shape[0]
        last = (first + rows).clip(max=num_queries) - 1
        start = ranges[0].clip(0, num_keys) // columns
        stop = -(-one.mask.key_range(last)[1].clip(0, num_keys) // columns)
        return Visits(stop, (stop - start).clip(0), None)
    query, key = map(_tiles, (one.query_positions, one.key_positions), layout.sizes)
    some = one.mask.tile_bounds(query, key).any
    columns = jnp.argsort(~some, axis=1, stable=True).astype(jnp.int32)
    count = some.sum(axis=1, dtype=jnp.int32)
    return Visits(count, count, columns)


def _tiles(positions: Array, size: int) -> Array:
    """Cut positions into tiles `[tiles, size]`; the last one repeats its last position."""
    return jnp.pad(positions, (0, -positions.shape[0] % size), mode="edge").reshape(-1, size)


def _most_visits(arguments: Arguments, shape: tuple[int, int], sizes: tuple[int, int]) -> int:
    """Return how many tiles a row visits at most."""
    is_known = arguments.mask is not None and arguments.counted
    if (band := arguments.mask.band() if is_known else None) is None:
        return shape[1]
    (rows, columns), (before, after) = sizes, band
    most = ceil(before / columns) + ceil((rows + after) / columns)
    return min(shape[1], most + (rows % columns > 0))
