"""From one head to all heads and examples: `vmap`, or a few at a time in a loop.

A loop over a few at a time keeps the scores that are computed at once in a cache. An axis is cut
into `[shards, steps, at once]` and the loop runs over the steps, so that an axis that is sharded
over devices stays sharded: no two axes are merged, and nothing is gathered.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from math import gcd, prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import AxisType

from attention.primitives.pytree_dataclass import arrays_of, map_arrays

Tree = Any


class Cut(NamedTuple):
    """How an axis is mapped over: `steps` of a loop, in each of which `at_once` of each shard."""

    shards: int
    steps: int
    at_once: int


def cut(size: int, at_once: int, shards: int) -> Cut:
    """Cut an axis so that it may be sharded over any divisor of `shards`.

    Args:
        size: of the axis.
        at_once: how many entries to compute at once, at most, but at least one per shard.
        shards: over how many devices the axis may be sharded.
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

    These are the devices along the Auto axes of the mesh that is set, or of the mesh in the types
    of the arrays, which contain one if an input has a `NamedSharding`. The `in_shardings` of
    `jax.jit` are not known when it traces: for inputs on one device the result is then 1.
    """
    meshes = [jax.sharding.get_abstract_mesh()]
    meshes += [jax.typeof(array).sharding.mesh for array in arrays]
    mesh = next((mesh for mesh in meshes if not mesh.empty), meshes[0])
    axes = zip(mesh.axis_sizes, mesh.axis_types, strict=True)
    return prod(size for size, kind in axes if kind == AxisType.Auto)


def over_batch(
    function: Callable[..., Tree],
    trees: Sequence[Tree],
    batch: Sequence[int],
    cuts: Sequence[Cut] | None = None,
    remat: bool = False,
) -> Tree:
    """Map a function of single examples over leading batch axes.

    Args:
        function: takes the trees, without batch axes.
        trees: pytree dataclasses, or tuples of them. Batch axes of their arrays broadcast to
            `batch`; an array without any is shared by all examples.
        batch: the sizes of the batch axes.
        cuts: how to map over each of them; all at once by default.
        remat: whether derivatives compute each step of a loop again.

    Returns:
        The results of the function, with the batch axes in front.
    """
    trees, cuts = tuple(trees), cuts or [Cut(1, 1, size) for size in batch]
    ranks = [len(axes) for _, axes in arrays_of(trees)]
    leaves, structure = jax.tree.flatten(trees)
    leaves = [to_batch(leaf, rank, batch) for leaf, rank in zip(leaves, ranks, strict=True)]
    mapped = [None if x.ndim == rank else 0 for x, rank in zip(leaves, ranks, strict=True)]
    sizes = tuple(size for size in batch if size != 1)
    leaves = [
        x if axis is None else x.reshape(*sizes, *x.shape[len(batch) :])
        for x, axis in zip(leaves, mapped, strict=True)
    ]
    for axis_cut in reversed([each for each in cuts if prod(each) != 1]):
        function = _map_axis(function, structure, mapped, axis_cut, remat)
    results = function(*jax.tree.unflatten(structure, leaves))
    return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[len(sizes) :]), results)


def over_heads(function: Callable[..., Tree], trees: Sequence[Tree], kv_heads: Cut) -> Tree:
    """Map a function of one head over the query heads of one example.

    First over the key/value heads, some at a time, then over the query heads of their groups, with
    key and value unbatched: query head n reads key head n // G.

    Args:
        function: takes the trees, whose arrays have no axis N or K.
        trees: of one example; the first one has an array of query heads. An axis N of one is shared
            by all heads, and stays.
        kv_heads: how to map over K.

    Returns:
        The results of the function, with the axis N in front.
    """
    trees = tuple(trees)
    num_heads, num_kv_heads = trees[0].query.shape[1], prod(kv_heads)
    groups, leaves, group_axes, head_axes = num_heads // num_kv_heads, [], [], []
    for array, axes in arrays_of(trees):
        axis, group_axis = max(axes.find("N"), axes.find("K")), None
        if axes[axis : axis + 1] == "N" and array.shape[axis] != num_heads:
            axis = -1
        elif axes[axis : axis + 1] == "N" and groups > 1:
            before, after = array.shape[:axis], array.shape[axis + 1 :]
            array, group_axis = array.reshape(*before, num_kv_heads, groups, *after), axis
        leaves.append(array.squeeze(axis) if num_kv_heads == 1 and axis >= 0 else array)
        head_axes.append(None if axis < 0 else axis)
        group_axes.append(group_axis)
    structure = jax.tree.structure(trees)
    if groups > 1:
        function = _map_axis(function, structure, group_axes, Cut(1, 1, groups))
    if num_kv_heads > 1:
        function = _map_axis(function, structure, head_axes, kv_heads)
    results = function(*jax.tree.unflatten(structure, leaves))
    rank = (num_kv_heads > 1) + (groups > 1)
    return jax.tree.map(lambda x: x.reshape(num_heads, *x.shape[rank:]), results)


def with_axes_of_one(tree: Tree) -> Tree:
    """Give the arrays of masks and score functions an axis of one in place of the heads."""

    def restore(array: Array, axes: str) -> Array:
        return array if array.ndim == len(axes) else jnp.expand_dims(array, axes.index("N"))

    parts = [part.name for part in fields(tree) if not {"axes", "static"} & {*part.metadata}]
    return replace(tree, **{name: map_arrays(getattr(tree, name), restore) for name in parts})


def _map_axis(
    function: Callable[..., Tree],
    structure: Any,  # noqa: ANN401 - jax.tree_util.PyTreeDef
    axes: Sequence[int | None],
    cut: Cut,
    remat: bool = False,
) -> Callable[..., Tree]:
    """Map a function over one axis of some arrays, in a loop if it takes more than one step.

    Args:
        function: of trees.
        structure: of all trees.
        axes: which axis of each array; None where it is shared.
        cut: of the axis.
        remat: whether derivatives compute each step again.
    """
    shards, steps, at_once = cut
    if steps == 1:
        in_axes = jax.tree.unflatten(structure, axes)
        mapped = jax.vmap(function, in_axes, axis_size=shards * at_once)
        return jax.checkpoint(mapped, prevent_cse=False) if remat else mapped

    def run(*trees: Tree) -> Tree:
        shared = jax.tree.leaves(trees)
        mapped = {
            number: jnp.moveaxis(shared[number], axis, 0)
            for number, axis in enumerate(axes)
            if axis is not None
        }

        def step(mapped: dict[int, Array]) -> Tree:
            leaves = [mapped.get(number, leaf) for number, leaf in enumerate(shared)]
            return function(*jax.tree.unflatten(structure, leaves))

        # A step of one entry has no axis of one: on a CPU the compiler multiplies matrices without
        # a batch axis faster in the backward pass, since it need not transpose them.
        if at_once > 1:
            step = jax.vmap(step)
        step = jax.checkpoint(step, prevent_cse=False) if remat else step
        lead = (steps, at_once) if at_once > 1 else (steps,)
        if shards == 1:
            return _reshaped(jax.lax.map(step, _reshaped(mapped, 1, lead)), len(lead), (-1,))
        mapped = _reshaped(mapped, 1, (shards, *lead))
        results = jax.vmap(lambda mapped: jax.lax.map(step, mapped))(mapped)
        return _reshaped(results, 1 + len(lead), (-1,))

    return run


def _reshaped(tree: Tree, number: int, sizes: tuple[int, ...]) -> Tree:
    """Return the arrays with other sizes of their first axes, whose number is given."""
    return jax.tree.map(lambda array: array.reshape(*sizes, *array.shape[number:]), tree)


def to_batch(
    array: Array | None, rank: int, batch: Sequence[int], name: str = "array"
) -> Array | None:
    """Give an array all batch axes, or none if several examples share it."""
    if array is None or array.ndim == rank:
        return array
    leading, core = array.shape[: array.ndim - rank], array.shape[array.ndim - rank :]
    check_broadcasts(name, leading, batch)
    if prod(leading) == 1 < prod(batch):
        return array.reshape(core)
    return jnp.broadcast_to(array, (*batch, *core))


def check_broadcasts(name: str, leading: Sequence[int], batch: Sequence[int]) -> None:
    """Check that some leading axes broadcast to the batch axes.

    Raises:
        ValueError: they do not.
    """
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
