"""Which queries may attend to something that is not finite."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.request import Request
from attention.primitives.tiled import layout
from attention.primitives.tiled.sweep import tile_fold, varying_alike
from attention.primitives.tiled.tile import Fixed, allowed_in, split_fixed
from attention.primitives.tiled.tiling import Tiling, measured_size
from attention.primitives.touched import Touched


def sees_non_finite(request: Request, query_ok: Array, key_ok: Array) -> Array:
    """Which queries may attend to something that is not finite, themselves included.

    Args:
        request: for its mask and positions.
        query_ok: bool `[..., T, N]`, false for queries that are not finite.
        key_ok: bool `[..., S, K]`, false for keys that are not or whose value is not.

    Returns:
        bool `[..., T, N]`.
    """

    def look() -> Array:
        size = measured_size(masked=request.mask is not None)
        cut, fixed, visits = layout.at_rest(request, size)
        seen = sees_any(~query_ok, ~key_ok, fixed, visits, cut)
        seen = layout.from_query_rows(seen[..., None], request.batch, query_ok.shape[-2], cut)
        return seen[..., 0]

    # Nearly always there is nothing to look for.
    nothing = query_ok.all() & key_ok.all()
    return jax.lax.cond(nothing, lambda: jnp.zeros(query_ok.shape, bool), look)


def sees_any(
    bad_query: Array, bad_key: Array, fixed: Fixed, visits: Touched | None, cut: Tiling
) -> Array:
    """Whether a query is bad and may attend at all, or may attend to a bad key.

    Args:
        bad_query: bool `[..., T, N]`.
        bad_key: bool `[..., S, K]`.
        fixed: positions and mask.
        visits: the tiles that matter.
        cut: the sizes.

    Returns:
        bool `[B, T, K, G]`.
    """
    rows = layout.query_rows(bad_query[..., None], cut)[..., 0]
    columns = layout.key_columns(bad_key[..., None], cut)[..., 0, :]

    def step(so_far: Array, tiles: dict[str, Any], masked: bool) -> Array:
        bad = tiles["bad_query"][..., None] | tiles["bad_key"][None, None, :]
        seen = bad & allowed_in(split_fixed(tiles)) if masked else bad
        return so_far + jnp.sum(seen, axis=-1, dtype=so_far.dtype)

    def look() -> Array:
        return tile_fold(
            lambda: jnp.zeros((cut.row_size, rows.shape[-1]), jnp.int32),
            step,
            lambda seen: seen,
            {**fixed.cuts(), "bad_query": ("row", rows), "bad_key": ("column", columns)},
            visits,
            cut,
        )

    # Nearly always there is nothing to look for.
    zeros, given = jnp.zeros(rows.shape, jnp.int32), (rows, columns, fixed, visits)
    nothing, *_ = varying_alike([zeros, *jax.tree.leaves(given)])
    return jax.lax.cond(rows.any() | columns.any(), look, lambda: nothing) > 0
