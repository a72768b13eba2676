"""Explicitly sharded inputs: each device computes its own examples and heads.

The sharding of an array over Explicit axes of a mesh is part of its type. Attention then runs
inside `jax.shard_map` over the sharded batch axes and heads: nothing is communicated, and each
device skips the tiles of its own examples. No wrapper is needed for Auto axes, for which the
compiler decides the shardings.
"""

from collections.abc import Callable, Sequence
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
    mesh, num_kv_heads = explicit_mesh(arguments), arguments.key.shape[-2]
    inputs = arguments.query, arguments.key, arguments.value
    query, key, value = (jax.typeof(array).sharding.spec for array in inputs)
    *batch, length, heads, width = query
    is_uneven = num_kv_heads % (shards := _shards(mesh, heads)) and shards % num_kv_heads
    if is_uneven or {width, key[-3], value[-3]} != {None}:
        raise ValueError(
            f"a query sharded as {query} for [..., T, N, H] and a key sharded as {key} over "
            f"{dict(mesh.shape)} need communication: the width H and the key length S may not be "
            f"sharded explicitly, and K={num_kv_heads} must be a multiple or a divisor of the "
            "shards; jax.reshard them"
        )
    # Batch axes that the query replicates are sharded as those of the key or the value.
    used = {*jax.tree.leaves(tuple(query))}
    for number, (axis, *others) in enumerate(zip(batch, key, value, strict=False)):
        unused = (other for other in others if other and used.isdisjoint(jax.tree.leaves(other)))
        batch[number] = axis or next(unused, None)
    function = partial(function, name=implementation)
    return map_shards(function, arguments, mesh, (*batch, length, heads))


def map_shards(
    function: Callable[[Arguments], dict[str, Array]],
    arguments: Arguments,
    mesh: Mesh | AbstractMesh,
    spec: Sequence[Axis],
    key_axis: Axis = None,
) -> dict[str, Array]:
    """Call a function of the arguments of one shard, inside `jax.shard_map`.

    Args:
        function: returns "output" and what `arguments.returning` names.
        arguments: of `attend`.
        mesh: of devices.
        spec: mesh axes of the batch axes, T and N.
        key_axis: mesh axis of S.

    Raises:
        ValueError: devices that do not divide an axis.
    """
    *batch, query_axis, heads = spec
    if query_axis is not None:  # the positions of a shard do not count from 0
        arguments = replace(arguments, counted=False)
    num_kv_heads, shards = arguments.key.shape[-2], _shards(mesh, heads)
    if shards > num_kv_heads and shards % num_kv_heads == 0:  # devices share a key/value head
        arguments = map_arrays(arguments, partial(_repeat_kv_heads, shards // num_kv_heads))
    letters = {"T": query_axis, "S": key_axis, "N": heads, "K": heads}

    def spec_of(array: ArrayLike, axes: str) -> PartitionSpec:
        shape, rank = jnp.shape(array), jnp.ndim(array) - len(axes)
        own = [*batch[len(batch) - rank :], *map(letters.get, axes)]
        if "T" in axes and "S" in axes:  # an array of pairs: each shard has all keys of its queries
            own[-1] = None
        for number, size in enumerate(shape):
            if size == 1 and "h" not in axes:  # shared, as only axes of masks and scores may be
                own[number] = None
            if size % (shards := _shards(mesh, own[number])):
                raise ValueError(
                    f"the {shards} devices of mesh axis {own[number]!r} do not divide an axis of "
                    f"{size} in an array of shape {shape}, whose last axes are {axes}"
                )
        return PartitionSpec(*own)

    specs = map_arrays(arguments, spec_of)
    arguments = jax.tree.map(jnp.asarray, arguments)
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    explicit = {name for name, kind in kinds if kind == AxisType.Explicit}
    if explicit:
        arguments = jax.reshard(arguments, jax.tree.map(partial(NamedSharding, mesh), specs))
    names = {name: PartitionSpec(*batch, heads, query_axis) for name in arguments.returning}
    return jax.shard_map(
        function,
        mesh=mesh,
        in_specs=(specs,),
        out_specs={"output": PartitionSpec(*batch, query_axis, heads)} | names,
        # For an empty set, JAX takes all axes but those that a vmap of the user maps over.
        axis_names=set() if len(explicit) == len(mesh.axis_names) else explicit,
    )(arguments)


def _repeat_kv_heads(times: int, array: Array, axes: str) -> Array:
    if "K" not in axes:
        return array
    axis = axes.index("K") - len(axes)
    head = jnp.arange(array.shape[axis] * times) // times
    return jnp.take(array, head, axis=axis, mode="clip")


def _shards(mesh: Mesh | AbstractMesh, axis: Axis) -> int:
    """Return the number of shards along an axis of an array."""
    return prod(mesh.shape[name] for name in jax.tree.leaves(axis))
