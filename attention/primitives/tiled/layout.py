"""From the axes of attention to those of tiles, and back."""

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.carrier import Carrier, arrays, map_arrays
from attention.primitives.masks import Mask
from attention.primitives.request import Request
from attention.primitives.scores import BiasArray
from attention.primitives.tiled.tile import Fixed
from attention.primitives.tiled.tiling import TileSize, Tiling, cut
from attention.primitives.touched import Tiles, Touched


def at_rest(request: Request, size: TileSize) -> tuple[Tiling, Fixed, Touched | None]:
    """How a request is cut, what has no derivative in it, and which tiles a sweep visits."""
    *batch, num_queries, num_heads, _ = request.query.shape
    num_keys, num_kv_heads = request.key.shape[-3:-1]
    tiling = cut(size, prod(batch), num_kv_heads, num_heads // num_kv_heads, num_queries, num_keys)
    fixed = _fixed(request, tiling)
    mask = fixed.predicate if fixed.pairs is None else fixed.pairs
    positions = fixed.query_positions, fixed.key_positions
    return tiling, fixed, visits(mask, *positions, num_keys, tiling)


def query_rows(array: Array, tiling: Tiling) -> Array:
    """`[..., T, N, *]` to rows `[B, T, K, G, *]`, with T in whole tiles."""
    *_, num_queries, num_heads, width = array.shape
    groups = num_heads // tiling.heads
    array = array.reshape(-1, num_queries, tiling.heads, groups, width)
    return turned(_pad(array, 1, tiling.padded[0]), tiling)


def turned(array: Array, tiling: Tiling) -> Array:
    """`[B, T, K, ...]` as the rows of a tiling stand, and those as `[B, T, K, ...]`."""
    return jnp.swapaxes(array, 1, 2) if tiling.heads_first else array


def from_query_rows(
    array: Array, batch: tuple[int, ...], num_queries: int, tiling: Tiling
) -> Array:
    """Rows `[B, T, K, G, *]` to `[..., T, N, *]`."""
    array = turned(array, tiling)[:, :num_queries]
    return array.reshape(*batch, num_queries, -1, array.shape[-1])


def from_head_rows(array: Array, batch: tuple[int, ...], num_queries: int, tiling: Tiling) -> Array:
    """Rows `[B, T, K, G, *]` to `[..., N, T, *]`."""
    array = jnp.moveaxis(turned(array, tiling)[:, :num_queries], 1, 3)
    return array.reshape(*batch, -1, num_queries, *array.shape[4:])


def key_columns(array: Array, tiling: Tiling) -> Array:
    """`[..., S, K, *]` to `[B, K, *, S]`, with S in whole tiles."""
    array = array.reshape(-1, *array.shape[-3:])
    return _pad(jnp.moveaxis(array, 1, -1), -1, tiling.padded[1])


def position_parts(positions: Array, size: int) -> Array:
    """`[..., T]` to `[B or 1, T]`; what is added repeats the last, within the bounds of all."""
    positions = positions.reshape(-1, positions.shape[-1])
    return jnp.pad(positions, [(0, 0), (0, size - positions.shape[-1])], mode="edge")


def examples(array: Array, rank: int, batch: tuple[int, ...]) -> Array:
    """Any leading axes to one, `[B or 1, ...]`: 1 where all examples share what is there."""
    leading, core = array.shape[: array.ndim - rank], array.shape[array.ndim - rank :]
    if prod(leading) != 1:
        array = jnp.broadcast_to(array, (*batch, *core))
    return array.reshape(-1, *core)


def entries(carrier: Carrier, batch: tuple[int, ...]) -> Carrier:
    """Gives every array inside two leading axes `[B or 1, 1]`."""

    def entry(array: Array, rank: int) -> Array:
        return jnp.expand_dims(examples(jnp.asarray(array), rank, batch), 1)

    return map_arrays(carrier, entry)


def bias_pairs(
    score: BiasArray, positions: tuple[Array, Array], batch: tuple[int, ...], tiling: Tiling
) -> Array:
    """The array of a bias, as `[B or 1, K or 1, T, G or 1, S]` in whole tiles."""
    query, key = (at.reshape(-1, at.shape[-1]) for at in positions)
    table = examples(score.array, 3, batch)
    num_examples, num_heads = max(x.shape[0] for x in (table, query, key)), table.shape[1]
    lifted = [jnp.broadcast_to(x, (num_examples, *x.shape[1:])) for x in (table, query, key)]
    aligned = jax.vmap(lambda array, *at: BiasArray(array).aligned(*at))(*lifted)
    heads = tiling.heads if num_heads > 1 else 1
    aligned = aligned.reshape(num_examples, heads, -1, *aligned.shape[2:])
    aligned = _pad(jnp.moveaxis(aligned, 2, 3), 2, tiling.padded[0])
    return _pad(aligned, 4, tiling.padded[1])


def mask_pairs(mask: Array, batch: tuple[int, ...], tiling: Tiling) -> Array:
    """A bool array `[..., T, S]` as `[B or 1, 1, T, S]` in whole tiles, false where added."""
    mask = jnp.expand_dims(examples(mask, 2, batch), 1)
    return _pad(_pad(mask, 2, tiling.padded[0]), 3, tiling.padded[1])


def visits(
    mask: Any,  # noqa: ANN401 - entries of a Mask, pairs of a bool array, or None
    query_positions: Array,
    key_positions: Array,
    num_keys: int,
    tiling: Tiling,
) -> Touched | None:
    """Which tiles a mask leaves anything in; None if every one of them is left whole.

    Args:
        mask: of `entries` or `mask_pairs`, or None.
        query_positions: of `position_parts`.
        key_positions: of `position_parts`.
        num_keys: S without what was added.
        tiling: the sizes.
    """
    shape = tiling.rows, tiling.columns
    whole = (jnp.arange(tiling.columns) + 1) * tiling.column_size <= num_keys
    if mask is None:
        if num_keys == tiling.padded[1]:
            return None
        return Touched(jnp.ones((1, 1, *shape), bool), jnp.broadcast_to(whole, (1, 1, *shape)))
    if not isinstance(mask, Mask):
        tiles = mask.reshape(
            -1, 1, tiling.rows, tiling.row_size, tiling.columns, tiling.column_size
        )
        some, every = tiles.any(axis=(3, 5)), tiles.all(axis=(3, 5))
    else:
        query = query_positions.reshape(-1, tiling.rows, tiling.row_size)
        key = key_positions.reshape(-1, tiling.columns, tiling.column_size)
        mask = map_arrays(mask, lambda array, rank: jnp.squeeze(array, 1))
        touched = jax.vmap(
            lambda mask, query, key: mask.touches(Tiles.of(query), Tiles.of(key)),
            axis_size=max([query.shape[0], key.shape[0], *(a.shape[0] for a, _ in arrays(mask))]),
        )
        some, every = touched(*_spread((mask, query, key)))
        some, every = some[:, None], every[:, None]
    return Touched(some, every & whole.reshape(1, 1, 1, -1))


def _fixed(request: Request, tiling: Tiling) -> Fixed:
    num_heads, num_keys = request.query.shape[-2], request.key.shape[-3]
    is_array = isinstance(request.mask, jax.Array)
    predicate = None if is_array or request.mask is None else request.mask
    words = None
    if request.dropout is not None:
        words = jax.random.key_data(request.dropout.key)
        words = examples(words, 1, request.batch)[:, None]
    return Fixed(
        query_positions=turned(
            position_parts(request.query_positions, tiling.padded[0])[:, :, None], tiling
        ),
        key_positions=position_parts(request.key_positions, tiling.padded[1])[:, None, :],
        is_key=None
        if num_keys == tiling.padded[1]
        else (jnp.arange(tiling.padded[1]) < num_keys)[None, None, :],
        predicate=None if predicate is None else entries(predicate, request.batch),
        pairs=mask_pairs(request.mask, request.batch, tiling) if is_array else None,
        heads=jnp.arange(num_heads).reshape(1, tiling.heads, -1),
        words=words,
    )


def _spread(tree: Any) -> Any:  # noqa: ANN401 - any pytree of arrays with a leading axis
    examples = max([1, *(leaf.shape[0] for leaf in jax.tree.leaves(tree))])
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (examples, *x.shape[1:])), tree)


def _pad(array: Array, axis: int, size: int) -> Array:
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, size - array.shape[axis])
    return jnp.pad(array, widths)
