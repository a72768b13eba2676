"""From the arguments of `attend` to the heads of `tiled_head.py`: axes, padding, tile sizes."""

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
from attention.primitives.nonfinite import nan_where, replace_nonfinite
from attention.primitives.pytree_dataclass import arrays_of, batch_shapes, map_arrays
from attention.primitives.scores import BiasArray, Score

# Tile sizes without a mask and with one, and score entries computed at once. Those of "cpu" were
# measured, the others were not.
SIZES = {
    "cpu": ((1024, 512), (512, 512), 2**18),
    "cuda": ((1024, 1024), (512, 512), 2**25),
    "rocm": ((1024, 1024), (512, 512), 2**25),
    "tpu": ((1024, 1024), (512, 512), 2**24),
}


class Inputs(NamedTuple):
    """What has derivatives, for one head, or cut to one tile.

    query `[T, H]`, key `[H, S]`, value `[S, Hv]`, scale; score functions, with None in place of a
    bias array; bias arrays `[T or 1, S or 1]`, with None elsewhere.
    """

    query: Array
    key: Array
    value: Array
    scale: Array
    scores: tuple[Score | None, ...]
    biases: tuple[Array | None, ...]


class Context(NamedTuple):
    """What has no derivatives, for one head, or cut to one tile; None where absent.

    query_positions `[T]`; key_positions `[S]`; query_nan `[T]` and key_nan `[S]`, NaN where the
    query or key was not finite and else 0; is_key `[S]`, False where S was padded; mask; allowed
    bool `[T or 1, S or 1]`; head, its global number; rng `[words]`.
    """

    query_positions: Array
    key_positions: Array
    query_nan: Array
    key_nan: Array
    is_key: Array | None
    mask: Mask | None
    allowed: Array | None
    head: Array
    rng: Array | None


class Head(NamedTuple):
    """One head: its inputs, its context, and the tiles that it visits (None: all)."""

    inputs: Inputs
    context: Context
    pattern: Pattern | None


# The axes of the arrays: "T" is cut into rows of tiles, "S" into columns. Keys are transposed, so
# that the product for their derivative needs no transposed copy of a tile of scores.
INPUT_AXES = Inputs("TH", "HS", "SH", "", "", "TS")
CONTEXT_AXES = Context("T", "S", "T", "S", "S", "", "TS", "", "")


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


