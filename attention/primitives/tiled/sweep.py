"""A fold over the tiles of each row, and a sum over tiles that is closed under derivatives.

`tile_sum` adds what a function gives for each tile. Its derivative along a direction is again a sum
over the same tiles, of the derivative of that function; and so is the transpose of a linear one.
So one rule each makes every mixture of `jax.jvp` and `jax.grad` cost memory for tiles only and skip
what a mask rules out: nothing in here knows about attention. How arrays are cut says `cuts.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import PartitionSpec

from attention.primitives.tiled.cuts import Along, Output, tile_shape
from attention.primitives.tiled.loop import Fold, Tree, sweep
from attention.primitives.tiled.tiling import Tiling
from attention.primitives.touched import Touched

Cut = tuple[Along, Tree]  # along what the arrays of a tree are cut


def tile_fold(
    begin: Callable[[], Tree],
    step: Callable[[Tree, dict[str, Tree], bool], Tree],
    finish: Callable[[Tree], Tree],
    operands: Mapping[str, Cut],
    visits: Touched | None,
    tiling: Tiling,
) -> Tree:
    """Folds the tiles of each row. All is held still: what comes out has no derivative.

    Args:
        begin: makes the carry of a row of tiles.
        step: (carry, tiles by name, whether a tile may hold forbidden pairs) to the next carry.
        finish: the last carry to results, each with a leading axis of the rows of a tile.
        operands: name → (cut, tree of arrays).
        visits: None visits every tile, as one that holds only allowed pairs.
        tiling: the sizes.

    Returns:
        The results of all rows, `[B, T, K, ...]` or, if heads_first, `[B, K, T, ...]`.
    """
    leaves, along, unflatten = _flatten(operands)
    results = jax.eval_shape(lambda: finish(begin()))
    outputs = jax.tree.map(
        lambda row: Output("row", (*tiling.row_shape, *row.shape[1:]), row.dtype), results
    )
    flat, structure = jax.tree.flatten(outputs, is_leaf=lambda node: isinstance(node, Output))

    def flat_step(carry: Tree, tiles: list[Array], masked: bool) -> tuple[Tree, list[Array]]:
        return step(carry, unflatten(tiles), masked), []

    fold = Fold(begin, flat_step, lambda carry: jax.tree.leaves(finish(carry)))
    leaves = [jax.lax.stop_gradient(leaf) for leaf in leaves]
    found = _bind(fold, None, leaves, along, tuple(flat), visits, tiling)
    return jax.tree.unflatten(structure, found)


def tile_sum(
    summand: Callable[[dict[str, Tree], bool], dict[str, Array]],
    operands: Mapping[str, Cut],
    outputs: Mapping[str, Output],
    visits: Touched | None,
    tiling: Tiling,
    transposed: Callable[[dict[str, Tree], dict[str, Array], bool], dict[str, Tree]] | None = None,
) -> dict[str, Array]:
    """Adds what a function gives for each tile; can be differentiated any number of times.

    Args:
        summand: (tiles by name, whether a tile may hold forbidden pairs) to what the tile adds to
            its part of each output.
        operands: name → (cut, tree of arrays).
        outputs: what to make, by name.
        visits: None visits every tile, as one that holds only allowed pairs.
        tiling: the sizes.
        transposed: the transpose of a `summand` that is linear in some operands: from the tiles,
            where those are None, and what comes back to each output, to what goes back to those,
            by name. JAX makes one; by hand it may be made of faster products.
    """
    leaves, along, unflatten = _flatten(operands)
    names, shapes = tuple(outputs), [tile_shape(output, tiling) for output in outputs.values()]

    def flat_summand(tiles: list[Array], masked: bool) -> list[Array]:
        found = summand(unflatten(tiles), masked)
        return [found[name] for name in names]

    def flat_transposed(
        tiles: list[Array | None], cotangents: dict[int, Array], masked: bool
    ) -> list[Array]:
        back = {
            name: cotangents.get(n, jnp.zeros(shape.shape, shape.dtype))
            for n, (name, shape) in enumerate(zip(names, shapes, strict=True))
        }
        found = transposed(unflatten(tiles), back, masked)
        return jax.tree.leaves({name: found.get(name) for name in operands})

    both = _Summand(flat_summand, None if transposed is None else flat_transposed)
    found = _bind_sum(both, leaves, along, tuple(outputs.values()), visits, tiling)
    return dict(zip(outputs, found, strict=True))


def varying_alike(arrays: Sequence[Array]) -> list[Array]:
    """Arrays that, inside `jax.shard_map`, all vary along those axes of its mesh that any does."""
    axes = [jax.typeof(array).manual_axis_type.varying for array in arrays]
    missing = [tuple(frozenset().union(*axes) - own) for own in axes]
    return [
        jax.lax.pcast(array, more, to="varying") if more else array
        for array, more in zip(arrays, missing, strict=True)
    ]


# What follows speaks of flat lists of arrays.


class _Summand(NamedTuple):
    """A function of (tiles, masked), and its transpose if that was written by hand."""

    call: Callable[[list[Array], bool], list[Array]]
    transposed: Callable[[list[Array | None], dict[int, Array], bool], list[Array]] | None = None


def _flatten(
    operands: Mapping[str, Cut],
) -> tuple[list[Array], tuple[Along, ...], Callable[[list[Array]], dict[str, Tree]]]:
    trees = {name: tree for name, (_, tree) in operands.items()}
    along = {
        name: jax.tree.map(lambda _, cut=cut: cut, tree) for name, (cut, tree) in operands.items()
    }
    leaves, structure = jax.tree.flatten(trees)
    return leaves, tuple(jax.tree.leaves(along)), partial(jax.tree.unflatten, structure)


def _sum_fold(summand: _Summand, outputs: tuple[Output, ...], tiling: Tiling) -> Fold:
    """A sum as a fold: what belongs to a row is carried along it, the rest is added at once."""
    rows = [n for n, output in enumerate(outputs) if output.along == "row"]

    def begin() -> list[Array]:
        shapes = [(tiling.row_size, *outputs[n].shape[3:]) for n in rows]
        return [jnp.zeros(shape, outputs[n].dtype) for n, shape in zip(rows, shapes, strict=True)]

    def step(carry: list[Array], tiles: list[Array], masked: bool) -> tuple[Tree, list[Array]]:
        found = [
            array.astype(output.dtype)
            for array, output in zip(summand.call(tiles, masked), outputs, strict=True)
        ]
        carry = [total + found[n] for total, n in zip(carry, rows, strict=True)]
        return carry, [array for n, array in enumerate(found) if n not in rows]

    return Fold(begin, step, lambda carry: carry)


def _bind(
    fold: Fold,
    summand: _Summand | None,
    leaves: list[Array],
    along: tuple[Along, ...],
    outputs: tuple[Output, ...],
    visits: Touched | None,
    tiling: Tiling,
) -> list[Array]:
    listed = [] if visits is None else [visits.some, visits.every]
    return _sweep.bind(
        *varying_alike([*listed, *leaves]),
        fold=fold,
        summand=summand,
        along=along,
        outputs=outputs,
        tiling=tiling,
    )


def _bind_sum(
    summand: _Summand,
    leaves: list[Array],
    along: tuple[Along, ...],
    outputs: tuple[Output, ...],
    visits: Touched | None,
    tiling: Tiling,
) -> list[Array]:
    fold = _sum_fold(summand, outputs, tiling)
    return _bind(fold, summand, leaves, along, outputs, visits, tiling)


def _split(
    operands: tuple[Array, ...], along: tuple[Along, ...]
) -> tuple[Touched | None, list[Array]]:
    count = len(operands) - len(along)
    return (Touched(*operands[:count]) if count else None), list(operands[count:])


def _run(
    *operands: Array,
    fold: Fold,
    summand: _Summand | None,
    along: tuple[Along, ...],
    outputs: tuple[Output, ...],
    tiling: Tiling,
) -> list[Array]:
    del summand
    visits, leaves = _split(operands, along)
    return sweep(fold, leaves, along, outputs, visits, tiling)


def _shapes(
    *operands: ShapedArray, outputs: tuple[Output, ...], **params: object
) -> list[ShapedArray]:
    """What comes out, which differs along the axes of a mesh along which the operands do."""
    del params
    like = operands[0]
    return [
        ShapedArray(
            output.shape,
            output.dtype,
            sharding=like.sharding.update(spec=PartitionSpec(*[None] * len(output.shape))),
            manual_axis_type=like.manual_axis_type,
        )
        for output in outputs
    ]


def _lower(
    context: mlir.LoweringRuleContext, *operands: object, **params: object
) -> Sequence[object]:
    """The loops, of plain arrays: what one device computes knows nothing of its mesh."""
    plain = [ShapedArray(aval.shape, aval.dtype) for aval in context.avals_in]
    context = context.replace(avals_in=plain)
    return mlir.lower_fun(_run, multiple_results=True)(context, *operands, **params)


_sweep = Primitive("tile_sweep")
_sweep.multiple_results = True
_sweep.def_impl(lambda *operands, **params: jax.jit(partial(_sweep.bind, **params))(*operands))
_sweep.def_abstract_eval(_shapes)
mlir.register_lowering(_sweep, _lower)


def _differentiate(
    primals: tuple[Array, ...],
    tangents: tuple[Any, ...],
    *,
    fold: Fold,
    summand: _Summand | None,
    along: tuple[Along, ...],
    outputs: tuple[Output, ...],
    tiling: Tiling,
) -> tuple[list[Array], list[Any]]:
    found = _sweep.bind(
        *primals, fold=fold, summand=summand, along=along, outputs=outputs, tiling=tiling
    )
    visits, leaves = _split(primals, along)
    moving = list(tangents[len(primals) - len(leaves) :])
    live = [n for n, tangent in enumerate(moving) if type(tangent) is not ad.Zero]
    count = len(leaves)

    def tangent_summand(tiles: list[Array], masked: bool) -> list[Array]:
        still, moved = tiles[:count], tiles[count:]
        function = partial(_with_changed, summand, still, live, masked)
        return jax.jvp(function, tuple(still[n] for n in live), tuple(moved))[1]

    leaves = [*leaves, *(moving[n] for n in live)]
    cuts = (*along, *(along[n] for n in live))
    return found, _bind_sum(_Summand(tangent_summand), leaves, cuts, outputs, visits, tiling)


def _with_changed(
    summand: _Summand, tiles: list[Array | None], live: list[int], masked: bool, *changed: Array
) -> list[Array]:
    tiles = list(tiles)
    for n, tile in zip(live, changed, strict=True):
        tiles[n] = tile
    return summand.call(tiles, masked)


def _transpose(
    cotangents: list[Any],
    *operands: Any,  # noqa: ANN401 - arrays, or what stands for those to find
    fold: Fold,
    summand: _Summand,
    along: tuple[Along, ...],
    outputs: tuple[Output, ...],
    tiling: Tiling,
) -> list[Array | None]:
    del fold
    visits, leaves = _split(operands, along)
    linear = [n for n, leaf in enumerate(leaves) if ad.is_undefined_primal(leaf)]
    known = [n for n in range(len(leaves)) if n not in linear]
    live = [n for n, cotangent in enumerate(cotangents) if type(cotangent) is not ad.Zero]
    wanted = tuple(Output(along[n], leaves[n].aval.shape, leaves[n].aval.dtype) for n in linear)
    shapes = [tile_shape(output, tiling) for output in wanted]

    def transposed_summand(tiles: list[Array], masked: bool) -> list[Array]:
        still: list[Array | None] = [None] * len(along)
        for n, tile in zip(known, tiles, strict=False):
            still[n] = tile

        def function(*tiles: Array) -> list[Array]:
            found = _with_changed(summand, still, linear, masked, *tiles)
            return [found[n].astype(outputs[n].dtype) for n in live]

        given = tiles[len(known) :]
        if summand.transposed is not None:
            found = summand.transposed(still, dict(zip(live, given, strict=True)), masked)
            if len(found) == len(linear):  # all that it was written for, and not a part
                return found
        return list(jax.linear_transpose(function, *shapes)(given))

    found = _bind_sum(
        _Summand(transposed_summand),
        [*(leaves[n] for n in known), *(cotangents[n] for n in live)],
        (*(along[n] for n in known), *(outputs[n].along for n in live)),
        wanted,
        visits,
        tiling,
    )
    results: list[Array | None] = [None] * len(operands)
    for n, array in zip(linear, found, strict=True):
        results[len(operands) - len(leaves) + n] = array
    return results


def _batch(
    operands: tuple[Array, ...],
    axes: tuple[int | None, ...],
    *,
    fold: Fold,
    summand: _Summand | None,
    along: tuple[Along, ...],
    outputs: tuple[Output, ...],
    tiling: Tiling,
) -> tuple[list[Array], list[int]]:
    """A mapped axis becomes part of the axis of examples."""
    size = next(x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None)
    examples = tiling.examples

    def merged(array: Array, axis: int | None) -> Array:
        if axis is None and array.shape[0] == 1:
            return array
        if axis is None:
            array, axis = jnp.broadcast_to(array, (size, *array.shape)), 0
        array = jnp.moveaxis(array, axis, 0)
        array = jnp.broadcast_to(array, (size, examples, *array.shape[2:]))
        return array.reshape(-1, *array.shape[2:])

    def split(array: Array, output: Output) -> Array:
        array = array.reshape(size, examples, *array.shape[1:])
        return array.sum(axis=1, keepdims=True) if output.shape[0] < examples else array

    found = _sweep.bind(
        *map(merged, operands, axes),
        fold=fold,
        summand=summand,
        along=along,
        outputs=tuple(
            output._replace(shape=(size * examples, *output.shape[1:])) for output in outputs
        ),
        tiling=tiling.times(size),
    )
    return list(map(split, found, outputs)), [0] * len(found)


ad.primitive_jvps[_sweep] = _differentiate
ad.primitive_transposes[_sweep] = _transpose
batching.primitive_batchers[_sweep] = _batch
