"""Shardings: one table maps the names of axes to axes of a mesh of devices.

The same jitted program runs on every mesh, and the compiler adds the communication (GSPMD). The
names of the axes of parameters are their metadata "axes"; modules name those of activations by
`Context.constrain`.
"""

import math
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from attention.modules.context import axis_names
from attention.primitives.sharded_attention import ShardedAttention
from experiments.config.train import MeshPart
from experiments.data.batches import Rows, TrainingBatches, reads_rows
from experiments.errors import UsageError, as_usage_errors, one_of

Tree = TypeVar("Tree")
MeshAxes = str | tuple[str, ...] | None

# Name of an axis -> axis of the mesh, or several, over which it is sharded; a plugin may change it.
# Axes with other names are not sharded.
TABLE: dict[str, MeshAxes] = {
    "batch": ("data", "fsdp"),
    "sequence": "sequence",
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "hidden": "tensor",
    "vocab": "tensor",
}
MESH_AXES = ("data", "fsdp", "sequence", "tensor")
LOOKED_UP = ("vocab", "positions", "token_types")  # axes of tables with a row for each id


def cores_as_devices(number: int) -> None:
    """Make each core a device of the CPU backend, unless the environment sets their number.

    JAX reads this once, before it computes anything.
    """
    is_set = jax.config.jax_num_cpu_devices > 0
    if not is_set and "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", number)


def make_mesh(config: MeshPart) -> Mesh:
    """Return the mesh of a config; `data=0` is replaced by the number of devices that are left.

    Raises:
        UsageError: a mesh that is larger than the devices, or that `data=0` cannot complete.
    """
    sizes = {name: getattr(config, name) for name in MESH_AXES}
    number, others = jax.device_count(), math.prod(size for size in sizes.values() if size)
    large = {name: size for name, size in sizes.items() if size > 1}
    given = ", ".join(f"mesh.{name}={size}" for name, size in large.items())
    if others > number:
        ones = " ".join(f"--config.mesh.{name}=1" for name in large)
        raise UsageError(
            f"a mesh with {given} takes {others} devices, and the number of devices here is "
            f"{number}: {ones} takes one"
        )
    if sizes["data"] == 0 and number % others:
        raise UsageError(
            f"a mesh with {given} takes a multiple of {others} devices, and the number of devices "
            f"here is {number}: set mesh.data"
        )
    sizes["data"] = sizes["data"] or number // others
    if (used := math.prod(sizes.values())) < number and jax.process_count() > 1:
        raise UsageError(
            f"{jax.process_count()} processes use all of their {number} devices, and the mesh "
            f"takes {used}: set mesh.data=0"
        )
    devices = jax.devices()[: math.prod(sizes.values())]
    kinds = (AxisType.Auto,) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), kinds, devices=devices)


