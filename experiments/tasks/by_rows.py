"""Independent rows on several devices."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array
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

    def divided(parameters: Any, *arrays: Array) -> Any:  # noqa: ANN401 - any pytrees
        rows, mesh = len(arrays[0]), _mesh_of_rows(len(arrays[0]))
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

    on_devices, whole = compiled(divided), compiled(function)

    def run(parameters: Any, *arrays: Array) -> Any:  # noqa: ANN401 - the same
        if jax.process_count() > 1:
            arrays = tuple(map(np.asarray, arrays))  # for the devices of all processes
        mesh = _mesh_of_rows(len(arrays[0]))
        if mesh.size == 1 or not is_replicated(parameters):
            return gather_to_host(whole(one_copy(parameters), *arrays))
        # No copy is made where a device has the parameters.
        parameters = jax.device_put(parameters, NamedSharding(mesh, PartitionSpec()))
        return gather_to_host(on_devices(parameters, *arrays))

    return run


def _mesh_of_rows(rows: int) -> Mesh:
    """Return a mesh of the most devices with at least `FEWEST_ROWS` rows each.

    Of several processes, it has all devices, or one of this process.
    """
    number = max(1, min(jax.device_count(), rows // FEWEST_ROWS))
    if jax.process_count() > 1 and number < jax.device_count():
        number = 1
    devices = jax.local_devices() if number == 1 else jax.devices()
    return Mesh(np.array(devices[:number]), ("data",))
