"""What each program of a kernel reads and writes, and the loop over the tiles it visits.

The programs of a grid are either one for each tile of queries of each query head, or one for each
tile of keys of each key/value head. Each array has axes that say what a program sees of it:

    B          its own example
    E          its own example, or the one entry that all examples share
    N, K       its own head; a program of a key/value head sees all G query heads of its group
    T, S       its own tile if it is the tile of a program, else all
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

from attention.primitives.kernels.layout import Layout
from attention.primitives.kernels.tile import Refs
from attention.primitives.kernels.visits import Visits

By = Literal["row", "column"]
Carry = Any  # a tree of arrays

AXES = {
    "query": "BTN.",
    "key": "BSK.",
    "value": "BSK.",
    "output": "BTN.",
    "logsumexp": "BNT",
    "offset": "BNT",
    "scale": ".",
    "scores": "BN.",
    "query_positions": "E.",
    "key_positions": "E.",
    "mask": "E.",
    "words": "E.",
    "visits": "EV.",
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
    """Runs a kernel for each tile of queries or keys.

    Args:
        kernel: a function of (what it reads, what it writes), references by name.
        operands: trees of arrays whose axes are those of `AXES`.
        results: trees of shapes, likewise.
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
        # In one axis, since the others of a GPU end at 65535; the programs that read the same keys
        # and values are neighbours.
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
    """Example, head and tile of a program."""
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


def head_and_tile(layout: Layout, by: By) -> tuple[Array, Array]:
    """Of this program: query head and tile of queries by row, key/value head and keys by column."""
    return _place(pl.program_id(0), layout, by)[1:]


def fold_visits(
    visits: Visits | None, count: int, visit: Callable[[bool, Array, Carry], Carry], carry: Carry
) -> Carry:
    """Folds the tiles a program visits.

    Args:
        visits: references to its lists; None visits all tiles, as whole ones.
        count: how many tiles there are.
        visit: (whether the tile may hold forbidden pairs, its index, carry) to the next carry.
        carry: the first.
    """
    if visits is None:
        return jax.lax.fori_loop(
            jnp.int32(0), jnp.int32(count), lambda n, carry: visit(False, n, carry), carry
        )
    whole, some = visits.num_whole[0], visits.num_visits[0]
    for masked, start, end in ((False, jnp.int32(0), whole), (True, whole, some)):

        def step(n: Array, carry: Carry, masked: bool = masked) -> Carry:
            return visit(masked, visits.tiles[n], carry)

        carry = jax.lax.fori_loop(start, end, step, carry)
    return carry
