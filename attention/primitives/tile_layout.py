"""From the arguments of `attend` to the heads of `tiled_head.py`: sizes, tiles to visit, order."""

import math
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.arguments import Arguments
from attention.primitives.batch import over_batch, to_batch
from attention.primitives.block_mask import PARTS, Pattern, pattern_of, pattern_of_bounds
from attention.primitives.lift import Plan, possible_shards, split
from attention.primitives.masks import Mask
from attention.primitives.pytree_dataclass import arrays_of, batch_shapes, map_arrays
from attention.primitives.scores import BiasArray
from attention.primitives.tile_inputs import (
    Constants,
    Inputs,
    Lifted,
    inputs_and_constants,
    of_batch,
    pad,
)

# Tile sizes without a mask and with one, and score entries computed at once. Those of "cpu" were
# measured, the others were not.
SIZES = {
    "cpu": ((1024, 512), (512, 512), 2**18),
    "cuda": ((1024, 1024), (512, 512), 2**25),
    "rocm": ((1024, 1024), (512, 512), 2**25),
    "tpu": ((1024, 1024), (512, 512), 2**24),
}


class Head(NamedTuple):
    """One head: its inputs, its constants, and the tiles that it visits (None: all)."""

    inputs: Inputs
    constants: Constants
    pattern: Pattern | None


@dataclass(frozen=True)
class Settings:
    """What is compiled in.

    Attributes:
        tile_sizes: queries and keys per tile.
        tiles: rows and columns of tiles.
        max_visits: the largest number of tiles that a row visits.
        may_shard: whether the compiler may shard an axis over which `attend` is mapped.
        dropout_rate: 0 without dropout.
        precision: of products of float32.
        dtype: of scores and sums.
    """

    tile_sizes: tuple[int, int]
    tiles: tuple[int, int]
    max_visits: int
    may_shard: bool
    dropout_rate: float
    precision: str
    dtype: Any


def tile_sizes_of(arguments: Arguments, platform: str) -> tuple[int, int]:
    """Return queries and keys per tile."""
    return _sizes(arguments, platform)[0]


def laid_out_by_example(arguments: Arguments, platform: str) -> bool:
    """Return whether to lay out one example of a batch after another, as each skips its own tiles.

    Not with an array of biases, which would be padded and aligned again for each example.
    """
    sizes, tiles, shards = _sizes(arguments, platform)
    biased = any(isinstance(score, BiasArray) for score in arguments.scores)
    if prod(arguments.batch) == 1 or shards > 1 or biased:
        return False
    return _differs(jax.eval_shape(lambda given: _pattern(given, sizes, tiles), arguments))


def _differs(pattern: Pattern | None) -> bool:
    """Return whether examples skip different tiles."""
    return pattern is not None and prod(pattern.start.shape[:-1]) > 1


