"""Explicitly sharded inputs: each device computes its own examples and heads.

The sharding of an array over Explicit axes of a mesh is part of its type. Attention then runs
inside `jax.shard_map` over the sharded batch axes and heads: nothing is communicated, and each
device skips the tiles of its own examples. No wrapper is needed for Auto axes, for which the
compiler decides the shardings.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from math import prod

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from attention.primitives.arguments import Arguments, explicit_mesh
from attention.primitives.pytree_dataclass import map_arrays

Axis = str | tuple[str, ...] | None


# Under jit because eager arrays of one device cannot be resharded to several.
@partial(jax.jit, static_argnums=(0, 2), inline=True)
def per_shard(
    function: Callable[[Arguments, str | None], dict[str, Array]],
    arguments: Arguments,
    implementation: str | None,
) -> dict[str, Array]:
    """Call `function(arguments, implementation)` for each shard of an Explicit mesh.

    Raises:
        ValueError: a sharding that attention cannot keep without communication.
    """
    mesh, spec = explicit_mesh(arguments), _spec(arguments.query)
    *batch, length, heads, width = spec
    batch = _batch_axes(batch, arguments)
    num_kv_heads, shards = arguments.key.shape[-2], _shards(mesh, heads)
    key_axes = {_spec(array)[-3] for array in (arguments.key, arguments.value)}
    if width is not None or key_axes != {None} or (num_kv_heads % shards and shards % num_kv_heads):
        raise ValueError(
            f"a query sharded as {PartitionSpec(*spec)} for [..., T, N, H] and a key sharded as "
            f"{PartitionSpec(*_spec(arguments.key))} over {dict(mesh.shape)} need communication: "
            f"the width H and the key length S may not be sharded explicitly, and K={num_kv_heads} "
            "must be a multiple or a divisor of the shards; jax.reshard them"
        )
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    explicit = {name for name, kind in kinds.items() if kind == AxisType.Explicit}
    return map_shards(
        lambda arguments: function(arguments, implementation),
        arguments,
        mesh,
        (*batch, length, heads),
        # For an empty set, JAX takes all axes but those that a vmap of the user maps over.
        axis_names=set() if len(explicit) == len(kinds) else explicit,
    )


def map_shards(
    function: Callable[[Arguments], dict[str, Array]],
    arguments: Arguments,
    mesh: Mesh | AbstractMesh,
    spec: Sequence[Axis],
    key_axis: Axis = None,
    axis_names: Collection[str] = (),
) -> dict[str, Array]:
    """Call a function of one shard, inside `jax.shard_map`, for "output" and what it returns.

    Args:
        function: of the arguments of one shard.
        arguments: of `attend`.
        mesh: of devices.
        spec: mesh axes of the batch axes, T and N.
        key_axis: mesh axis of S.
        axis_names: as in `jax.shard_map`; axes of the mesh that are Explicit, if any are.

    Raises:
        ValueError: devices that do not divide an axis.
    """
    *batch, query_axis, heads = spec
    if query_axis is not None:  # the positions of a shard do not count from 0
        arguments = replace(arguments, counted=False)
    num_kv_heads, shards = arguments.key.shape[-2], _shards(mesh, heads)
    if shards % num_kv_heads == 0:  # several devices read the same key/value head
        arguments = _repeat_kv_heads(arguments, shards // num_kv_heads)
    letters = {"T": query_axis, "S": key_axis, "N": heads, "K": heads}

    def spec_of(array: ArrayLike, axes: str) -> PartitionSpec:
        shape, rank = jnp.shape(array), jnp.ndim(array) - len(axes)
        own = *batch[len(batch) - rank :], *map(letters.get, axes)
        if "T" in axes and "S" in axes:  # an array of pairs: each shard has all keys of its queries
            own = *own[:-1], None
        sharded = [axis if size > 1 else None for size, axis in zip(shape, own, strict=True)]
        for size, axis in zip(shape, sharded, strict=True):
            if size % (shards := _shards(mesh, axis)):
                raise ValueError(
                    f"the {shards} devices of mesh axis {axis!r} do not divide an axis of {size} "
                    f"in an array of shape {shape}, whose last axes are {axes}"
                )
        return PartitionSpec(*sharded)

    specs = jax.tree.leaves(
        map_arrays(arguments, spec_of), is_leaf=lambda x: isinstance(x, PartitionSpec)
    )
    leaves, structure = jax.tree.flatten(arguments)
    leaves = list(map(jnp.asarray, leaves))
    if AxisType.Explicit in mesh.axis_types:
        shardings = (NamedSharding(mesh, spec) for spec in specs)
        leaves = list(map(jax.reshard, leaves, shardings))
    names = {name: PartitionSpec(*batch, heads, query_axis) for name in arguments.returning}
    return jax.shard_map(
        lambda *leaves: function(jax.tree.unflatten(structure, leaves)),
        mesh=mesh,
        in_specs=tuple(specs),
        out_specs={"output": PartitionSpec(*batch, query_axis, heads)} | names,
        axis_names=set(axis_names),
    )(*leaves)


def _repeat_kv_heads(arguments: Arguments, times: int) -> Arguments:
    def repeat(array: Array, axes: str) -> Array:
        if "K" not in axes or times == 1:
            return array
        axis = axes.index("K") - len(axes)
        head = jnp.arange(array.shape[axis] * times) // times
        return jnp.take(array, head, axis=axis, mode="clip")

    return map_arrays(arguments, repeat)


def _spec(array: Array) -> tuple[Axis, ...]:
    return tuple(jax.typeof(array).sharding.spec)


def _batch_axes(batch: Sequence[Axis], arguments: Arguments) -> tuple[Axis, ...]:
    """Shard the batch axes that the query replicates as the key or the value shards them."""
    used = {name for axis in _spec(arguments.query) for name in _names(axis)}
    others = _spec(arguments.key), _spec(arguments.value)

    def of_others(number: int) -> Axis:
        axes = (spec[number] for spec in others)
        return next((axis for axis in axes if axis and not used & {*_names(axis)}), None)

    return tuple(of_others(n) if axis is None else axis for n, axis in enumerate(batch))


def _names(axis: Axis) -> tuple[str, ...]:
    return () if axis is None else (axis,) if isinstance(axis, str) else axis


def _shards(mesh: Mesh | AbstractMesh, axis: Axis) -> int:
    """Return the number of shards along an axis of an array."""
    return prod(mesh.shape[name] for name in _names(axis))
