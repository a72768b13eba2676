"""A batch in parts: one after another where there is one device, side by side where there are more.

What the parts add up to depends on their number and not on the devices, so a run of two cores and
one of eight accelerators learn the same, to rounding.
"""

import math
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

PARTS = "parts"


def replicated(tree: Tree, num_parts: int) -> Tree:
    """The same arrays on every device that takes a share of so many parts."""
    return jax.device_put(tree, NamedSharding(_mesh(num_parts), PartitionSpec()))


def on_one_device(tree: Tree) -> Tree:
    """The same arrays on the first device alone, where everything but training runs."""
    return jax.device_put(tree, jax.devices()[0])


def added_up(
    function: Callable[[Any, Any, Array], Any],
    parameters: Any,  # noqa: ANN401 - any pytree
    batch: Any,  # noqa: ANN401 - any pytree
    key: Array,
    num_parts: int,
) -> Any:  # noqa: ANN401 - whatever pytree the function returns
    """The sum of `function(parameters, part, key)` over parts of the rows of a batch.

    Each device takes as many parts, one at a time. Rows of zeros fill the last part up: they are
    padding, which counts nowhere.

    Args:
        function: returns arrays that add up.
        parameters: which every part reads whole.
        batch: arrays `[B, *]`.
        key: of which each part gets its own.
        num_parts: how many; 1 for the batch as it is.
    """
    if num_parts == 1:
        return function(parameters, batch, key)

    def parts(array: Array) -> Array:
        rest = -len(array) % num_parts
        padded = jnp.pad(array, [(0, rest), *[(0, 0)] * (array.ndim - 1)])
        return padded.reshape(num_parts, -1, *array.shape[1:])

    each = jax.tree.map(parts, batch), jax.random.split(key, num_parts)
    mesh = _mesh(num_parts)
    if mesh.size == 1:
        return _one_by_one(function, parameters, each)

    def share(parameters: Any, each: tuple[Any, Array]) -> Any:  # noqa: ANN401 - the same
        return jax.lax.psum(_one_by_one(function, parameters, each), PARTS)

    # Unchecked: checked, every part would wait for the gradients of all the others.
    return jax.shard_map(
        share,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec(PARTS)),
        out_specs=PartitionSpec(),
        check_vma=False,
    )(parameters, each)


def by_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles `function(parameters, *arrays)`, of which devices take equal shares of the rows.

    Args:
        function: of parameters and arrays `[B, *]` to arrays `[B, *]`, each row for itself. Where
            the devices do not divide B, fewer of them work.
    """

    def shared(parameters: Any, *arrays: Array) -> Any:  # noqa: ANN401 - any pytrees
        mesh = _mesh(len(arrays[0]))
        if mesh.size == 1:
            return function(parameters, *arrays)
        rows = PartitionSpec(PARTS)
        return jax.shard_map(
            function,
            mesh=mesh,
            in_specs=(PartitionSpec(), *[rows] * len(arrays)),
            out_specs=rows,
            check_vma=False,
        )(parameters, *arrays)

    program = compiled(shared)
    return lambda parameters, *arrays: program(replicated(parameters, len(arrays[0])), *arrays)


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
    """As many devices as take an equal share of the parts."""
    devices = jax.devices()
    return Mesh(np.array(devices[: math.gcd(num_parts, len(devices))]), (PARTS,))