@dataclass(frozen=True)
class Lifted:
    """An array and its leading axes: "B" all batch axes, "K" key/value heads, "G" their queries."""

    array: Array
    axes: str


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
        *_inputs_and_context(arguments, sizes, tiles, platform),
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
        cut = _pad(_pad(allowed[0], 0, tiles[0] * sizes[0]), 1, tiles[1] * sizes[1])
        cut = cut.reshape(tiles[0], sizes[0], -1, sizes[1] // math.gcd(sizes[1], PARTS))
        return pattern_of_bounds(cut.any(axis=(1, 3)), cut.all(axis=(1, 3)), sizes[1])

    return over_batch(example, (allowed,), (3,), allowed.shape[:-3])


def _of_pattern(array: Array, arguments: Arguments) -> Lifted:
    rank = 2 if array.dtype == jnp.uint8 else 1
    return _of_batch(array, rank, arguments.batch)


def _of_batch(array: Array, rank: int, batch: tuple[int, ...]) -> Lifted:
    """Give an array all batch axes, or none if several examples share it."""
    array = to_batch(array, rank, batch)
    return Lifted(array, "B" if array.ndim > rank else "")


def _inputs_and_context(
    arguments: Arguments, sizes: tuple[int, int], tiles: tuple[int, int], platform: str
) -> tuple[Inputs, Context]:
    """Return trees of `Lifted`."""
    batch, rank = arguments.batch, len(arguments.batch)
    num_kv_heads, num_keys = arguments.key.shape[-2], arguments.key.shape[-3]
    num_rows, num_columns = (size * count for size, count in zip(sizes, tiles, strict=True))
    query, key, value, *nonfinite = replace_nonfinite(
        arguments.query, arguments.key, arguments.value, arguments.nonfinite_keys
    )
    # Products of bfloat16 are exact in float32, and in bfloat16 they took 1.2 (forward) and 1.3
    # (backward) times as long on a CPU, even one with AVX512-BF16.
    if platform == "cpu":
        query, key, value = (array.astype(arguments.dtype) for array in (query, key, value))

    def heads_first(array: Array, length: int) -> Array:  # [..., T, N, *] -> [..., N, T, *], padded
        return _pad(jnp.swapaxes(array, rank, rank + 1), rank + 1, length)

    def grouped(array: Array, axis: int) -> Array:  # N -> K, G: query head n reads key head n // G
        shape = array.shape
        return array.reshape(*shape[:axis], num_kv_heads, -1, *shape[axis + 1 :])

    def of_queries(array: Array) -> Lifted:
        return Lifted(grouped(heads_first(array, num_rows), rank), "BKG")

    def of_keys(array: Array) -> Lifted:
        return Lifted(heads_first(array, num_columns), "BK")

    def of_pairs(array: Array) -> Lifted:  # [..., N or 1, T or 1, S or 1]
        lifted = _of_batch(array, 3, batch)
        array, letters = lifted.array, lifted.axes
        for axis, size in ((array.ndim - 2, num_rows), (array.ndim - 1, num_columns)):
            array = _pad(array, axis, size) if array.shape[axis] > 1 else array
        if array.shape[-3] == 1:
            return Lifted(array.squeeze(-3), letters)
        return Lifted(grouped(array, array.ndim - 3), letters + "KG")

    def of_positions(array: Array, length: int) -> Lifted:
        widths = [(0, 0)] * (array.ndim - 1) + [(0, length - array.shape[-1])]
        return _of_batch(jnp.pad(array, widths, mode="edge"), 1, batch)

    def of_score(score: Score) -> Score | None:
        def of_heads(array: Array, rank: int) -> Lifted:  # [..., N, 1, *]
            lifted = _of_batch(array, rank + 1, batch)
            axis = lifted.array.ndim - rank - 1
            return Lifted(grouped(lifted.array, axis), lifted.axes + "KG")

        if is_bias(score):
            return None
        own = score.by_head()
        return of_fields(score) if own is None else map_arrays(own, of_heads)

    def of_fields(tree: Mask | Score | None) -> Mask | Score | None:
        return map_arrays(tree, lambda x, rank: _of_batch(x, rank, batch))

    def is_bias(score: Score) -> bool:
        return isinstance(score, BiasArray)

    inputs = Inputs(
        query=of_queries(query),
        key=Lifted(jnp.swapaxes(of_keys(key).array, -1, -2), "BK"),
        value=of_keys(value),
        scale=Lifted(jnp.asarray(arguments.scale, arguments.dtype), ""),
        scores=tuple(map(of_score, arguments.scores)),
        biases=tuple(
            of_pairs(_aligned(x, arguments)) if is_bias(x) else None for x in arguments.scores
        ),
    )
    rng = None if arguments.dropout is None else arguments.dropout.rng
    is_key = jnp.arange(num_columns) < num_keys
    context = Context(
        query_positions=of_positions(arguments.query_positions, num_rows),
        key_positions=of_positions(arguments.key_positions, num_columns),
        query_nan=of_queries(nan_where(nonfinite[0], arguments.dtype)),
        key_nan=of_keys(nan_where(nonfinite[1], arguments.dtype)),
        is_key=None if num_columns == num_keys else Lifted(is_key, ""),
        mask=of_fields(arguments.mask),
        allowed=None if arguments.allowed is None else of_pairs(arguments.allowed),
        head=Lifted(grouped(arguments.heads, 0), "KG"),
        rng=None if rng is None else _of_batch(rng, 1, batch),
    )
    return inputs, context


def _aligned(score: BiasArray, arguments: Arguments) -> Array:
    """Return the entries of a bias array at the positions of queries and keys."""
    array = score.array.astype(arguments.dtype)
    if arguments.counted:
        return array
    positions = arguments.query_positions, arguments.key_positions
    batched = array.ndim > 3 or any(x.ndim > 1 for x in positions)
    batch = arguments.batch if batched else ()
    return over_batch(
        lambda array, *at: BiasArray(array).aligned(*at), (array, *positions), (3, 1, 1), batch
    )


def _pad(array: Array, axis: int, size: int) -> Array:
    """Pad one axis with zeros to a size."""
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, size - array.shape[axis])
    return jnp.pad(array, widths) if size > array.shape[axis] else array
