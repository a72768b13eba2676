"""Independent rows on several devices."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments.devices import compiled
from experiments.processes import gather_to_host
from experiments.sharding import is_replicated, one_copy, padded_rows

FEWEST_ROWS = 8  # of a device: fewer are not worth the copies of the parameters


def by_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function(parameters, *arrays)` with the rows of its arrays on several devices.

    Parameters that are sharded stay so. Of replicated ones, each device uses its own copy; several
    processes have to call the function with the same arrays.

    Args:
        function: maps parameters and arrays `[B, *]` to arrays `[B, *]`, each row independent of
            the others. Its arrays may be padded with rows of zeros.
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
        results = share(parameters, *(padded_rows(array, mesh.size) for array in arrays))
        return jax.tree.map(lambda array: array[:rows], results)

    independent, whole = compiled(shared), compiled(function)

    def local(parameters: Any, *arrays: Array) -> Any:  # noqa: ANN401 - the same
        mesh = _mesh_of_rows(len(arrays[0]))
        if mesh.size == 1 or jax.process_count() > 1:
            parameters = one_copy(parameters)
        if mesh.size > 1:  # no copy is made where a device has the parameters
            parameters = jax.device_put(parameters, NamedSharding(mesh, PartitionSpec()))
        return independent(parameters, *arrays)

    def run(parameters: Any, *arrays: Array) -> Any:  # noqa: ANN401 - the same
        number = jax.process_count()
        if number > 1:
            arrays = tuple(map(np.asarray, arrays))  # for the devices of all processes
        if not is_replicated(parameters):
            return gather_to_host(whole(parameters, *arrays))
        rows = len(arrays[0])
        if number == 1 or rows < FEWEST_ROWS * number:
            return local(parameters, *arrays)
        parts = (np.split(padded_rows(array, number), number) for array in arrays)
        results = local(parameters, *(part[jax.process_index()] for part in parts))
        results = process_allgather(results, tiled=True)
        return jax.tree.map(lambda array: array[:rows], results)

    return run


def _mesh_of_rows(rows: int) -> Mesh:
    """Return a mesh of the most devices of this process with at least `FEWEST_ROWS` rows each."""
    number = max(1, min(jax.local_device_count(), rows // FEWEST_ROWS))
    return Mesh(np.array(jax.local_devices()[:number]), ("data",))
