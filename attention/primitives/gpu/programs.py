"""Grid of a kernel: the operands that each program reads, and the loop over its tiles.

A grid has one program for each tile of queries of each query head, or one for each tile of keys of
each key/value head. A letter per axis of an array gives the part of it that a program reads:

    B          its own example
    E          its own example, or the one entry that all examples share
    N, K       its own head; a program of a key/value head reads all G query heads of its group
    T, S       its own tile, if programs are tiles of this axis; else all
    V          its own entry of a list with one entry for each tile of a program
    .          all
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from attention.primitives.gpu.inputs import Layout
from attention.primitives.gpu.tile import Refs
from attention.primitives.gpu.tile_lists import TileLists

By = Literal["row", "column"]
Carry = Any  # a tree of arrays

AXES = {
    "query": "BTN.",
    "key": "BSK.",
    "value": "BSK.",
    "output": "BTN.",
    "d_output": "BTN.",
    "query_nan": "BNT",
    "key_nan": "BKS",
    "logsumexp": "BNT",
    "offset": "BNT",
    "scale": ".",
    "scores": "BN.",
    "query_positions": "E.",
    "key_positions": "E.",
    "mask": "E.",
    "words": "E.",
    "heads": "EN.",
    "tile_lists": "EV.",
    "score_gradients": "BNV.",
}


def call_kernel(
    kernel: Callable[[Refs, Refs], None],
    operands: dict[str, Any],
    results: dict[str, Any],
    layout: Layout,
    by: By,
    interpret: bool,
) -> dict[str, Any]:
    """Run a kernel for each tile of queries or keys.

    Args:
        kernel: a function of references to operands and references to results, by name.
        operands: trees of arrays whose axes are those of `AXES`.
        results: trees of shapes, with the same axes.
        layout: the sizes.
        by: "row" for a program for each tile of queries of each query head, "column" for one for
            each tile of keys of each key/value head.
        interpret: whether to run it as ordinary JAX, on any platform.
    """
    tiles, heads = _tiles_and_heads(layout, by)
    specs = [
        {
            name: jax.tree.map(lambda array, name=name: _spec(AXES[name], array, layout, by), tree)
            for name, tree in trees.items()
        }
        for trees in (operands, results)
    ]
    return pl.pallas_call(
        kernel,
        # One axis: the other axes of a GPU grid are limited to 65535. Programs that read the same
        # keys and values are neighbours.
        grid=(layout.examples * heads * tiles,),
        in_specs=[specs[0]],
        out_specs=specs[1],
        out_shape=results,
        interpret=interpret,
        compiler_params=triton.CompilerParams(
            num_warps=layout.size.warps, num_stages=layout.size.stages
        ),
    )(operands)


def _tiles_and_heads(layout: Layout, by: By) -> tuple[int, int]:
    if by == "row":
        return layout.rows, layout.num_heads
    return layout.columns, layout.num_kv_heads


def _place(number: Array, layout: Layout, by: By) -> tuple[Array, Array, Array]:
    """Return example, head and tile of a program."""
    tiles, heads = map(jnp.int32, _tiles_and_heads(layout, by))
    head = jax.lax.div(number, tiles)
    return jax.lax.div(head, heads), jax.lax.rem(head, heads), jax.lax.rem(number, tiles)


def _spec(axes: str, array: Array | jax.ShapeDtypeStruct, layout: Layout, by: By) -> pl.BlockSpec:
    groups = layout.groups

    def block(axis: str, size: int) -> int | None:
        if (axis, by) == ("T", "row"):
            return layout.size.rows
        if (axis, by) == ("S", "column"):
            return layout.size.columns
        if (axis, by) == ("N", "column"):
            return groups
        return None if axis in "BENKV" else size

    def place(number: Array) -> tuple[Array | int, ...]:
        example, head, tile = _place(number, layout, by)
        where = {
            "B": example,
            "E": 0 if array.shape[0] == 1 else example,
            "N": head,
            "K": jax.lax.div(head, jnp.int32(groups)) if by == "row" else head,
            "T": tile if by == "row" else 0,
            "S": tile if by == "column" else 0,
            "V": tile,
            ".": 0,
        }
        return tuple(where[axis] for axis in axes)

    return pl.BlockSpec(tuple(map(block, axes, array.shape)), place)


def tile_index(layout: Layout, by: By) -> Array:
    """Return the tile of this program: of queries by row, of keys by column."""
    return _place(pl.program_id(0), layout, by)[2]


def tile_loop(
    lists: TileLists | None, count: int, step: Callable[[bool, Array, Carry], Carry], carry: Carry
) -> Carry:
    """Fold a function over the tiles that are not empty.

    Args:
        lists: references to the lists of this program; None = all tiles are full.
        count: number of tiles.
        step: of (whether the tile needs the mask, its index, carry), to the next carry.
        carry: the first.
    """
    if lists is None:
        return jax.lax.fori_loop(
            jnp.int32(0), jnp.int32(count), lambda n, carry: step(False, n, carry), carry
        )
    num_full, num_visible = lists.num_full[0], lists.num_visible[0]
    for masked, start, end in ((False, jnp.int32(0), num_full), (True, num_full, num_visible)):

        def one_tile(n: Array, carry: Carry, masked: bool = masked) -> Carry:
            return step(masked, lists.indices[n], carry)

        carry = jax.lax.fori_loop(start, end, one_tile, carry)
    return carry