def _sizes(arguments: Arguments, platform: str) -> tuple[tuple[int, int], tuple[int, int], int]:
    """Return queries and keys per tile, rows and columns of tiles, and `possible_shards`."""
    lengths = arguments.query.shape[-3], arguments.key.shape[-3]
    shards = possible_shards(arguments.query, arguments.key, arguments.value)
    sizes = _tile_sizes(arguments, platform, lengths, may_shard=shards > 1)
    tiles = tuple(-(-length // size) for length, size in zip(lengths, sizes, strict=True))
    return sizes, tiles, shards


def layout_of(arguments: Arguments, platform: str) -> tuple[Settings, Plan, Head]:
    """Return the sizes of tiles, the order of computation, and all heads."""
    if arguments.allowed is not None:  # the compiler would take seconds to fold a constant array
        allowed = jax.lax.optimization_barrier(arguments.allowed)
        arguments = replace(arguments, allowed=allowed)
    num_heads, num_kv_heads = arguments.query.shape[-2], arguments.key.shape[-2]
    sizes, tiles, shards = _sizes(arguments, platform)
    pattern = _pattern(arguments, sizes, tiles)
    own_tiles = _differs(pattern)
    if own_tiles and shards > 1:
        pattern = None  # devices that skip different tiles would have to agree on it
    settings = Settings(
        tile_sizes=sizes,
        tiles=tiles,
        max_visits=_max_visits(arguments, pattern, sizes, tiles, may_shard=shards > 1),
        may_shard=shards > 1,
        dropout_rate=0.0 if arguments.dropout is None else arguments.dropout.rate,
        precision=arguments.precision,
        dtype=arguments.dtype,
    )
    lifted = Head(
        *inputs_and_constants(arguments, sizes, tiles, platform),
        None if pattern is None else jax.tree.map(lambda x: _of_pattern(x, arguments), pattern),
    )
    leaves, structure = jax.tree.flatten(lifted)
    plan = _plan(
        arguments.batch,
        num_kv_heads,
        num_heads // num_kv_heads,
        SIZES[platform][-1] // (sizes[0] * sizes[1]),
        shards,
        own_tiles=own_tiles,
        axes=tuple(leaf.axes for leaf in leaves),
    )
    return settings, plan, jax.tree.unflatten(structure, [leaf.array for leaf in leaves])


def _plan(
    batch: tuple[int, ...],
    num_kv_heads: int,
    groups: int,
    at_once: int,
    shards: int,
    *,
    own_tiles: bool,
    axes: tuple[str, ...],
) -> Plan:
    """Decide how many heads and examples to compute at once: heads first, then examples.

    Examples with their own tiles are computed one at a time, so that each skips its own.
    """
    at_once = max(1, at_once // groups)
    kv_heads = split(num_kv_heads, at_once, shards)
    at_once = at_once // num_kv_heads if kv_heads[1] == 1 and not own_tiles else 1
    cuts = []
    for size in reversed(batch):
        cuts.append(split(size, max(1, at_once), shards))
        at_once = at_once // size if cuts[-1][1] == 1 else 1
    return Plan(tuple(reversed(cuts)), kv_heads, groups, axes)


def _tile_sizes(
    arguments: Arguments, platform: str, lengths: tuple[int, int], *, may_shard: bool
) -> tuple[int, int]:
    if arguments.tile_sizes is not None:
        return tuple(map(min, lengths, arguments.tile_sizes))
    full, masked, _ = SIZES[platform]
    largest = full if arguments.mask is None and arguments.allowed is None else masked
    # No tile is skipped where the compiler may shard.
    if platform == "cpu" and not may_shard and _packs_sequences(arguments.mask):
        largest = _packed_tiles(lengths)
    return tuple(map(_equal_tiles, lengths, largest))


def _packed_tiles(lengths: tuple[int, int]) -> tuple[int, int]:
    """Return the largest tile of packed sequences on a CPU: 1/32 of the queries, 1/64 of the keys.

    Larger tiles make faster products, and smaller ones compute fewer masked pairs: from 4,096
    tokens on, eight sequences of about the same length visit less than a fifth of all pairs. Tiles
    of (256, 128) for all lengths took 1.0 to 1.2 times as long for 512 to 2,048 tokens, 0.9 (with
    gradient) to 1.2 times (forward) for 4,096, and 1.2 to 1.4 times for 16,384.
    """
    num_queries, num_keys = lengths
    return min(max(128, num_queries // 32), 512), min(max(128, num_keys // 64), 256)


def _packs_sequences(mask: Mask | None) -> bool:
    """Return whether a mask has one number per position of each example, as `segments` has."""
    return any(rank == 1 and array.ndim > rank for array, rank in arrays_of(mask))


def _equal_tiles(length: int, largest: int) -> int:
    """Make tiles equal: 520 queries become two tiles of 264, not one of 512 and one of 8."""
    if length <= largest:
        return length
    return -(-math.ceil(length / math.ceil(length / largest)) // 8) * 8


def _max_visits(
    arguments: Arguments,
    pattern: Pattern | None,
    sizes: tuple[int, int],
    tiles: tuple[int, int],
    *,
    may_shard: bool,
) -> int:
    """Return how many tiles a row may visit, as far as it is known without arrays.

    An interval pattern is computed from `key_range`, which lies within the band of the mask. If it
    depends on arrays that a `vmap` may shard, all tiles are visited there (`visited_by_any`).
    """
    is_interval = pattern is not None and pattern.kinds is None
    width = arguments.mask.band_width() if is_interval else None
    varies = may_shard and jax.tree.leaves((arguments.mask, arguments.block_mask))
    if width is None or varies:
        return tiles[1]
    return min(tiles[1], math.ceil((sizes[0] + width - 1) / sizes[1]))


def _pattern(
    arguments: Arguments, sizes: tuple[int, int], tiles: tuple[int, int]
) -> Pattern | None:
    """Return the tiles to visit, with batch axes; None where all are visited."""
    if arguments.block_mask is not None:
        # Its last part may end behind the keys, which would be visited twice.
        pattern, num_keys = arguments.block_mask.pattern, arguments.key.shape[-3]
        start, stop = jnp.minimum(pattern.start, num_keys), jnp.minimum(pattern.stop, num_keys)
        return pattern._replace(start=start, stop=stop)
    if tiles == (1, 1):
        return None
    if arguments.allowed is not None:
        return _pattern_of_array(to_batch(arguments.allowed, 3, arguments.batch), sizes, tiles)
    if arguments.mask is None:
        return None

    def example(mask: Mask, query: Array, key: Array) -> Pattern:
        return pattern_of(mask, query, key, sizes, counted=arguments.counted)

    positions = arguments.query_positions, arguments.key_positions
    mask = map_arrays(arguments.mask, partial(to_batch, batch=arguments.batch))
    batched = any(batch_shapes(mask)) or any(x.ndim > 1 for x in positions)
    batch = arguments.batch if batched else ()
    return over_batch(example, (mask, *positions), (None, 1, 1), batch)


def _pattern_of_array(
    allowed: Array, sizes: tuple[int, int], tiles: tuple[int, int]
) -> Pattern | None:
    """Return the tiles of a bool array that all heads share; None if heads differ."""
    if allowed.shape[-3] > 1 or 1 in allowed.shape[-2:]:
        return None

    def example(allowed: Array) -> Pattern:
        cut = pad(pad(allowed[0], 0, tiles[0] * sizes[0]), 1, tiles[1] * sizes[1])
        cut = cut.reshape(tiles[0], sizes[0], -1, sizes[1] // math.gcd(sizes[1], PARTS))
        return pattern_of_bounds(cut.any(axis=(1, 3)), cut.all(axis=(1, 3)), sizes[1])

    return over_batch(example, (allowed,), (3,), allowed.shape[:-3])


def _of_pattern(array: Array, arguments: Arguments) -> Lifted:
    rank = 2 if array.dtype == jnp.uint8 else 1
    return of_batch(array, rank, arguments.batch)
