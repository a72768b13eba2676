"""From one head to all heads and examples: `vmap`, or a few at a time in a loop.

A loop over a few at a time keeps the scores that are computed at once in a cache. An axis is cut
into `[shards, steps, at once]` and the loop runs over the steps, so that an axis that is sharded
over devices stays sharded: no two axes are merged, and nothing is gathered.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import gcd, prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AxisType

from attention.primitives.pytree_dataclass import join, map_arrays

Tree = Any
Function = Callable[..., Tree]

# index(array, number, axis): one entry of an axis, which is then gone.
index = partial(jax.lax.dynamic_index_in_dim, keepdims=False, allow_negative_indices=False)


class Cut(NamedTuple):
    """How an axis is mapped over: `steps` of a loop, in each of which `at_once` of each shard."""

    shards: int
    steps: int
    at_once: int


def cut(size: int, at_once: int, shards: int) -> Cut:
    """Cut an axis so that it may be sharded over any divisor of `shards`.

    At most `at_once` entries are computed at once, but at least one per shard.
    """
    if not isinstance(size, int):  # symbolic
        return Cut(1, 1, size)
    shards = gcd(size, shards)
    local = size // shards
    largest = max(1, min(local, at_once // shards))
    at_once = next(n for n in range(largest, 0, -1) if local % n == 0)
    return Cut(shards, local // at_once, at_once)


def possible_shards(*arrays: Array) -> int:
    """Return over how many devices the compiler may shard an axis of some arrays.

    They are the devices along the Auto axes of the mesh that is set, or of the mesh in the types
    of the arrays, which contain one if an input has a `NamedSharding`. The `in_shardings` of
    `jax.jit` are not known when it traces: for inputs on one device the result is then 1.
    """
    meshes = [jax.sharding.get_abstract_mesh()]
    meshes += [jax.typeof(array).sharding.mesh for array in arrays]
    mesh = next((mesh for mesh in meshes if not mesh.empty), meshes[0])
    axes = zip(mesh.axis_sizes, mesh.axis_types, strict=True)
    return prod(size for size, kind in axes if kind == AxisType.Auto)


def over_batch(
    function: Function,
    trees: Sequence[Tree],
    batch: Sequence[int],
    cuts: Sequence[Cut] | None = None,
) -> Tree:
    """Map a function of single examples over batch axes, which are in front in the results.

    Args:
        function: takes the trees, without batch axes.
        trees: pytree dataclasses, or tuples of them. Batch axes of their arrays broadcast to
            `batch`; an array without any is shared by all examples.
        batch: the sizes of the batch axes.
        cuts: how to map over each of them; all at once by default.
    """
    sizes = tuple(size for size in batch if size != 1)

    def without_ones(array: Array, axes: str) -> Array:
        array = to_batch(array, len(axes), batch)
        shared = array.ndim == len(axes)
        return array if shared else array.reshape(*sizes, *array.shape[len(batch) :])

    trees = map_arrays(tuple(trees), without_ones)
    in_axes = map_arrays(trees, lambda array, axes: 0 if array.ndim > len(axes) else None)
    for axis_cut in reversed(cuts or [Cut(1, 1, size) for size in batch]):
        if prod(axis_cut) != 1:
            function = map_axis(function, in_axes, axis_cut)
    return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[len(sizes) :]), function(*trees))


def over_heads(
    function: Function, trees: tuple[Tree, ...], kv_heads: Cut, moved: bool = True
) -> Tree:
    """Map a function of one head over the query heads of one example; results have N in front.

    First over the key/value heads, cut as `kv_heads`, then over the query heads of their groups,
    with key and value unbatched: query head n reads key head n // G. An axis N of one is shared by
    all heads, and stays. The query of the first tree counts the heads. `moved`: as in `map_axis`.
    """
    num_heads, num_kv_heads = trees[0].query.shape[1], prod(kv_heads)
    groups = num_heads // num_kv_heads

    def axis_of(array: Array, axes: str) -> int | None:
        is_shared = "N" in axes and array.shape[axes.index("N")] != num_heads
        axis = max(axes.find("N"), axes.find("K"))
        return None if is_shared or axis < 0 else axis

    def split(array: Array, axes: str) -> Array:  # N -> K, G; without axes of one
        if (axis := axis_of(array, axes)) is None:
            return array
        sizes = (num_kv_heads, groups) if "N" in axes else (num_kv_heads,)
        sizes = (size for size in sizes if size > 1)
        return array.reshape(*array.shape[:axis], *sizes, *array.shape[axis + 1 :])

    if groups > 1:
        in_axes = map_arrays(trees, lambda x, axes: axis_of(x, axes) if "N" in axes else None)
        function = map_axis(function, in_axes, Cut(1, 1, groups))
    if num_kv_heads > 1:
        function = map_axis(function, map_arrays(trees, axis_of), kv_heads, moved)
    results = function(*map_arrays(trees, split))
    return _reshaped(results, (num_kv_heads > 1) + (groups > 1), [num_heads])


def with_axes_of_one(one: Tree) -> Tree:
    """Give the masks and score functions of one head an axis of one in place of the heads."""

    def restore(array: Array, axes: str) -> Array:
        return array if array.ndim == len(axes) else jnp.expand_dims(array, axes.index("N"))

    mask, scores = (map_arrays(tree, restore) for tree in (one.mask, one.scores))
    return replace(one, mask=mask, scores=scores)


def map_axis(function: Function, in_axes: Tree, cut: Cut, moved: bool = True) -> Function:
    """Return `jax.vmap(function, in_axes)`, as a loop if the cut has more than one step.

    `moved`: whether the axis is first moved to the front. Else a step of one entry reads it where
    it is, which takes less time and memory, but a gradient would add whole arrays in each step.
    """
    shards, steps, at_once = cut
    if steps == 1:
        return jax.vmap(function, in_axes, axis_size=shards * at_once)

    def run(*trees: Tree) -> Tree:
        def each(take: Callable[[Array, int], Array]) -> Tree:
            def entry(axis: int | None, array: Tree) -> Tree:
                return None if axis is None else take(array, axis)

            return jax.tree.map(entry, in_axes, trees, is_leaf=lambda axis: axis is None)

        def step(mapped: Tree) -> Tree:
            return function(*join(mapped, trees))

        def read_and_step(number: Array) -> Tree:
            return function(*join(each(lambda x, axis: index(x, number, axis)), trees))

        if not moved and shards == at_once == 1:
            return jax.lax.map(read_and_step, np.arange(steps))
        # A step of one entry has no axis of one: on a CPU the compiler multiplies matrices without
        # a batch axis faster in the backward pass, since it need not transpose them.
        step = jax.vmap(step) if at_once > 1 else step
        loop = partial(jax.lax.map, step)
        loop = jax.vmap(loop) if shards > 1 else loop
        sizes = [number for number in cut if number > 1]
        mapped = each(lambda array, axis: jnp.moveaxis(array, axis, 0))
        return _reshaped(loop(_reshaped(mapped, 1, sizes)), len(sizes), [prod(cut)])

    return run


def _reshaped(tree: Tree, number: int, sizes: Sequence[int]) -> Tree:
    """Return the arrays with other sizes of their first axes, whose number is given."""
    return jax.tree.map(lambda array: array.reshape(*sizes, *array.shape[number:]), tree)


def to_batch(array: Array, rank: int, batch: Sequence[int], name: str = "array") -> Array:
    """Give an array all batch axes, or none if all examples share it."""
    leading, core = array.shape[: array.ndim - rank], array.shape[array.ndim - rank :]
    check_broadcasts(name, leading, batch)
    if all(size == 1 for size in leading):
        return array.reshape(core)
    return jnp.broadcast_to(array, (*batch, *core))


def check_broadcasts(name: str, leading: Sequence[int], batch: Sequence[int]) -> None:
    """Raise a ValueError if some leading axes do not broadcast to the batch axes."""
    pairs = zip(reversed(leading), reversed(batch), strict=False)
    if len(leading) > len(batch) or any(ours not in (1, theirs) for ours, theirs in pairs):
        raise ValueError(
            f"{name} has the leading axes {tuple(leading)}, which do not broadcast to "
            f"the batch axes {tuple(batch)} of the query"
        )


def varying_alike(arrays: Sequence[Array]) -> list[Array]:
    """Make arrays inside `shard_map` vary over the mesh axes that any of them varies over.

    Functions of `jax.numpy` do this for their arguments, but loops and the operations of a jaxpr
    do not. Outside of `shard_map`, no array varies.
    """
    varying = [jax.typeof(array).manual_axis_type.varying for array in arrays]
    missing = [tuple(frozenset().union(*varying) - own) for own in varying]
    return [
        jax.lax.pcast(array, axes, to="varying") if axes else array
        for array, axes in zip(arrays, missing, strict=True)
    ]