def spec(names: Sequence[str | None], shape: Sequence[int], mesh: Mesh, what: str) -> PartitionSpec:
    """Return how a parameter is sharded.

    The mesh axis "fsdp" shards every parameter: if the table has no axis of the parameter for it,
    along an axis that it divides, the largest of those that are whole. Rows of a lookup table that
    the mesh does not divide are not sharded; training pads them (`padded_tables`).

    Args:
        names: of the axes.
        shape: their sizes.
        mesh: of the devices.
        what: name of the parameter, for errors.

    Raises:
        UsageError: a size that the mesh does not divide, a mesh axis for two axes of the parameter,
            or a table with an unknown mesh axis.
    """
    axes: list[tuple[str, ...]] = []
    for name, size in zip(names, shape, strict=True):
        axis = _axes(name, mesh)
        ways = _ways(axis, mesh)
        if repeated := [each for each in axis if any(each in other for other in axes)]:
            raise UsageError(
                f"{what}: two of its axes {', '.join(map(str, names))} use mesh.{repeated[0]}"
            )
        if size % ways and size > 1 and name not in LOOKED_UP:
            given = " · ".join(f"mesh.{each}={mesh.shape[each]}" for each in axis)
            raise UsageError(f"{what}: its axis {name!r} has size {size}, not divisible by {given}")
        axes.append(axis if size % ways == 0 else ())
    if mesh.shape["fsdp"] > 1 and not any("fsdp" in axis for axis in axes):
        local = [size // _ways(axis, mesh) for size, axis in zip(shape, axes, strict=True)]
        able = [n for n, size in enumerate(local) if size % mesh.shape["fsdp"] == 0]
        able = [n for n in able if names[n] != "layers"]
        if able:
            best = max(able, key=lambda n: (not axes[n], local[n]))
            axes[best] = (*axes[best], "fsdp")
    return PartitionSpec(*(axis or None for axis in axes))


def shardings(tree: Any, mesh: Mesh) -> Any:  # noqa: ANN401 - any pytree
    """Return the sharding of each array of a state; arrays that are no parameters are replicated.

    Args:
        tree: contains `nnx.Variable`s with metadata "axes", as parameters and the moments of an
            optimizer do; arrays may be shapes.
        mesh: of the devices.

    Raises:
        UsageError: as `spec`.
    """

    def of(path: Any, leaf: Any) -> Any:  # noqa: ANN401 - parts of any pytree
        if not isinstance(leaf, nnx.Variable):
            return NamedSharding(mesh, PartitionSpec())
        what = ".".join(str(getattr(key, "key", getattr(key, "name", key))) for key in path)
        return leaf.replace(NamedSharding(mesh, spec(axis_names(leaf), leaf.shape, mesh, what)))

    return jax.tree_util.tree_map_with_path(of, tree, is_leaf=_is_variable)


def padded_shape(
    names: Sequence[str | None], shape: Sequence[int], mesh: Mesh | AbstractMesh
) -> tuple[int, ...]:
    """Return the shape of a parameter; that of a lookup table with rows that the mesh divides.

    Args:
        names: of the axes.
        shape: their sizes.
        mesh: of the devices.
    """
    ways = [shards_of(name, mesh) if name in LOOKED_UP else 1 for name in names]
    return tuple(size + -size % way for size, way in zip(shape, ways, strict=True))


def padded_tables(shapes: Tree, mesh: Mesh | AbstractMesh) -> Tree:
    """Return the shapes of a state in training: those of lookup tables as `padded_shape`.

    So each device stores a part of a vocabulary of any size. The rows that are added are zeros, and
    so are their gradients, moments of the optimizer and updates.

    Args:
        shapes: contains `nnx.Variable`s of shapes with metadata "axes".
        mesh: of the devices.
    """

    def padded(leaf: Any) -> Any:  # noqa: ANN401 - a part of any pytree
        if not _is_variable(leaf):
            return leaf
        shape = padded_shape(axis_names(leaf), leaf.shape, mesh)
        return leaf.replace(jax.ShapeDtypeStruct(shape, leaf.dtype))

    return jax.tree.map(padded, shapes, is_leaf=_is_variable)


def resized(tree: Tree, like: Tree) -> Tree:
    """Cut arrays to the shapes of others, or append zeros; arrays of the same shape are kept.

    Args:
        tree: arrays.
        like: shapes, and shardings, if any, of arrays with another shape.
    """

    def of(array: Array, like: jax.ShapeDtypeStruct) -> Array:
        if array.shape == like.shape:
            return array
        return jax.jit(_resized, static_argnums=1, out_shardings=like.sharding)(array, like.shape)

    return jax.tree.map(of, tree, like)


def constrain(mesh: Mesh, array: Array, names: Sequence[str | None]) -> Array:
    """Shard an activation by the table: a mesh axis is used by the first axis that is mapped to it.

    So "embed" is sharded in parameters, and not in activations, whose batch uses the same devices.

    Args:
        mesh: of the devices.
        array: `[*names]`.
        names: of its axes.
    """
    if mesh.size == 1:
        return array
    axes, used = [], set()
    for name in names:
        free = tuple(axis for axis in _axes(name, mesh) if axis not in used)
        axes.append(free or None)
        used.update(free)
    return _constrained(array, mesh, *axes)


def context_options(mesh: Mesh) -> dict[str, Callable[..., Any]]:
    """Return the fields of a `Context` that shard the activations of a model over a mesh."""
    if mesh.size == 1:
        return {}
    batch, sequence, heads = (_axes(name, mesh) or None for name in ("batch", "sequence", "heads"))
    of_shards = ShardedAttention(mesh, PartitionSpec(batch, sequence, heads))

    def attend(*inputs: Array, **arguments: Any) -> Any:  # noqa: ANN401 - as `attention.attend`
        try:
            return of_shards(*inputs, **arguments)
        except ValueError as error:
            raise UsageError(str(error)) from error

    return {"constrain": partial(constrain, mesh), "attend": attend}


def shards_of(name: str, mesh: Mesh | AbstractMesh) -> int:
    """Return over how many devices the table shards an axis with this name."""
    return _ways(_axes(name, mesh), mesh)


def gather_tables(parameters: Tree, mesh: Mesh) -> Tree:
    """Gather what "fsdp" shards of tables that are looked up by ids, for use in a computation.

    A look-up in a table whose vectors are sharded would have a result that is sharded by vectors,
    which the compiler could shard by rows of the batch only after gathering it.
    """
    if mesh.shape["fsdp"] == 1:
        return parameters

    def gathered(leaf: Any) -> Any:  # noqa: ANN401 - a part of any pytree
        if not _is_variable(leaf) or {*LOOKED_UP}.isdisjoint(axis_names(leaf)):
            return leaf
        axes = [
            tuple(each for each in _axes(name, mesh) if each != "fsdp") for name in axis_names(leaf)
        ]
        sizes = zip(axes, leaf.shape, strict=True)  # evaluation takes tables without padding
        kept = (axis if axis and size % _ways(axis, mesh) == 0 else None for axis, size in sizes)
        return leaf.replace(_constrained(leaf[...], mesh, *kept))

    return jax.tree.map(gathered, parameters, is_leaf=_is_variable)


def shard_rows(tree: Tree, mesh: Mesh, *, multiple: int = 1) -> Tree:
    """Shard the rows of arrays `[B, *]`, after rows of zeros until `multiple` parts divide them."""
    axes = _axes("batch", mesh)
    number = multiple * _ways(axes, mesh)
    tree = jax.tree.map(lambda array: padded_rows(array, number), tree)
    if mesh.size == 1:
        return tree
    return jax.tree.map(lambda array: _constrained(array, mesh, axes or None), tree)


def rows_of_each(batches: Iterable[Tree]) -> Iterator[Rows[Tree]]:
    """Return the rows of each batch of a split, in order.

    Raises:
        UsageError: a batch that is read whole, with arrays of different numbers of rows.
    """
    if reads_rows(batches):
        return (batches.rows(number) for number in range(len(batches)))
    return map(_rows_of, batches)


def place_rows(rows: Rows[Tree], mesh: Mesh, *, multiple: int = 1) -> Tree:
    """Read a batch onto the devices, arrays `[B, *]`, each of which takes its rows.

    Each process reads the rows of its own devices. Rows that follow one another are read at once.

    Args:
        rows: of the batch.
        mesh: of the devices.
        multiple: parts of the batch that are computed one after another, as in `shard_rows`.
    """
    number = rows.number + -rows.number % (multiple * shards_of("batch", mesh))
    sharding = NamedSharding(mesh, PartitionSpec(_axes("batch", mesh) or None))
    indices = sharding.addressable_devices_indices_map((number,)).values()
    own = (index.indices(number) for (index,) in indices)
    # A process whose rows are all padding reads one row for the shapes.
    runs = _merged((min(start, rows.number - 1), stop) for start, stop, _ in own)
    starts = [start for start, _ in runs]
    parts = [rows.read(slice(start, min(stop, rows.number))) for start, stop in runs]

    def place(*arrays: np.ndarray) -> Array:
        padded = [
            padded_rows(array, stop - start)
            for array, (start, stop) in zip(arrays, runs, strict=True)
        ]

        def shard(index: tuple[slice, ...]) -> np.ndarray:
            first, last, _ = index[0].indices(number)
            run = bisect_right(starts, first) - 1
            return padded[run][first - starts[run] : last - starts[run]]

        return jax.make_array_from_callback((number, *arrays[0].shape[1:]), sharding, shard)

    return jax.tree.map(place, *parts)


def batch_reader(
    batches: TrainingBatches, mesh: Mesh, *, multiple: int = 1
) -> Callable[[int], tuple[Any, int]]:
    """Return a function that reads the batch of a training step onto the devices.

    It returns the batch, as `place_rows`, and the number of its own rows, before any padding.

    Args:
        batches: of the training.
        mesh: of the devices.
        multiple: as in `place_rows`.
    """
    rows_of = batches.rows if reads_rows(batches) else lambda step: _rows_of(batches[step])

    def read(step: int) -> tuple[Any, int]:
        rows = rows_of(step)
        return place_rows(rows, mesh, multiple=multiple), rows.number

    return read


def row_shards(features: Array) -> tuple[int, ...]:
    """Return over how many devices the axes B and T of `[B, T, *]` are sharded; () if over one."""
    mesh = jax.typeof(features).sharding.mesh
    if features.ndim != 3 or any(name not in mesh.axis_names for name in MESH_AXES):
        return ()
    names = zip(("batch", "sequence"), features.shape, strict=False)
    shards = tuple(math.gcd(size, shards_of(name, mesh)) for name, size in names)
    return shards if math.prod(shards) > 1 else ()


def accumulated(
    function: Callable[[Any, Any, Array], Any],
    parameters: Any,  # noqa: ANN401 - any pytree
    batch: Any,  # noqa: ANN401 - any pytree
    rng: Array,
    num_parts: int,
    mesh: Mesh,
) -> Any:  # noqa: ANN401 - whatever pytree the function returns
    """Sum `function(parameters, part, rng)` over parts of the rows of a batch, one after another.

    Row r is in part r % num_parts, so that each device has rows of each part. The last rows are
    padded with rows of zeros.

    Args:
        function: returns arrays that add up.
        parameters: of every part.
        batch: arrays `[B, *]`.
        rng: random key, which is split into one for each part.
        num_parts: number of parts; 1 for the batch as it is.
        mesh: of the devices.
    """
    batch = shard_rows(batch, mesh, multiple=num_parts)
    if num_parts == 1:
        return function(parameters, batch, rng)

    def parts(array: Array) -> Array:
        return array.reshape(-1, num_parts, *array.shape[1:]).swapaxes(0, 1)

    def compute(part: Any, rng: Array) -> Any:  # noqa: ANN401 - the same
        return function(parameters, shard_rows(part, mesh), rng)

    def add(total: Any, part: tuple[Any, Array]) -> tuple[Any, None]:  # noqa: ANN401 - the same
        return jax.tree.map(jnp.add, total, compute(*part)), None

    each = jax.tree.map(parts, batch), jax.random.split(rng, num_parts)
    shapes = jax.eval_shape(compute, *jax.tree.map(lambda array: array[0], each))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.scan(add, nothing, each)[0]


def one_copy(tree: Tree) -> Tree:
    """Return the copy of the first device, if all arrays are replicated; else the arrays."""
    if not is_replicated(tree):
        return tree
    return jax.tree.map(
        lambda leaf: leaf.addressable_data(0) if isinstance(leaf, Array) else leaf, tree
    )


def is_replicated(tree: Any) -> bool:  # noqa: ANN401 - any pytree
    """Return whether each device has all arrays."""
    return all(getattr(leaf, "is_fully_replicated", True) for leaf in jax.tree.leaves(tree))


def padded_rows(array: Array, number: int) -> Array:
    """Append rows of zeros until `number` divides the rows."""
    missing = -len(array) % number
    pad = np.pad if isinstance(array, np.ndarray) else jnp.pad
    return pad(array, [(0, missing), *[(0, 0)] * (array.ndim - 1)]) if missing else array


def _rows_of(batch: Tree) -> Rows[Tree]:
    """Return the rows of a whole batch: slices of its arrays."""
    flat, _ = jax.tree.flatten_with_path(batch)
    shapes = {jax.tree_util.keystr(path): np.shape(array) for path, array in flat}
    numbers = {shape[:1] for shape in shapes.values()}
    if len(numbers) != 1 or () in numbers:
        raise UsageError(f"the arrays of a batch must have equally many rows, got shapes {shapes}")
    ((number,),) = numbers
    return Rows(number, lambda part: jax.tree.map(lambda array: array[part], batch))


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges [start, stop) that some ranges cover, in order and not adjacent."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if merged and start <= merged[-1][1]:
            start, last = merged.pop()
            stop = max(stop, last)
        merged.append((start, stop))
    return merged


def _resized(array: Array, shape: tuple[int, ...]) -> Array:
    kept = array[tuple(map(slice, shape))]
    return jnp.pad(kept, [(0, size - own) for size, own in zip(shape, kept.shape, strict=True)])


def _constrained(array: Array, mesh: Mesh, *axes: MeshAxes) -> Array:
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, PartitionSpec(*axes)))


def _axes(name: str | None, mesh: Mesh) -> tuple[str, ...]:
    """Return the axes of the mesh, of more than one device, that the table has for a name."""
    axes = TABLE.get(name) or ()
    axes = (axes,) if isinstance(axes, str) else axes
    for axis in {*axes} - {*mesh.axis_names}:
        with as_usage_errors():
            one_of(f"TABLE[{name!r}]", axis, mesh.axis_names)
    return tuple(axis for axis in axes if mesh.shape[axis] > 1)


def _ways(axes: Sequence[str], mesh: Mesh) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)


def _is_variable(leaf: object) -> bool:
    return isinstance(leaf, nnx.Variable)
