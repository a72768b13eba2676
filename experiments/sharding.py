"""Shardings: one table maps the names of axes to axes of a mesh of devices.

The same jitted program runs on every mesh, and the compiler adds the communication (GSPMD). The
names of the axes of parameters are their metadata "axes"; modules name those of activations by
`Context.constrain`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
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


def make_mesh(config: MeshPart, rows: int | None = None) -> Mesh:
    """Return the mesh of a config.

    `data=0` takes the devices that are left, at most one for each row of the smallest batch.

    Raises:
        UsageError: a mesh that is larger than the devices, or that `data=0` cannot complete.
    """
    sizes, number = {name: getattr(config, name) for name in MESH_AXES}, jax.device_count()
    others = math.prod(size or 1 for size in sizes.values())
    if others > number or (sizes["data"] == 0 and number % others):
        given = ", ".join(f"mesh.{name}={size}" for name, size in sizes.items() if size > 1)
        raise UsageError(
            f"a mesh with {given} takes {others} devices or a multiple of them, and the number of "
            f"devices here is {number}: lower one of them, or set mesh.data"
        )
    most = rows // sizes["fsdp"] if rows and jax.process_count() == 1 else number
    sizes["data"] = sizes["data"] or max(1, min(number // others, most))
    if (used := math.prod(sizes.values())) < number and jax.process_count() > 1:
        raise UsageError(
            f"{jax.process_count()} processes use all of their {number} devices, and the mesh "
            f"takes {used}: set mesh.data=0"
        )
    kinds = (AxisType.Auto,) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), kinds, devices=jax.devices()[:used])


def fewest_rows(config: Config) -> int:
    """Return the rows of the smallest batch of training, or of its parts with microbatches."""
    batch, model = config.batch, config.model
    longest = getattr(batch, "row_length", 0) or getattr(model, "max_length", 1)
    rows = batch.size if hasattr(batch, "size") else batch.tokens // longest
    return max(1, rows // batch.microbatches)


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
    return axes if size % _num_shards(axes, mesh) == 0 else ()


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
                raise UsageError(
                    f"{what}: its axis {name!r} has size {size}, not divisible by {given}"
                )
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
    mesh, axes = jax.typeof(features).sharding.mesh, []
    if features.ndim == 3 and {*MESH_AXES} <= {*mesh.axis_names}:
        sizes = zip(("batch", "sequence"), features.shape, strict=False)
        axes = [mesh_axes(name, mesh, size) for name, size in sizes]
    names = tuple(key for axis in axes for key in axis)
    number = math.prod(features.shape[:-1]) // _num_shards(names, mesh)
    if not names:
        return lambda function: partial(function, ()), number
    tokens = PartitionSpec(*(axis or None for axis in axes))

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
    number = multiple * _num_shards(axes, mesh)

    def shard(array: Array) -> Array:
        array = padded_rows(array, number)
        return array if mesh.size == 1 else _constrained(array, mesh, axes or None)

    return jax.tree.map(shard, tree)


def rows_of_each(batches: Iterable[Tree]) -> Iterator[Rows[Tree]]:
    """Return the rows of each batch of a split, in order."""
    if isinstance(batches, Batches):
        return map(batches.rows, range(len(batches)))
    return map(_rows_of, batches)


def place_rows(rows: Rows[Tree], mesh: Mesh, *, multiple: int = 1) -> Tree:
    """Read a batch onto the devices, arrays `[B, *]`, each of which takes its rows.

    Each process reads the rows from the first to the last of its own devices, at once. Rows of
    zeros are added as in `shard_rows`.
    """
    axes = mesh_axes("batch", mesh)
    number = rows.number + -rows.number % (multiple * _num_shards(axes, mesh))
    sharding = NamedSharding(mesh, PartitionSpec(axes or None))
    order = np.arange(number)
    own = [order[index] for index in sharding.addressable_devices_indices_map((number,)).values()]
    # A process whose rows are all padding reads one row for the shapes.
    first, last = min(rows.number - 1, np.min(own)), np.max(own) + 1

    def place(array: np.ndarray) -> Array:
        padded = padded_rows(array, last - first)
        return jax.make_array_from_callback(
            (number, *array.shape[1:]), sharding, lambda index: padded[order[index[0]] - first]
        )

    return jax.tree.map(place, rows.read(slice(first, min(last, rows.number))))


def batch_reader(
    batches: TrainingBatches, mesh: Mesh, *, multiple: int = 1
) -> Callable[[int], tuple[Any, int]]:
    """Return a function: a step -> its batch, by `place_rows`, and the number of its own rows."""
    rows_of = batches.rows if isinstance(batches, Batches) else lambda step: _rows_of(batches[step])

    def read(step: int) -> tuple[Any, int]:
        rows = rows_of(step)
        return place_rows(rows, mesh, multiple=multiple), rows.number

    return read


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

    The function returns arrays that add up, and the key is split into one for each part; a single
    part is the batch as it is.
    """
    batch = shard_rows(batch, mesh, multiple=num_parts)
    if num_parts == 1:
        return function(parameters, batch, rng)

    def compute(part: Any, rng: Array) -> Any:  # noqa: ANN401 - the same
        return function(parameters, shard_rows(part, mesh), rng)

    def add(total: Any, part: tuple[Any, Array]) -> tuple[Any, None]:  # noqa: ANN401 - the same
        return jax.tree.map(jnp.add, total, compute(*part)), None

    parts = jax.tree.map(lambda x: x.reshape(-1, num_parts, *x.shape[1:]).swapaxes(0, 1), batch)
    inputs = parts, jax.random.split(rng, num_parts)
    shapes = jax.eval_shape(compute, *jax.tree.map(lambda array: array[0], inputs))
    zeros = jax.tree.map(jnp.zeros_like, shapes)
    return jax.lax.scan(add, zeros, inputs)[0]


