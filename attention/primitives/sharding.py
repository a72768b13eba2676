"""Explicitly sharded inputs: each device computes its own examples and heads.

The sharding of an array over Explicit axes of a mesh is part of its type. Attention then runs
inside `jax.shard_map` over the sharded batch axes and heads: nothing is communicated, and each
device skips the tiles of its own examples. No wrapper is needed for Auto axes, for which the
compiler decides the shardings.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
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
    """Call a function for each shard of explicitly sharded batch axes and heads.

    Args:
        function: of the arguments and the name of the implementation.
        arguments: of `attend`, with an Explicit mesh.
        implementation: its name.

    Raises:
        ValueError: a sharding that attention cannot keep without communication.
    """
    mesh, spec = explicit_mesh(arguments), _spec(arguments.query)
    *batch, length, heads, width = spec
    batch = _batch_axes(batch, arguments)
    num_kv_heads, shards = arguments.key.shape[-2], size_of(mesh.shape, heads)
    key_axes = {_spec(array)[-3] for array in (arguments.key, arguments.value)}
    if width is not None or key_axes != {None} or (num_kv_heads % shards and shards % num_kv_heads):
        raise ValueError(
            f"a query sharded as {PartitionSpec(*spec)} for [..., T, N, H] and a key sharded as "
            f"{PartitionSpec(*_spec(arguments.key))} over {dict(mesh.shape)} need communication: "
            f"the width H and the key length S may not be sharded explicitly, and K={num_kv_heads} "
            "must be a multiple or a divisor of the shards; jax.reshard them"
        )
    explicit = {
        name
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind == AxisType.Explicit
    }
    return map_shards(
        lambda arguments: function(arguments, implementation),
        arguments,
        mesh,
        (*batch, length, heads),
        key_axis=None,
        # For an empty set, JAX takes all axes but those that a vmap of the user maps over.
        axis_names=set() if len(explicit) == len(mesh.axis_names) else explicit,
    )


def map_shards(
    function: Callable[[Arguments], dict[str, Array]],
    arguments: Arguments,
    mesh: Mesh | AbstractMesh,
    spec: Sequence[Axis],
    key_axis: Axis,
    axis_names: Collection[str] = (),
) -> dict[str, Array]:
    """Call a function for each shard of the arguments, inside `jax.shard_map`.

    Args:
        function: of the arguments of one shard, to "output" and what `arguments.returning` names.
        arguments: of `attend`.
        mesh: of devices.
        spec: mesh axes of batch axes, T and N: of query and output `[..., T, N, H]`.
        key_axis: mesh axis of S.
        axis_names: as in `jax.shard_map`; axes of the mesh that are Explicit, if any are.
    """
    *batch, query_axis, heads = spec
    if query_axis is not None:  # the positions of a shard do not count from 0
        arguments = replace(arguments, counted=False)
    batch, num_kv_heads, shards = tuple(batch), arguments.key.shape[-2], size_of(mesh.shape, heads)
    if num_kv_heads < shards:  # several devices read the same key/value head
        arguments = _repeat_kv_heads(arguments, shards // num_kv_heads)
    letters = {"T": query_axis, "S": key_axis, "N": heads, "K": heads}
    specs = _specs(arguments, batch, letters)
    specs = jax.tree.leaves(specs, is_leaf=lambda x: isinstance(x, PartitionSpec))
    leaves, structure = jax.tree.flatten(arguments)
    leaves = list(map(jnp.asarray, leaves))
    if AxisType.Explicit in mesh.axis_types:
        leaves = [
            jax.reshard(leaf, NamedSharding(mesh, spec))
            for leaf, spec in zip(leaves, specs, strict=True)
        ]
    names = {name: PartitionSpec(*batch, heads, query_axis) for name in arguments.returning}
    return jax.shard_map(
        lambda *leaves: function(jax.tree.unflatten(structure, leaves)),
        mesh=mesh,
        in_specs=tuple(specs),
        out_specs={"output": PartitionSpec(*batch, query_axis, heads)} | names,
        axis_names=set(axis_names),
    )(*leaves)


def _repeat_kv_heads(arguments: Arguments, times: int) -> Arguments:
    def repeat(array: Array | None, axis: int) -> Array | None:
        if array is None:
            return None
        head = jnp.arange(array.shape[axis] * times) // times
        return jnp.take(array, head, axis=axis, mode="clip")

    return replace(
        arguments,
        key=repeat(arguments.key, -2),
        value=repeat(arguments.value, -2),
        nonfinite_keys=repeat(arguments.nonfinite_keys, -1),
    )


def _spec(array: Array) -> tuple[Axis, ...]:
    return tuple(jax.typeof(array).sharding.spec)


def check_divisible(arguments: Arguments, mesh: Mesh | AbstractMesh, spec: Sequence[Axis]) -> None:
    """Check that a mesh divides the sizes of the arguments of `attend`.

    Args:
        arguments: of all devices.
        mesh: of devices.
        spec: mesh axes of query, key and value `[..., T, N, H]`.

    Raises:
        ValueError: it does not.
    """
    num_keys, num_kv_heads = arguments.key.shape[-3:-1]
    batch = [f"batch axis {n}" for n in range(len(arguments.batch))]
    names = *batch, "query length T", "heads N", "width H", "key length S"
    sizes, axes = (*arguments.query.shape, num_keys), (*spec, spec[-3])
    for name, size, axis in zip(names, sizes, axes, strict=True):
        if size % (shards := size_of(mesh.shape, axis)):
            raise ValueError(f"the {shards} devices of axis {axis!r} do not divide {name}={size}")
    shards = size_of(mesh.shape, spec[-2])
    if num_kv_heads % shards and shards % num_kv_heads:
        raise ValueError(f"K={num_kv_heads} must be a multiple or a divisor of {shards} devices")


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


def size_of(shape: Mapping[str, int], axis: Axis) -> int:
    """Return the number of shards along mesh axes."""
    return prod(shape[name] for name in _names(axis))


def _specs(arguments: Arguments, batch: tuple[Axis, ...], letters: Mapping[str, Axis]) -> Arguments:
    """Return the arguments with the sharding of each array in its place."""

    def spec(array: ArrayLike, axes: str) -> PartitionSpec:
        shape, rank = jnp.shape(array), jnp.ndim(array) - len(axes)
        own = *batch[len(batch) - rank :], *map(letters.get, axes)
        if "T" in axes and "S" in axes:  # an array of pairs: each shard has all keys of its queries
            own = *own[:-1], None
        sharded = zip(own, shape, strict=True)
        return PartitionSpec(*(axis if size > 1 else None for axis, size in sharded))

    return map_arrays(arguments, spec)
