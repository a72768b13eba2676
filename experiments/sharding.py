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


def make_mesh(config: MeshPart, rows: int | None = None) -> Mesh:
    """Return the mesh of a config.

    `data=0` takes the devices that are left, at most one for each row of the smallest batch.

    Raises:
        UsageError: a mesh that is larger than the devices, or that `data=0` cannot complete.
    """
    sizes = {name: getattr(config, name) for name in MESH_AXES}
    number, others = jax.device_count(), math.prod(size for size in sizes.values() if size)
    given = ", ".join(f"mesh.{name}={size}" for name, size in sizes.items() if size > 1)
    if others > number or (sizes["data"] == 0 and number % others):
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


def mesh_axes(name: str | None, mesh: AnyMesh) -> tuple[str, ...]:
    """Return the axes of the mesh, of more than one device, that the table has for a name."""
    axes = TABLE.get(name) or ()
    axes = (axes,) if isinstance(axes, str) else axes
    return tuple(axis for axis in axes if mesh.shape[axis] > 1)


def shards_of(name: str | None, mesh: AnyMesh) -> int:
    """Return over how many devices the table shards an axis with this name."""
    return math.prod(mesh.shape[axis] for axis in mesh_axes(name, mesh))


def spec(
    names: Sequence[str | None], shape: Sequence[int], mesh: AnyMesh, what: str
) -> PartitionSpec:
    """Return how the parameter `what` is sharded; a table whose rows do not divide keeps them.

    Raises:
        UsageError: a size that the mesh does not divide.
    """
    axes = _dividing(names, shape, mesh)
    for name, size, axis in zip(names, shape, axes, strict=True):
        if not axis and shards_of(name, mesh) > 1 and size > 1 and name not in LOOKED_UP:
            given = " · ".join(f"mesh.{key}={mesh.shape[key]}" for key in mesh_axes(name, mesh))
            raise UsageError(f"{what}: its axis {name!r} has size {size}, not divisible by {given}")
    return PartitionSpec(*(axis or None for axis in axes))


def shardings(tree: Any, mesh: AnyMesh) -> Any:  # noqa: ANN401 - any pytree
    """Return the sharding of each array of a state, by `spec`; other arrays are replicated.

    Parameters and the moments of an optimizer are `nnx.Variable`s with metadata "axes".
    """

    def sharding_of(path: Any, leaf: Any) -> Any:  # noqa: ANN401 - parts of any pytree
        if not isinstance(leaf, nnx.Variable):
            return NamedSharding(mesh, PartitionSpec())
        what = jax.tree_util.keystr(path, simple=True, separator=".")
        return leaf.replace(NamedSharding(mesh, spec(axis_names(leaf), leaf.shape, mesh, what)))

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
        axes = _dividing(axis_names(leaf), leaf.shape, mesh)
        kept = [tuple(key for key in axis if key != "fsdp") or None for axis in axes]
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

    def attend(*inputs: Array, **arguments: Any) -> Any:  # noqa: ANN401 - as `attention.attend`
        with as_usage_errors():
            return sharded(*inputs, **arguments)

    return {"constrain": partial(constrain, mesh), "attend": attend}


def map_tokens(features: Array) -> tuple[Callable[..., Any], int]:
    """Return how each device computes a function of its own tokens, and their number.

    The function takes the names of the mesh axes that shard the tokens, for `psum`, whole
    parameters, and three local arrays `[b, t, *]`; it returns sums and one such array. Features
    `[B, T, *]` without a mesh are whole.
    """
    mesh, axes = jax.typeof(features).sharding.mesh, []
    if features.ndim == 3 and {*MESH_AXES} <= {*mesh.axis_names}:
        axes = _dividing(("batch", "sequence"), features.shape[:2], mesh)
    names = tuple(key for axis in axes for key in axis)
    number = math.prod(features.shape[:-1]) // math.prod(mesh.shape[name] for name in names)
    if not names:
        return lambda function: partial(function, ()), number
    tokens = PartitionSpec(*(axis or None for axis in axes))

    def on_devices(function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.shard_map(
            partial(function, names),
            mesh=mesh,
            in_specs=(PartitionSpec(), tokens, tokens, tokens),
            out_specs=(PartitionSpec(), tokens),
            axis_names={*names},
            check_vma=False,  # gradients of parameters are those of a device until they are summed
        )

    return on_devices, number


def shard_rows(tree: Tree, mesh: Mesh, *, multiple: int = 1) -> Tree:
    """Shard the rows of arrays `[B, *]`, after rows of zeros until `multiple` parts divide them."""
    number = multiple * shards_of("batch", mesh)
    tree = jax.tree.map(lambda array: padded_rows(array, number), tree)
    if mesh.size == 1:
        return tree
    axes = mesh_axes("batch", mesh) or None
    return jax.tree.map(lambda array: _constrained(array, mesh, axes), tree)


def rows_of_each(batches: Iterable[Tree]) -> Iterator[Rows[Tree]]:
    """Return the rows of each batch of a split, in order."""
    if isinstance(batches, Batches):
        return (batches.rows(number) for number in range(len(batches)))
    return map(_rows_of, batches)


def place_rows(rows: Rows[Tree], mesh: Mesh, *, multiple: int = 1) -> Tree:
    """Read a batch onto the devices, arrays `[B, *]`, each of which takes its rows.

    Each process reads the rows from the first to the last of its own devices, at once. Rows of
    zeros are added as in `shard_rows`.
    """
    number = rows.number + -rows.number % (multiple * shards_of("batch", mesh))
    sharding = NamedSharding(mesh, PartitionSpec(mesh_axes("batch", mesh) or None))
    indices = sharding.addressable_devices_indices_map((number,)).values()
    own = [index.indices(number) for (index,) in indices]
    # A process whose rows are all padding reads one row for the shapes.
    first = min(rows.number - 1, *(start for start, _, _ in own))
    last = max(stop for _, stop, _ in own)

    def place(array: np.ndarray) -> Array:
        padded = padded_rows(array, last - first)

        def shard(index: tuple[slice, ...]) -> np.ndarray:
            start, stop, _ = index[0].indices(number)
            return padded[start - first : stop - first]

        return jax.make_array_from_callback((number, *array.shape[1:]), sharding, shard)

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
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.scan(add, zeros, inputs)[0]


def one_copy(tree: Tree) -> Tree:
    """Return the copy of the first device, if all arrays are replicated; else the arrays."""

    def copy(leaf: Any) -> Any:  # noqa: ANN401 - a leaf of any pytree
        return leaf.addressable_data(0) if isinstance(leaf, Array) else leaf

    return jax.tree.map(copy, tree) if is_replicated(tree) else tree


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
    leaves = jax.tree.leaves(batch)
    chex.assert_equal_shape_prefix(leaves, 1)
    return Rows(len(leaves[0]), lambda part: jax.tree.map(lambda array: array[part], batch))


def _dividing(
    names: Sequence[str | None], shape: Sequence[int], mesh: AnyMesh
) -> list[tuple[str, ...]]:
    """Return the mesh axes of each axis of an array; none where they do not divide its size."""
    return [
        mesh_axes(name, mesh) if size % shards_of(name, mesh) == 0 else ()
        for name, size in zip(names, shape, strict=True)
    ]


def _constrained(array: Array, mesh: Mesh, *axes: tuple[str, ...] | None) -> Array:
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, PartitionSpec(*axes)))


def _is_variable(leaf: object) -> bool:
    return isinstance(leaf, nnx.Variable)
