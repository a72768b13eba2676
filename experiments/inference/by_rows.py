"""Independent rows on several devices."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments.compilation import compiled
from experiments.processes import gather_to_host
from experiments.sharding import is_replicated, one_copy, padded_rows

FEWEST_ROWS = 8  # of a device: fewer are not worth the copies of the parameters


def by_rows(function: Callable[..., Any], jit: Callable[..., Any] = compiled) -> Callable[..., Any]:
    """Compile `function(parameters, *arrays)` with the rows of its arrays on several devices.

    Parameters that are sharded stay so. Of replicated ones, each device uses its own copy; several
    processes have to call the function with the same arrays.

    Args:
        function: maps parameters and arrays `[B, *]` to arrays `[B, *]`, each row independent of
            the others. Its arrays may be padded with rows of zeros.
        jit: compiles a function.
    """

    def shared(parameters: Any, *arrays: Array) -> Any:  # noqa: ANN401 - any pytrees
        rows, mesh = len(arrays[0]), _mesh_of_rows(len(arrays[0]))
        if mesh.size == 1:
            return function(parameters, *arrays)
        spec = PartitionSpec("data")
        share = jax.shard_map(
            function,
            mesh=mesh,
            in_specs=(PartitionSpec(), *[spec] * len(arrays)),
            out_specs=spec,
            check_vma=False,
        )
        found = share(parameters, *(padded_rows(array, mesh.size) for array in arrays))
        return jax.tree.map(lambda array: array[:rows], found)

    independent, whole = jit(shared), jit(function)

    def local(parameters: Any, *arrays: Array) -> Any:  # noqa: ANN401 - the same
        mesh = _mesh_of_rows(len(arrays[0]))
        if mesh.size == 1:
            return independent(one_copy(parameters), *arrays)
        return independent(replicas(parameters, mesh), *arrays)

    def run(parameters: Any, *arrays: Array) -> Any:  # noqa: ANN401 - the same
        compute = local if is_replicated(parameters) else whole
        if jax.process_count() == 1:
            return compute(parameters, *arrays)
        arrays = [np.asarray(array) for array in arrays]  # for the devices of all processes
        if compute is whole:
            return gather_to_host(whole(parameters, *arrays))
        return _of_all_processes(partial(local, parameters), arrays)

    return run


def replicas(parameters: Any, mesh: Mesh) -> Any:  # noqa: ANN401 - any pytree
    """Replicate parameters over devices of this process, without a copy where a replica exists."""
    sharding, devices = NamedSharding(mesh, PartitionSpec()), [*mesh.devices.flat]

    def replicate(leaf: Any) -> Array:  # noqa: ANN401 - an array of the host or of devices
        if not isinstance(leaf, Array):
            return jax.device_put(leaf, sharding)
        copies = {shard.device: shard.data for shard in leaf.addressable_shards}
        copy = leaf.addressable_data(0)
        parts = [copies[each] if each in copies else jax.device_put(copy, each) for each in devices]
        return jax.make_array_from_single_device_arrays(leaf.shape, sharding, parts)

    return jax.tree.map(replicate, parameters)


def _of_all_processes(function: Callable[..., Any], arrays: Sequence[np.ndarray]) -> Any:  # noqa: ANN401 - any pytree
    """Compute some rows in each process, and return those of all processes to each."""
    rows, number = len(arrays[0]), jax.process_count()
    if rows < FEWEST_ROWS * number:
        return function(*arrays)
    parts = (np.split(padded_rows(array, number), number) for array in arrays)
    found = process_allgather(function(*(part[jax.process_index()] for part in parts)), tiled=True)
    return jax.tree.map(lambda array: array[:rows], found)


def _mesh_of_rows(rows: int) -> Mesh:
    """Return a mesh of the most devices of this process with at least `FEWEST_ROWS` rows each."""
    number = max(1, min(jax.local_device_count(), rows // FEWEST_ROWS))
    return Mesh(np.array(jax.local_devices()[:number]), ("data",))
