"""Shardings: one table maps the names of axes to axes of a mesh of devices.

The same jitted program runs on every mesh, and the compiler adds the communication (GSPMD). The
names of the axes of parameters are their metadata "axes"; modules name those of activations by
`Context.constrain`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from attention.modules.context import axis_names
from attention.primitives.sharded_attention import ShardedAttention
from experiments.config import Config
from experiments.config.parts import MeshPart
from experiments.data.pipeline import Batches, Rows, TrainingBatches
from experiments.errors import UsageError, as_usage_errors

Tree = TypeVar("Tree")
AnyMesh = Mesh | AbstractMesh

# Name of an axis -> axis of the mesh, or several, over which it is sharded; a plugin may change it.
# Axes with other names are not sharded.
TABLE: dict[str, str | tuple[str, ...] | None] = {
    "batch": ("data", "fsdp"),
    "sequence": "sequence",
    "embed": "fsdp",
    "recurrent": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "hidden": "tensor",
    "vocab": "tensor",
}
MESH_AXES = ("data", "fsdp", "sequence", "tensor")
LOOKED_UP = ("vocab", "positions", "token_types")  # axes of tables with a row for each id
FEWEST_ROWS = 8  # of a device in `by_rows`: fewer are not worth the copies of the parameters
CPU_OPTIONS = {
    "xla_backend_optimization_level": 1,
    # By default, XLA aborts the process if a core waits 40 seconds for the others, as on a busy
    # machine.
    "xla_cpu_collective_call_terminate_timeout_seconds": 24 * 60 * 60,
}


def make_mesh(part: MeshPart, config: Config | None = None) -> Mesh:
    """Return a mesh.

    `data=0` takes the devices that are left, at most one for each row of the smallest batch, or of
    its parts with microbatches, that training has by a config.

    Raises:
        UsageError: a mesh that is larger than the devices, or that `data=0` cannot complete.
    """
    sizes, number = {name: getattr(part, name) for name in MESH_AXES}, jax.device_count()
    others = math.prod(filter(None, sizes.values()))
    if others > number or (sizes["data"] == 0 and number % others):
        given = ", ".join(f"mesh.{name}={size}" for name, size in sizes.items() if size > 1)
        raise UsageError(
            f"a mesh with {given} takes {others} devices or a multiple of them, and the number of "
            f"devices here is {number}: lower one of them, or set mesh.data"
        )
    most, is_alone = number // others, jax.process_count() == 1
    if config and is_alone:
        longest = getattr(config.batch, "row_length", 0) or getattr(config.model, "max_length", 1)
        rows = getattr(config.batch, "size", 0) or config.batch.tokens // longest
        most = min(most, rows // config.batch.microbatches // sizes["fsdp"])
    sizes["data"] = sizes["data"] or max(1, most)
    if (used := math.prod(sizes.values())) < number and not is_alone:
        raise UsageError(
            f"{jax.process_count()} processes use all of their {number} devices, and the mesh "
            f"takes {used}: set mesh.data=0"
        )
    kinds = (AxisType.Auto,) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), kinds, devices=jax.devices()[:used])


def row_report(mesh: Mesh, config: Config, rows: int, padded: int) -> str:
    """Return a sentence about devices without rows, or about padding; empty without either."""
    if padded > rows:
        return f"{mesh.size} devices: batches of {rows} rows are padded to {padded}"
    if config.mesh.data == 0 and mesh.size < jax.device_count():
        return f"{mesh.size} of {jax.device_count()} devices: batches have {rows} rows"
    return ""


def mesh_axes(name: str | None, mesh: AnyMesh, size: int = 0) -> tuple[str, ...]:
    """Return the axes of the mesh, of more than one device, over which an axis is sharded.

    There are none where the table has none for its name, or where they do not divide its size.
    """
    axes = TABLE.get(name) or ()
    axes = (axes,) if isinstance(axes, str) else axes
    axes = tuple(axis for axis in axes if mesh.shape[axis] > 1)
    return axes if size % num_shards(axes, mesh) == 0 else ()


def num_shards(axes: Sequence[str], mesh: AnyMesh) -> int:
    """Return the number of parts of an array that is sharded over some axes of a mesh."""
    return math.prod(map(mesh.shape.__getitem__, axes))


def shardings(tree: Any, mesh: AnyMesh) -> Any:  # noqa: ANN401 - any pytree
    """Return the sharding of each array of a state; others than `nnx.Variable`s are replicated.

    Parameters and the moments of an optimizer are variables with metadata "axes". A table whose
    rows the mesh does not divide keeps them.

    Raises:
        UsageError: another size that the mesh does not divide.
    """

    def sharding_of(path: Any, leaf: Any) -> Any:  # noqa: ANN401 - parts of any pytree
        if not _is_variable(leaf):
            return NamedSharding(mesh, PartitionSpec())
        axes = []
        for name, size in zip(axis_names(leaf), leaf.shape, strict=True):
            axes.append(mesh_axes(name, mesh, size) or None)
            wanted = mesh_axes(name, mesh)
            if wanted and not axes[-1] and size > 1 and name not in LOOKED_UP:
                what = jax.tree_util.keystr(path, simple=True, separator=".")
                given = " · ".join(f"mesh.{axis}={mesh.shape[axis]}" for axis in wanted)
                found = f"its axis {name!r} has size {size}"
                raise UsageError(f"{what}: {found}, not divisible by {given}")
        return leaf.replace(NamedSharding(mesh, PartitionSpec(*axes)))

    return jax.tree_util.tree_map_with_path(sharding_of, tree, is_leaf=_is_variable)


def gather_tables(parameters: Tree, mesh: Mesh) -> Tree:
    """Gather what "fsdp" shards of tables that are looked up by ids, for use in a computation.

    A look-up in a table whose vectors are sharded would have a result that is sharded by vectors,
    which the compiler could shard by rows of the batch only after gathering it.
    """
    if mesh.shape["fsdp"] == 1:
        return parameters

    def gather(leaf: Any) -> Any:  # noqa: ANN401 - a part of any pytree
        if not _is_variable(leaf) or {*LOOKED_UP}.isdisjoint(axis_names(leaf)):
            return leaf
        kept = [
            tuple(axis for axis in mesh_axes(name, mesh, size) if axis != "fsdp") or None
            for name, size in zip(axis_names(leaf), leaf.shape, strict=True)
        ]
        return leaf.replace(_constrained(leaf[...], mesh, *kept))

    return jax.tree.map(gather, parameters, is_leaf=_is_variable)


def constrain(mesh: Mesh, array: Array, names: Sequence[str | None]) -> Array:
    """Shard an activation `[*names]`: a mesh axis is used by the first axis that is mapped to it.

    So "embed" is sharded in parameters, and not in activations, whose batch uses the same devices.
    """
    if mesh.size == 1:
        return array
    axes, used = [], set()
    for name in names:
        free = tuple(axis for axis in mesh_axes(name, mesh) if axis not in used)
        axes.append(free or None)
        used.update(free)
    return _constrained(array, mesh, *axes)


def context_options(mesh: Mesh) -> dict[str, Callable[..., Any]]:
    """Return the fields of a `Context` that shard the activations of a model over a mesh."""
    if mesh.size == 1:
        return {}
    names = ("batch", "sequence", "heads")
    sharded = ShardedAttention(mesh, PartitionSpec(*(mesh_axes(n, mesh) or None for n in names)))
    return {"constrain": partial(constrain, mesh), "attend": as_usage_errors()(sharded)}


def map_tokens(features: Array) -> tuple[Callable[..., Any], int]:
    """Return how each device computes a function of its own tokens, and their number.

    The function takes the names of the mesh axes that shard the tokens, for `psum`, whole
    parameters, and three local arrays `[b, t, *]`; it returns sums and one such array. Features
    `[B, T, *]` without a mesh are whole.
    """
    mesh, batch, sequence = jax.typeof(features).sharding.mesh, (), ()
    if features.ndim == 3 and {*MESH_AXES} <= {*mesh.axis_names}:
        batch = mesh_axes("batch", mesh, features.shape[0])
        sequence = mesh_axes("sequence", mesh, features.shape[1])
    names, tokens = (*batch, *sequence), PartitionSpec(batch or None, sequence or None)
    number = math.prod(features.shape[:-1]) // num_shards(names, mesh)
    if not names:
        return lambda function: partial(function, ()), number
    share = partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(PartitionSpec(), tokens, tokens, tokens),
        out_specs=(PartitionSpec(), tokens),
        axis_names={*names},
        check_vma=False,  # gradients of parameters are those of a device until they are summed
    )
    return lambda function: share(partial(function, names)), number


def shard_rows(tree: Tree, mesh: Mesh, *, multiple: int = 1) -> Tree:
    """Shard the rows of arrays `[B, *]`, after rows of zeros until `multiple` parts divide them."""
    axes = mesh_axes("batch", mesh)
    tree = jax.tree.map(partial(padded_rows, number=multiple * num_shards(axes, mesh)), tree)
    if mesh.size == 1:
        return tree
    return jax.tree.map(lambda array: _constrained(array, mesh, axes or None), tree)


def rows_of_each(batches: Iterable[Tree]) -> Iterator[Rows[Tree]]:
    """Return the rows of each batch of a split, in order."""
    if isinstance(batches, Batches):
        return map(batches.rows, range(len(batches)))
    return map(_rows_of, batches)


def read_batch(batches: TrainingBatches, mesh: Mesh, multiple: int, step: int) -> tuple[Any, int]:
    """Return the batch of a training step, by `place_rows`, and the number of its own rows."""
    rows = batches.rows(step) if isinstance(batches, Batches) else _rows_of(batches[step])
    return place_rows(rows, mesh, multiple=multiple), rows.number


def place_rows(rows: Rows[Tree], mesh: Mesh, *, multiple: int = 1) -> Tree:
    """Read a batch onto the devices, arrays `[B, *]`, each of which takes its rows.

    Each process reads the rows from the first to the last of its own devices, at once. Rows of
    zeros are added as in `shard_rows`.
    """
    axes = mesh_axes("batch", mesh)
    number = rows.number + -rows.number % (multiple * num_shards(axes, mesh))
    sharding = NamedSharding(mesh, PartitionSpec(axes or None))
    indices = sharding.addressable_devices_indices_map((number,)).values()
    own = np.unique([np.arange(number)[index] for index in indices])
    # A process whose rows are all padding reads one row for the shapes.
    first = min(rows.number - 1, own[0])

    def place(array: np.ndarray) -> Array:
        local = padded_rows(array, own[-1] + 1 - first)[own - first]
        shape = (number, *array.shape[1:])
        return jax.make_array_from_process_local_data(sharding, local, shape)

    return jax.tree.map(place, rows.read(slice(first, min(own[-1] + 1, rows.number))))


def accumulated(
    function: Callable[..., Tree], batch: object, rng: Array, parts: int, mesh: Mesh
) -> Tree:
    """Sum `function(part, rng)` over parts of the rows of a batch, one after another.

    Row r is in part r % parts, so that each device has rows of each part; the last rows are padded
    with zeros. The key is split into one for each part, and a single part is the batch as it is.
    """
    batch = shard_rows(batch, mesh, multiple=parts)
    if parts == 1:
        return function(batch, rng)

    def add(total: Tree, part: tuple[Any, Array]) -> tuple[Tree, None]:
        rows, rng = part
        return jax.tree.map(jnp.add, total, function(shard_rows(rows, mesh), rng)), None

    rows = jax.tree.map(lambda x: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1), batch)
    inputs = rows, jax.random.split(rng, parts)
    sums = jax.eval_shape(function, *jax.tree.map(itemgetter(0), inputs))
    return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, sums), inputs)[0]


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:  # noqa: ANN401 - of jax.jit
    """Return a function under `jax.jit` that compiles fast.

    On a CPU, LLVM's first optimisation level makes programs as fast as those of its third, with the
    same bits, in a sixth less time. It is not used if optimisations are turned off, as in tests.
    """
    is_optimized = not jax.config.read("jax_disable_most_optimizations")
    own = CPU_OPTIONS if is_optimized and jax.default_backend() == "cpu" else None
    return jax.jit(function, compiler_options=own, **options)


def by_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function(parameters, *arrays)` with the rows of its arrays on several devices.

    The function maps parameters and arrays `[B, *]`, which may be padded with rows of zeros, to
    arrays `[B, *]`, each row independent of the others. Parameters that are sharded stay so. Of
    replicated ones, each device uses its own copy; several processes call it with the same arrays.
    """

    def divided(mesh: Mesh, parameters: Any, *arrays: Array) -> Any:  # noqa: ANN401 - any pytrees
        share = jax.shard_map(
            function,
            mesh=mesh,
            in_specs=(PartitionSpec(), *[PartitionSpec("data")] * len(arrays)),
            out_specs=PartitionSpec("data"),
            check_vma=False,
        )
        results = share(parameters, *jax.tree.map(partial(padded_rows, number=mesh.size), arrays))
        return jax.tree.map(itemgetter(slice(len(arrays[0]))), results)

    on_devices, whole = compiled(divided, static_argnums=0), compiled(function)

    def run(parameters: Any, *arrays: Array) -> Any:  # noqa: ANN401 - the same
        number, copy = min(jax.device_count(), len(arrays[0]) // FEWEST_ROWS), one_copy(parameters)
        if jax.process_count() > 1:
            arrays = tuple(map(np.asarray, arrays))  # for the devices of all processes
            number = number if number == jax.device_count() else 1  # all, or one of each process
        if number <= 1 or copy is parameters:
            return gather_to_host(whole(copy, *arrays))
        mesh = Mesh(np.array(jax.devices()[:number]), ("data",))
        # No copy is made where a device has the parameters.
        parameters = jax.device_put(parameters, NamedSharding(mesh, PartitionSpec()))
        return gather_to_host(on_devices(mesh, parameters, *arrays))

    return run


def one_copy(tree: Tree) -> Tree:
    """Return the copy of the first device, if all arrays are replicated; else the same tree."""
    leaves, structure = jax.tree.flatten(tree)
    if not all(getattr(leaf, "is_fully_replicated", True) for leaf in leaves):
        return tree
    copies = [leaf.addressable_data(0) if isinstance(leaf, Array) else leaf for leaf in leaves]
    return jax.tree.unflatten(structure, copies)


def gather_to_host(tree: Tree) -> Tree:
    """Gather arrays that are sharded over processes, as NumPy arrays in each of them."""
    if jax.process_count() == 1:
        return tree

    def gather(leaf: Any) -> Any:  # noqa: ANN401 - a leaf of any pytree
        if not isinstance(leaf, Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
            return leaf
        return process_allgather(leaf, tiled=True)

    return jax.tree.map(gather, tree)


def padded_rows(array: Array, number: int) -> Array:
    """Append rows of zeros until `number` divides the rows."""
    missing = -len(array) % number
    pad = np.pad if isinstance(array, np.ndarray) else jnp.pad
    return pad(array, [(0, missing), *[(0, 0)] * (array.ndim - 1)]) if missing else array


def _rows_of(batch: Tree) -> Rows[Tree]:
    """Return the rows of a whole batch: slices of its arrays."""
    leaves = jax.tree.leaves(batch)
    chex.assert_equal_shape_prefix(leaves, 1)
    return Rows(len(leaves[0]), lambda part: jax.tree.map(lambda array: array[part], batch))


def _constrained(array: Array, mesh: Mesh, *axes: tuple[str, ...] | None) -> Array:
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, PartitionSpec(*axes)))


def _is_variable(leaf: object) -> bool:
    return isinstance(leaf, nnx.Variable)