def compiled(
    function: Callable[..., Any],
    *,
    donate: tuple[int, ...] = (),
    **shardings: Any,  # noqa: ANN401 - `in_shardings` and `out_shardings` of jax.jit
) -> Callable[..., Any]:
    """Return a function under `jax.jit` that compiles fast and reuses the memory of `donate`.

    On a CPU, LLVM's first optimisation level makes programs as fast as those of its third, with the
    same bits, in a sixth less time. It is not used if optimisations are turned off, as in tests.
    """
    options = CPU_OPTIONS if jax.default_backend() == "cpu" else None
    if jax.config.read("jax_disable_most_optimizations"):
        options = None
    return jax.jit(function, donate_argnums=donate, compiler_options=options, **shardings)


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
        results = share(parameters, *jax.tree.map(partial(padded_rows, number=mesh.size), arrays))
        return jax.tree.map(lambda array: array[:rows], results)

    on_devices, whole = compiled(divided), compiled(function)

    def run(parameters: Any, *arrays: Array) -> Any:  # noqa: ANN401 - the same
        if jax.process_count() > 1:
            arrays = tuple(map(np.asarray, arrays))  # for the devices of all processes
        mesh, copy = _mesh_of_rows(len(arrays[0])), one_copy(parameters)
        if mesh.size == 1 or copy is parameters:
            return gather_to_host(whole(copy, *arrays))
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


def one_copy(tree: Tree) -> Tree:
    """Return the copy of the first device, if all arrays are replicated; else the same tree."""

    def copy(leaf: Any) -> Any:  # noqa: ANN401 - a leaf of any pytree
        return leaf.addressable_data(0) if isinstance(leaf, Array) else leaf

    leaves = jax.tree.leaves(tree)
    is_replicated = all(getattr(leaf, "is_fully_replicated", True) for leaf in leaves)
    return jax.tree.map(copy, tree) if is_replicated else tree


def gather_to_host(tree: Tree) -> Tree:
    """Gather arrays that are sharded over processes, as NumPy arrays in each of them."""

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


def _num_shards(axes: Sequence[str], mesh: AnyMesh) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)


def _constrained(array: Array, mesh: Mesh, *axes: tuple[str, ...] | None) -> Array:
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, PartitionSpec(*axes)))


def _is_variable(leaf: object) -> bool:
    return isinstance(leaf, nnx.Variable)
