"""`attend` over a mesh of devices; ring attention along a sharded sequence.

A sequence is sharded over a mesh axis as queries, keys and values of one part of it per device.

Each device keeps its queries. Blocks of keys and values move around the ring of devices; each step
adds one block, in tiles, to the results over the blocks before it, by their logsumexp (Liu et al.
2023). Masks, scores and dropout are functions of positions, which move with the keys. The backward
pass moves keys and values once more, together with their gradients: the derivative that JAX would
derive keeps the blocks of all steps in memory. It has no second derivatives.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from attention.primitives.arguments import Arguments, check_arguments, check_collection
from attention.primitives.attend import attend_by, available_platforms
from attention.primitives.cache import CacheView
from attention.primitives.first_order import first_order
from attention.primitives.layout import Layout, layout_of
from attention.primitives.numerics import score_dtype, share_with_sinks
from attention.primitives.pytree_dataclass import arrays_of, map_arrays
from attention.primitives.sharding import map_shards
from attention.primitives.tiled import Sums, for_all_heads, online_sums, plain_sums, results_of
from attention.primitives.vectorize import Cut, map_axis, varying_alike

Tree = Any
AxisName = str | tuple[str, ...]

# What moves around the ring.
MOVING = ("key", "value", "key_positions", "nonfinite_keys")


@dataclass(frozen=True)
class ShardedAttention:
    """`attend` for arrays that are sharded over a mesh, under `jax.jit`.

    Each device computes its own examples and heads, by the implementation that is chosen for them,
    and skips the tiles that the masks of its examples leave empty. The compiler can shard `attend`
    by itself, but it gathers the inputs of a kernel or refuses it, and it computes all tiles if it
    may shard the batch. If the sequence is sharded, attention is that of `ring_attend`, with
    first-order gradients only. Pass it to a model as `attend`.

    Attributes:
        mesh: of devices; its axes are all Auto or all Explicit.
        spec: sharding of query, key and value `[..., T, N, H]`; H is not sharded.

    >>> import jax
    >>> kinds = (jax.sharding.AxisType.Auto,) * 2
    >>> mesh = jax.make_mesh((1, 1), ("data", "sequence"), axis_types=kinds)
    >>> sharded = ShardedAttention(mesh, PartitionSpec("data", "sequence"))
    >>> query = jax.numpy.ones((2, 8, 4, 16))
    >>> jax.jit(sharded)(query, query, query).shape
    (2, 8, 4, 16)
    """

    mesh: Mesh
    spec: PartitionSpec

    def __call__(
        self,
        query: Array,
        key: Array | CacheView,
        value: Array | None = None,
        *,
        implementation: str | None = None,
        **arguments: Any,  # noqa: ANN401 - those of attend
    ) -> Any:  # noqa: ANN401 - a union would need a check at each call
        """Return what `attend` returns for the same arguments, which are global arrays.

        Raises:
            ValueError: a spec that shards H; sizes that the mesh does not divide; where the
                sequence is sharded, an implementation other than "tiled" and results other than
                "logsumexp" and "largest_score"; and as `attend`.
        """
        checked = check_arguments(query, key, value, **arguments)
        spec = *self.spec, *[None] * (query.ndim - len(self.spec))
        if len(spec) > query.ndim or spec[-1] is not None:
            raise ValueError(
                "spec must shard only the batch axes, T and N of a query [..., T, N, H] of shape "
                f"{query.shape}, got {self.spec}"
            )
        if spec[-3] is None:
            on_device = partial(attend_by, name=implementation)
        elif implementation in (None, "tiled"):
            on_device = partial(_attend_in_ring, axis_name=spec[-3])
        else:
            raise ValueError(
                f"the implementation over a sharded sequence is 'tiled', not {implementation!r}"
            )
        results = map_shards(on_device, checked, self.mesh, spec[:-1], key_axis=spec[-3])
        output = results.pop("output")
        return (output, results) if checked.returning else output


def ring_attend(
    query: Array,
    key: Array,
    value: Array,
    *,
    axis_name: AxisName,
    positions: tuple[Array, Array] | None = None,
    **arguments: Any,  # noqa: ANN401 - those of attend
) -> Any:  # noqa: ANN401 - a union would need a check at each call
    """Attention of the queries of a device to the keys of all devices, inside `jax.shard_map`.

    Args:
        query: `[..., T, N, H]`, of this device.
        key: `[..., S, K, H]`, of this device.
        value: `[..., S, K, Hv]`, of this device.
        axis_name: the mesh axis over which the sequence is sharded.
        positions: global positions of these queries and keys; counted in the order of the devices
            by default.
        arguments: the other arguments of `attend`. Arrays in masks and scores are those of all
            positions, the same on every device of the axis.

    Raises:
        ValueError: a mask or bias that is an array of pairs, results other than "logsumexp" and
            "largest_score", and as `attend`.
    """
    if positions is None:
        device, lengths = jax.lax.axis_index(axis_name), (query.shape[-3], key.shape[-3])
        positions = tuple(device * n + jnp.arange(n, dtype=jnp.int32) for n in lengths)
    checked = check_arguments(query, key, value, positions=positions, **arguments)
    if "NTS" in [axes for _, axes in arrays_of((checked.mask, checked.scores))]:
        raise ValueError(
            "ring_attend takes no array of the pairs of one device: wrap the array of all "
            "positions in masks.from_array or scores.bias_array"
        )
    results = _attend_in_ring(checked, axis_name)
    output = results.pop("output")
    return (output, results) if checked.returning else output


def zigzag_order(length: int, shards: int) -> Array:
    """Return an order of tokens that gives all shards equal parts of a causal mask: int32 `[T]`.

    The sequence is cut into 2 · shards chunks, and shard n gets chunks n and 2 · shards - 1 - n.
    Pass a model `tokens[..., order]` and `positions=order`; `jnp.argsort(order)` is the inverse.

    Raises:
        ValueError: a length that 2 · shards does not divide.

    >>> zigzag_order(8, shards=2).tolist()
    [0, 1, 6, 7, 2, 3, 4, 5]
    """
    if length % (2 * shards):
        raise ValueError(f"zigzag_order needs a length that 2 · {shards} divides, got {length}")
    first, last = jnp.arange(length, dtype=jnp.int32).reshape(2, shards, -1)
    return jnp.stack([first, last[::-1]], axis=1).reshape(-1)


def _attend_in_ring(arguments: Arguments, axis_name: AxisName) -> dict[str, Array]:
    """Return "output" and what `arguments.returning` names, for the queries of a device."""
    check_collection("returning of the ring", arguments.returning, ("logsumexp", "largest_score"))
    whole = replace(arguments, counted=False, sinks=(), returning=())
    leaves, structure = jax.tree.flatten(whole)
    # All arrays vary over the mesh axis, so that JAX sums the gradients of those that do not.
    _, *leaves = varying_alike([jax.lax.axis_index(axis_name), *map(jnp.asarray, leaves)])
    sums = _over_kv_heads(partial(_sums, axis_name), jax.tree.unflatten(structure, leaves))
    results = share_with_sinks(results_of(arguments, sums), arguments.sinks)
    return {name: results[name] for name in ("output", *arguments.returning)}


def _over_kv_heads(function: Callable[[Arguments], Sums], arguments: Arguments) -> Sums:
    """Call a function once for all heads, or in a loop over the few that are computed at once.

    The ring then holds the blocks and gradients of these heads only.
    """
    shards, steps, _ = layout_of(arguments, available_platforms()[0]).kv_heads
    if steps == 1:
        return function(arguments)

    def axis_of(array: Array, axes: str) -> int | None:
        axis, batch = max(axes.find("N"), axes.find("K")), array.ndim - len(axes)
        return None if axis < 0 or array.shape[batch + axis] == 1 else batch + axis

    def split(array: Array, axes: str) -> Array:
        if (axis := axis_of(array, axes)) is None:
            return array
        sizes = shards * steps, array.shape[axis] // (shards * steps)
        return array.reshape(*array.shape[:axis], *sizes, *array.shape[axis + 1 :])

    def merge(array: Array, axes: str) -> Array:
        axis = array.ndim - len(axes) - 1  # heads are the first axis of all sums, after the batch
        return jax.lax.collapse(jnp.moveaxis(array, 0, axis), axis, axis + 2)

    loop = map_axis(function, (map_arrays(arguments, axis_of),), Cut(shards, steps, 1))
    return map_arrays(loop(map_arrays(arguments, split)), merge)


def _sums(axis_name: AxisName, arguments: Arguments) -> Sums:
    """Return the sums of some heads over the keys of all devices, with their own derivative."""
    layout = layout_of(arguments, available_platforms()[0])
    forward, backward = (partial(each, axis_name, layout) for each in (_forward, _backward))
    return first_order("ring", lambda *x: forward(*x)[0], forward, backward, arguments, None)


def _forward(
    axis_name: AxisName, layout: Layout, arguments: Arguments, constants: None
) -> tuple[Sums, Tree]:
    """Return the sums over the keys of all devices, and what `_backward` needs of this pass."""

    def step(carry: tuple[Sums, Tree], number: Array) -> tuple[tuple[Sums, Tree], None]:
        sums, moving = carry
        moving = _to_next(axis_name, moving)
        here = _own_columns(axis_name, replace(arguments, **moving), number)
        return (for_all_heads(online_sums, layout, here, sums), moving), None

    own = for_all_heads(online_sums, layout, _own_columns(axis_name, arguments, jnp.int32(0)))
    moving = {name: getattr(arguments, name) for name in MOVING}
    steps = jnp.arange(1, jax.lax.axis_size(axis_name), dtype=jnp.int32)
    sums = replace(jax.lax.scan(step, (own, moving), steps)[0][0], output=None)
    return sums, (arguments, sums.largest)


def _backward(
    axis_name: AxisName, layout: Layout, residuals: Tree, constants: None, cotangents: Sums
) -> Arguments:
    """Return the gradients of all floating-point arrays, and None in place of the others.

    Those of keys and values move with them, and are back on their device after all steps.
    """
    arguments, largest = residuals

    def floats(tree: Tree) -> Tree:
        return jax.tree.map(lambda x: x if jnp.issubdtype(x.dtype, jnp.floating) else None, tree)

    def zeros(x: Array) -> Array:
        return varying_alike([x, jnp.zeros(x.shape, score_dtype(x))])[1]

    def step(carry: tuple[Tree, Tree], number: Array) -> tuple[tuple[Tree, Tree], None]:
        total, moving = carry

        def block(given: Arguments) -> Sums:
            here = _own_columns(axis_name, given, number)
            return for_all_heads(plain_sums, layout, here, Sums(largest, None, None))

        _, pull = jax.vjp(block, replace(arguments, **moving))
        (more,) = pull(replace(cotangents, largest=None))
        total = jax.tree.map(lambda x, y: x + y.astype(x.dtype), total, floats(more))
        gradients = _to_next(axis_name, {"key": total.key, "value": total.value})
        return (replace(total, **gradients), _to_next(axis_name, moving)), None

    start = jax.tree.map(zeros, floats(arguments))
    moving = {name: getattr(arguments, name) for name in MOVING}
    steps = jnp.arange(jax.lax.axis_size(axis_name), dtype=jnp.int32)
    (total, _), _ = jax.lax.scan(step, (start, moving), steps)
    return jax.tree.map(lambda x, y: x.astype(y.dtype), total, floats(arguments))


def _to_next(axis_name: AxisName, tree: Tree) -> Tree:
    """Send the arrays of each device to the next one."""
    size = jax.lax.axis_size(axis_name)
    return jax.lax.ppermute(tree, axis_name, [(n, (n + 1) % size) for n in range(size)])


def _own_columns(axis_name: AxisName, arguments: Arguments, step: Array) -> Arguments:
    """Cut arrays of pairs, which have columns for all keys, to those of this step.

    These are the keys of the `step`-th device before this one.
    """
    device, num_keys = jax.lax.axis_index(axis_name), arguments.key.shape[-3]
    start = (device - step) % jax.lax.axis_size(axis_name) * num_keys

    def columns(array: Array, axes: str) -> Array:
        if axes != "NTS" or array.shape[-1] == 1:
            return array
        return jax.lax.dynamic_slice_in_dim(array, start, num_keys, axis=-1)

    return map_arrays(arguments, columns)
