"""Data parallelism: parts of a batch in training, or independent rows, on several devices.

Every device has all parameters. The sum over the parts of a batch depends on their number and not
on the devices, so a run on two cores and one on eight accelerators are equal, to rounding.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments.compilation import compiled

Tree = TypeVar("Tree")

DATA_AXIS = "data"  # the mesh axis over which a batch is split
FEWEST_ROWS = 8  # of a device: fewer are not worth the copies of the parameters


def cores_as_devices(number: int) -> None:
    """Make each core a device of the CPU backend, unless the environment sets their number.

    JAX reads this once, before it computes anything.
    """
    is_set = jax.config.jax_num_cpu_devices > 0
    if not is_set and "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", number)


def replicated(tree: Tree, num_parts: int) -> Tree:
    """Copy arrays to all devices that share `num_parts` parts; leave them in place for one part."""
    if num_parts == 1:
        return tree
    return jax.device_put(tree, NamedSharding(_mesh(num_parts), PartitionSpec()))


def on_one_device(tree: Tree) -> Tree:
    """Copy arrays to the first device."""
    return jax.device_put(tree, jax.devices()[0])


def accumulated(
    function: Callable[[Any, Any, Array], Any],
    parameters: Any,  # noqa: ANN401 - any pytree
    batch: Any,  # noqa: ANN401 - any pytree
    rng: Array,
    num_parts: int,
) -> Any:  # noqa: ANN401 - whatever pytree the function returns
    """Sum `function(parameters, part, rng)` over parts of the rows of a batch.

    Each device computes equally many parts, one at a time. The last part is padded with rows of
    zeros.

    Args:
        function: returns arrays that add up.
        parameters: of every part.
        batch: arrays `[B, *]`.
        rng: random key, which is split into one for each part.
        num_parts: number of parts; 1 for the batch as it is.
    """
    if num_parts == 1:
        return function(parameters, batch, rng)

    def parts(array: Array) -> Array:
        array = padded_rows(array, num_parts)
        return array.reshape(num_parts, -1, *array.shape[1:])

    each = jax.tree.map(parts, batch), jax.random.split(rng, num_parts)
    mesh = _mesh(num_parts)
    if mesh.size == 1:
        return _one_by_one(function, parameters, each)

    def share(parameters: Any, each: tuple[Any, Array]) -> Any:  # noqa: ANN401 - the same
        return jax.lax.psum(_one_by_one(function, parameters, each), DATA_AXIS)

    return _shared(share, mesh, PartitionSpec())(parameters, each)


def by_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function(parameters, *arrays)` with the rows of its arrays on several devices.

    Args:
        function: maps parameters and arrays `[B, *]` to arrays `[B, *]`, each row independent of
            the others. Its arrays may be padded with rows of zeros.
    """

    def shared(parameters: Any, *arrays: Array) -> Any:  # noqa: ANN401 - any pytrees
        rows, mesh = len(arrays[0]), _mesh_of_rows(len(arrays[0]))
        if mesh.size == 1:
            return function(parameters, *arrays)

        def share(parameters: Any, arrays: tuple[Array, ...]) -> Any:  # noqa: ANN401 - the same
            return function(parameters, *arrays)

        filled = tuple(padded_rows(array, mesh.size) for array in arrays)
        found = _shared(share, mesh, PartitionSpec(DATA_AXIS))(parameters, filled)
        return jax.tree.map(lambda array: array[:rows], found)

    program = compiled(shared)

    def run(parameters: Any, *arrays: Array) -> Any:  # noqa: ANN401 - the same
        number = _mesh_of_rows(len(arrays[0])).size
        return program(replicated(on_one_device(parameters), number), *arrays)

    return run


def padded_rows(array: Array, number: int) -> Array:
    """Append rows of zeros until `number` divides the rows."""
    return jnp.pad(array, [(0, -len(array) % number), *[(0, 0)] * (array.ndim - 1)])


def _shared(
    share: Callable[[Any, Any], Any], mesh: Mesh, out: PartitionSpec
) -> Callable[[Any, Any], Any]:
    """Run `share(parameters, arrays)` on each device with its part of the leading axis."""
    return jax.shard_map(
        share,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec(DATA_AXIS)),
        out_specs=out,
        # With the check, JAX would add up the gradients of all devices after each part.
        check_vma=False,
    )


def _one_by_one(
    function: Callable[[Any, Any, Array], Any],
    parameters: Any,  # noqa: ANN401 - any pytree
    each: tuple[Any, Array],
) -> Any:  # noqa: ANN401 - whatever pytree the function returns
    def add(total: Any, part: tuple[Any, Array]) -> tuple[Any, None]:  # noqa: ANN401 - the same
        return jax.tree.map(jnp.add, total, function(parameters, *part)), None

    first = jax.tree.map(lambda array: array[0], each)
    shapes = jax.eval_shape(partial(function, parameters), *first)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.scan(add, nothing, each)[0]


def _mesh(num_parts: int) -> Mesh:
    """Return a mesh of the most devices that can compute equally many parts."""
    devices = jax.devices()
    number = max(n for n in range(1, len(devices) + 1) if num_parts % n == 0)
    return Mesh(np.array(devices[:number]), (DATA_AXIS,))


def _mesh_of_rows(rows: int) -> Mesh:
    """Return a mesh of the most devices with at least `FEWEST_ROWS` rows each."""
    return _mesh(max(1, min(len(jax.devices()), rows // FEWEST_ROWS)))
