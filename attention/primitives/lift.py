"""From one head to all heads and examples: `vmap`, a few at a time in a loop.

A loop over chunks keeps the tiles that are computed at once in a cache. Each axis is cut into
`[devices, steps, at_once]` and the loop runs over the steps, so that an axis that is sharded over
devices stays sharded: no two axes are merged, and nothing is gathered.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import gcd, prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import AxisType

Tree = Any
Split = tuple[int, int, int]  # devices, steps, at once


@dataclass(frozen=True)
class Plan:
    """How a function of one head is lifted.

    Attributes:
        batch: how each batch axis is cut.
        kv_heads: how K is cut.
        groups: G.
        axes: for each array of a head, its leading axes: "B" means all batch axes, "K" for
            key/value heads, "G" for the query heads of a group.
    """

    batch: tuple[Split, ...]
    kv_heads: Split
    groups: int
    axes: tuple[str, ...]


def split(size: int, at_once: int, devices: int) -> Split:
    """Cut an axis so that it may be sharded over any divisor of `devices`.

    Args:
        size: of the axis.
        at_once: how many entries to compute at once, at most, but at least one per shard.
        devices: over how many the axis may be sharded.
    """
    shards = gcd(size, devices)
    local = size // shards
    largest = min(local, at_once // shards)
    at_once = next((n for n in range(largest, 0, -1) if local % n == 0), 1)
    return shards, local // at_once, at_once


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


def lift(
    plan: Plan,
    function: Callable[..., Tree],
    *operands: tuple[Tree, Sequence[str] | str],
    remat: bool = False,
) -> Tree:
    """Lift a function of one head over groups, key/value heads and batch axes.

    Args:
        plan: the axes.
        function: of trees without leading axes.
        operands: trees with the leading axes of each of their arrays, or of all.
        remat: whether each step of a loop computes its results again for derivatives.

    Returns:
        The results with the axes `[..., K, G]` in front.
    """
    leaves, axes, structures = [], [], []
    for tree, names in operands:
        more, structure = jax.tree.flatten(tree)
        leaves += more
        axes += [names] * len(more) if isinstance(names, str) else names
        structures.append(structure)

    def of_one_head(*leaves: Array) -> Tree:
        leaves = iter(leaves)
        return function(
            *(
                jax.tree.unflatten(structure, [next(leaves) for _ in range(structure.num_leaves)])
                for structure in structures
            )
        )

    def mapped(letter: str) -> list[bool]:
        return [letter in names for names in axes]

    lifted = _mapped(of_one_head, mapped("G"), plan.groups)
    lifted = _in_chunks(lifted, mapped("K"), plan.kv_heads, remat)
    for cut in reversed(plan.batch):
        lifted = _in_chunks(lifted, mapped("B"), cut, remat)
    return lifted(*leaves)


def one_at_a_time(
    function: Callable[..., Tree], in_axes: Sequence[int | None], axis_size: int
) -> Callable[..., Tree]:
    """Map a function as `jax.vmap` does, but in a loop. Derivatives compute each step again.

    Args:
        function: of arrays.
        in_axes: 0 or None for each array.
        axis_size: the number of steps.
    """
    return _in_chunks(function, [axis == 0 for axis in in_axes], (1, axis_size, 1), remat=True)


def _mapped(
    function: Callable[..., Tree], mapped: Sequence[bool], size: int
) -> Callable[..., Tree]:
    """`vmap` over the first axis of some arrays.

    An axis of one is taken away instead: on a CPU the compiler multiplies matrices without a batch
    axis by a third faster in the backward pass, since it need not transpose them.
    """
    if size > 1:
        return jax.vmap(function, in_axes=tuple(0 if x else None for x in mapped), axis_size=size)

    def of_one(*leaves: Array) -> Tree:
        result = function(*(x.squeeze(0) if m else x for x, m in zip(leaves, mapped, strict=True)))
        return jax.tree.map(lambda x: x[None], result)

    return of_one


def _in_chunks(
    function: Callable[..., Tree], mapped: Sequence[bool], cut: Split, remat: bool
) -> Callable[..., Tree]:
    """Map a function over the first axis of some arrays, in a loop over chunks."""
    shards, steps, at_once = cut
    size = shards * at_once
    chunk = _mapped(function, mapped, size)
    if steps == 1:
        return chunk

    def run(*leaves: Array) -> Tree:
        def steps_first(array: Array) -> Array:
            if size == 1:  # The compiler would copy what it moves, even past an axis of one.
                return array
            array = array.reshape(shards, steps, at_once, *array.shape[1:])
            return jnp.moveaxis(array, 1, 0)

        def step(_: None, given: list[Array]) -> tuple[None, Tree]:
            given = iter(given)
            now = (
                next(given).reshape(size, *leaf.shape[1:]) if is_mapped else leaf
                for leaf, is_mapped in zip(leaves, mapped, strict=True)
            )
            return None, chunk(*now)

        step = jax.checkpoint(step, prevent_cse=False) if remat else step
        given = [steps_first(leaf) for leaf, x in zip(leaves, mapped, strict=True) if x]
        _, results = jax.lax.scan(step, None, given, length=steps)

        def back(array: Array) -> Array:
            array = array.reshape(steps, shards, at_once, *array.shape[2:])
            return jnp.moveaxis(array, 0, 1).reshape(-1, *array.shape[3:])

        return jax.tree.map(back, results)

    return run


def over_kv_heads(
    plan: Plan, function: Callable[..., Tree], operands: Tree, axes: Tree, result_axes: Tree
) -> Tree:
    """Call a function for the key/value heads that are computed at once, one ring after another.

    So the buffers that move are those of few heads.

    Args:
        plan: of all heads.
        function: of the plan of some heads, and of operands.
        operands: trees of arrays.
        axes: leading axes of each array.
        result_axes: leading axes of each result; results without "K" are summed.
    """
    shards, steps, at_once = plan.kv_heads
    function = partial(function, replace(plan, kv_heads=(shards, 1, at_once)))
    if steps == 1:
        return function(*operands)
    leaves, structure = jax.tree.flatten(operands)
    is_cut = ["K" in names for names in jax.tree.leaves(axes)]

    def cut(x: Array, names: str) -> Array:  # the axis of steps comes first
        axis = rank_of(plan, "B" if "B" in names else "")
        x = x.reshape(*x.shape[:axis], shards, steps, at_once, *x.shape[axis + 1 :])
        x = jnp.moveaxis(x, axis + 1, 0)
        return x.reshape(*x.shape[: axis + 1], shards * at_once, *x.shape[axis + 3 :])

    def join(x: Array, names: str) -> Array:
        if "K" not in names:
            return x.sum(axis=0)
        axis = rank_of(plan, "B" if "B" in names else "")
        x = x.reshape(*x.shape[: axis + 1], shards, at_once, *x.shape[axis + 2 :])
        x = jnp.moveaxis(x, 0, axis + 1)
        return x.reshape(*x.shape[:axis], shards * steps * at_once, *x.shape[axis + 3 :])

    def of_some(chunk: list[Array]) -> Tree:
        chunk = iter(chunk)
        given = [next(chunk) if cut else x for x, cut in zip(leaves, is_cut, strict=True)]
        return function(*jax.tree.unflatten(structure, given))

    names = jax.tree.leaves(axes)
    chunks = [cut(x, y) for x, y in zip(leaves, names, strict=True) if "K" in y]
    return jax.tree.map(join, jax.lax.map(of_some, chunks), result_axes)


def rank_of(plan: Plan, axes: str) -> int:
    """Return the number of leading axes."""
    return len(axes.replace("B", "")) + ("B" in axes) * len(plan.batch)
