"""`attend` in tiles, with memory linear in T and S: sizes, tiles to visit, all heads and examples.

Up to one tile it is the definition itself, for a few examples with all of their heads at a time.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.arguments import Arguments
from attention.primitives.dot_product import attend_by_definition
from attention.primitives.masks import Mask
from attention.primitives.numerics import share_with_sinks, wide
from attention.primitives.pytree_dataclass import arrays_of, batch_shapes, map_arrays
from attention.primitives.tiled_head import (
    Sums,
    Tiles,
    checkpoint,
    derive_as,
    online_softmax,
    sums_over_tiles,
)
from attention.primitives.vectorize import Cut, cut, over_batch, over_heads, possible_shards
from attention.primitives.visits import Visits, most_visits, visits_of

# Tile sizes without a mask and with one, and scores computed at once. Those of "cpu" were measured,
# the others were not.
SIZES = {
    "cpu": ((1024, 512), (512, 512), 2**18),
    "cuda": ((1024, 1024), (512, 512), 2**25),
    "rocm": ((1024, 1024), (512, 512), 2**25),
    "tpu": ((1024, 1024), (512, 512), 2**24),
}


@dataclass(frozen=True)
class Layout:
    """How arguments are cut.

    Attributes:
        tiles: sizes of tiles.
        kv_heads: how to map over K.
        examples: how to map over each batch axis.
        visit_all: whether all tiles are visited.
    """

    tiles: Tiles
    kv_heads: Cut
    examples: tuple[Cut, ...]
    visit_all: bool

    def of_example(self, one: Arguments) -> tuple[Arguments, Visits | None]:
        """Return the arguments of an example, indexed by query and key, and the tiles to visit."""
        one = one.by_index()
        if self.visit_all:
            return one, None
        positions = one.query_positions, one.key_positions
        return one, visits_of(one.mask, *positions, self.tiles.sizes, counted=one.counted)


@partial(jax.jit, static_argnums=1, inline=True)
def attend_in_tiles(arguments: Arguments, platform: str = "cpu") -> dict[str, Array]:
    """`attend` with memory linear in T and S: "output" and what `arguments.returning` names.

    Args:
        arguments: with at least one query and one key.
        platform: for the default tile sizes.
    """
    layout = layout_of(arguments, platform)
    # The compiler would take seconds to fold a constant array of pairs.
    mask = map_arrays(
        arguments.mask, lambda x, axes: jax.lax.optimization_barrier(x) if len(axes) > 2 else x
    )
    arguments = replace(arguments, mask=mask)

    if layout.tiles.is_one:
        inputs = arguments.query, arguments.key, arguments.value
        query, key, value = wide(*inputs) if layout.tiles.cast else inputs
        given = replace(arguments, query=query, key=key, value=value)
        results = attend_by_definition(given, examples=layout.examples)
        return results | {"output": results["output"].astype(arguments.query.dtype)}
    found = online_sums(layout, arguments)
    # Joined here and not in the loops: jax 0.10 would drop the rule of `derive_as` in a scan.
    others = plain_sums(layout, arguments, found.largest)
    sums = derive_as((found.total, found.weighted), others)
    results = results_of(arguments, Sums(found.largest, *sums))
    if "weights" in arguments.returning:  # T·S numbers, so their scores fit memory too
        results["weights"] = attend_by_definition(replace(arguments, sinks=()))["weights"]
    return share_with_sinks(results, arguments.sinks)


def online_sums(layout: Layout, arguments: Arguments, before: Sums | None = None) -> Sums:
    """Return the sums of all heads and examples, added to those `before`, by an online softmax."""

    def example(one: Arguments, *before: Sums) -> Sums:
        one, visits = layout.of_example(one)
        function = partial(online_softmax, layout.tiles, visits)
        return over_heads(function, (one, *before), layout.kv_heads).with_heads_last()

    trees = (arguments,) if before is None else (arguments, before)
    return over_batch(example, trees, arguments.batch, layout.examples)


def plain_sums(layout: Layout, arguments: Arguments, largest: Array) -> tuple[Array, Array]:
    """Return `total` and `weighted` of all heads and examples, given the largest scores."""

    def example(one: Arguments, known: Sums) -> tuple[Array, Array]:
        one, visits = layout.of_example(one)
        function = checkpoint(partial(sums_over_tiles, layout.tiles, visits))
        total, weighted = over_heads(function, (one, known), layout.kv_heads)
        return total, jnp.swapaxes(weighted, 0, 1)

    known = Sums(largest, None, None)
    return over_batch(example, (arguments, known), arguments.batch, layout.examples)


def layout_of(arguments: Arguments, platform: str) -> Layout:
    """Decide how to cut the arguments on a platform.

    Heads are computed at once first, then examples; examples that skip different tiles, one at a
    time. Up to one tile, all heads are computed at once: their scores are one array then.
    """
    shards = possible_shards(arguments.query, arguments.key, arguments.value)
    tiles = _tiles(arguments, platform, may_shard=shards > 1)
    num_heads, num_kv_heads = arguments.query.shape[-2], arguments.key.shape[-2]
    # Examples may have other tiles than their neighbours if the mask has arrays for each of them.
    # If devices may share the batch, they would have to agree on the tiles to skip, and a vmap may
    # map over any array of the mask: then all tiles are visited.
    own = batch_shapes(arguments.mask)
    visit_all = arguments.mask is None or tiles.is_one or (shards > 1 and own != [])
    own_tiles = any(own) and not visit_all
    at_once = max(1, SIZES[platform][-1] // prod(tiles.sizes))
    at_once = max(at_once, num_heads) if tiles.is_one else at_once
    kv_heads = cut(num_kv_heads, at_once * num_kv_heads // num_heads, shards)
    at_once = at_once // num_heads if kv_heads.steps == 1 and not own_tiles else 1
    examples = []
    for size in reversed(arguments.batch):
        examples.append(cut(size, max(1, at_once), shards))
        at_once = at_once // size if examples[-1].steps == 1 else 1
    return Layout(tiles, kv_heads, tuple(reversed(examples)), visit_all)


def results_of(arguments: Arguments, sums: Sums) -> dict[str, Array]:
    """Return "output", "logsumexp" and "largest_score" from the sums of all heads, without sinks.

    The cotangent of a row that is NaN stops here: 0 · NaN would reach the values of masked keys.
    """
    is_nan, is_empty = jnp.isnan(sums.total), sums.total == 0
    total = jnp.where(is_nan | is_empty, 1, sums.total)
    of_output = (jnp.swapaxes(x, -1, -2)[..., None] for x in (is_nan, total))  # [..., T, N, 1]
    is_nan_output, divisor = of_output
    output = jnp.where(is_nan_output, jnp.nan, sums.weighted / divisor)
    largest = jax.lax.stop_gradient(jnp.where(is_empty, -jnp.inf, sums.largest))
    return {
        "output": output.astype(arguments.query.dtype),
        "logsumexp": jnp.where(is_nan, jnp.nan, jnp.log(total)) + largest,
        "largest_score": largest,
    }


def _tiles(arguments: Arguments, platform: str, *, may_shard: bool) -> Tiles:
    lengths = arguments.query.shape[-3], arguments.key.shape[-3]
    sizes = _tile_sizes(arguments, platform, lengths, may_shard=may_shard)
    shape = tuple(-(-length // size) for length, size in zip(lengths, sizes, strict=True))
    most = shape[1]
    if arguments.mask is not None and arguments.counted:
        most = most_visits(arguments.mask, shape, sizes)
    return Tiles(sizes, shape, most, cast=platform == "cpu")


def _tile_sizes(
    arguments: Arguments, platform: str, lengths: tuple[int, int], *, may_shard: bool
) -> tuple[int, int]:
    if arguments.tile_sizes is not None:
        return tuple(map(min, lengths, arguments.tile_sizes))
    full, masked, _ = SIZES[platform]
    largest = full if arguments.mask is None else masked
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
    return any(axes in ("t", "s", "p") and x.ndim > 1 for x, axes in arrays_of(mask))


def _equal_tiles(length: int, largest: int) -> int:
    """Make tiles equal: 520 queries become two tiles of 264, not one of 512 and one of 8."""
    if length <= largest:
        return length
    return -(-math.ceil(length / math.ceil(length / largest)) // 8) * 8
