"""Ring attention: queries, keys and values sharded along the sequence over a mesh axis.

Each device keeps its queries. Blocks of keys and values move around the ring of devices; each step
computes attention to one block in tiles, and `combine` adds it to the results of the other blocks
by their logsumexp (Liu et al. 2023). Masks, scores and dropout are functions of positions, which
move with the keys. The backward pass moves keys and values once more, together with their
gradients: the derivative that JAX would derive keeps the blocks of all steps in memory.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from attention.primitives.arguments import Arguments, check_arguments
from attention.primitives.attend import available_platforms
from attention.primitives.block_mask import Pattern
from attention.primitives.closures import varying_alike
from attention.primitives.first_order import first_order
from attention.primitives.lift import Plan
from attention.primitives.merge import combine
from attention.primitives.precision import score_dtype
from attention.primitives.sharding import map_shards, size_of
from attention.primitives.tile_layout import Context, Head, Inputs, Settings, layout_of
from attention.primitives.tiled import attention, derivative, finish

Tree = Any
AxisName = str | tuple[str, ...]
Results = tuple[Array, Array, Array]  # as `tiled.attention` returns them

RETURNING = ("logsumexp", "largest_score")
MOVING = ("key", "value", "key_positions", "nonfinite_keys")


@dataclass(frozen=True)
class RingAttention:
    """`attend` for arrays whose sequence is sharded over a mesh axis, under `jax.jit`.

    Results and first-order gradients equal those of `attend`. Keys and values are not gathered:
    each device sends its block to the next one. Pass it to a model as `attend`.

    Attributes:
        mesh: of devices.
        spec: sharding of query, key and value `[..., T, N, H]`; T is sharded and H is not.

    >>> kinds = (jax.sharding.AxisType.Auto,) * 2
    >>> mesh = jax.make_mesh((1, 1), ("data", "sequence"), axis_types=kinds)
    >>> ring = RingAttention(mesh, PartitionSpec("data", "sequence"))
    >>> query = jnp.ones((2, 8, 4, 16))
    >>> jax.jit(ring)(query, query, query).shape
    (2, 8, 4, 16)
    """

    mesh: Mesh
    spec: PartitionSpec

    def __call__(
        self,
        query: Array,
        key: Array,
        value: Array,
        *,
        implementation: str | None = None,
        **arguments: Any,  # noqa: ANN401 - those of attend
    ) -> Array | tuple[Array, dict[str, Array]]:
        """Return what `attend` returns for the same arguments, which are global arrays.

        Raises:
            ValueError: an implementation other than "tiled"; sizes that the mesh does not divide;
                results other than "logsumexp" and "largest_score"; and as `attend`.
        """
        if implementation not in (None, "tiled"):
            raise ValueError(
                f"ring attention has one implementation, 'tiled', not {implementation!r}"
            )
        checked = check_arguments(query, key, value, **arguments)
        spec, platform = self._axes(checked), available_platforms()[0]

        def attend_on_device(shard: Arguments) -> dict[str, Array]:
            return attend_in_ring(shard, spec[-2], platform)

        results = map_shards(attend_on_device, checked, self.mesh, spec)
        output = results.pop("output")
        return (output, results) if checked.returning else output

    def _axes(self, arguments: Arguments) -> tuple[AxisName | None, ...]:
        """Return the mesh axes of batch axes, sequence and heads."""
        query, (num_keys, num_kv_heads, _) = arguments.query.shape, arguments.key.shape[-3:]
        spec = *self.spec, *[None] * (len(query) - len(self.spec))
        if len(spec) > len(query) or spec[-3] is None or spec[-1] is not None:
            raise ValueError(
                f"ring attention shards T and not H of [..., T, N, H], which {self.spec} does not "
                f"for a query of shape {query}"
            )
        batch = [f"batch axis {n}" for n in range(len(arguments.batch))]
        names = *batch, "query length T", "heads N", "", "key length S"
        for name, size, axis in zip(names, (*query, num_keys), (*spec, spec[-3]), strict=True):
            if size % (shards := size_of(self.mesh.shape, axis)):
                raise ValueError(
                    f"the {shards} devices of axis {axis!r} do not divide {name}={size}"
                )
        shards = size_of(self.mesh.shape, spec[-2])
        if num_kv_heads % shards and shards % num_kv_heads:
            raise ValueError(
                f"K={num_kv_heads} must be a multiple or a divisor of {shards} devices"
            )
        return spec[:-1]


def ring_attend(
    query: Array,
    key: Array,
    value: Array,
    *,
    axis_name: AxisName,
    positions: tuple[Array, Array] | None = None,
    **arguments: Any,  # noqa: ANN401 - those of attend
) -> Array | tuple[Array, dict[str, Array]]:
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
        ValueError: a mask that is an array, results other than "logsumexp" and "largest_score", and
            as `attend`.
    """
    if positions is None:
        device, lengths = jax.lax.axis_index(axis_name), (query.shape[-3], key.shape[-3])
        positions = tuple(device * n + jnp.arange(n, dtype=jnp.int32) for n in lengths)
    checked = check_arguments(query, key, value, positions=positions, **arguments)
    if checked.allowed is not None:
        raise ValueError(
            "ring_attend takes masks of attention.masks: wrap the bool array of all positions in "
            "masks.from_array"
        )
    results = attend_in_ring(checked, axis_name, available_platforms()[0])
    output = results.pop("output")
    return (output, results) if checked.returning else output


def zigzag(length: int, shards: int) -> np.ndarray:
    """Return an order of tokens that gives all shards equal parts of a causal mask: int32 `[T]`.

    The sequence is cut into 2 · shards chunks, and shard n gets chunks n and 2 · shards - 1 - n.
    Pass a model `tokens[..., order]` and `positions=order`; `np.argsort(order)` is the inverse.

    Raises:
        ValueError: a length that 2 · shards does not divide.

    >>> zigzag(8, shards=2).tolist()
    [0, 1, 6, 7, 2, 3, 4, 5]
    """
    if length % (2 * shards):
        raise ValueError(f"zigzag needs a length that 2 · {shards} divides, got {length}")
    first, last = np.arange(length, dtype=np.int32).reshape(2, shards, -1)
    return np.stack([first, last[::-1]], axis=1).reshape(-1)


def attend_in_ring(arguments: Arguments, axis_name: AxisName, platform: str) -> dict[str, Array]:
    """Return "output" and what `arguments.returning` names, for the queries of a device.

    Args:
        arguments: of one device, with global positions; a bool array `allowed` has columns for the
            keys of all devices.
        axis_name: as in `ring_attend`.
        platform: for the default tile sizes.
    """
    for name in arguments.returning:
        if name not in RETURNING:
            known = " and ".join(RETURNING)
            raise ValueError(f"ring attention returns {known}, not {name}, which attend returns")
    ring = _Ring(axis_name, jax.lax.axis_size(axis_name), platform)
    whole = replace(arguments, counted=False, block_mask=None, sinks=(), returning=())
    leaves, structure = jax.tree.flatten(whole)
    # All arrays vary over the mesh axis, so that JAX sums the gradients of those that do not.
    _, *leaves = varying_alike([jax.lax.axis_index(axis_name), *map(jnp.asarray, leaves)])
    floats, others = _split(jax.tree.unflatten(structure, leaves))

    def forward(floats: Arguments, others: Arguments) -> tuple[Results, Tree]:
        results = _forward(ring, _join(floats, others))
        return results, (floats, results)

    def backward(saved: Tree, others: Arguments, cotangents: Results) -> Arguments:
        floats, results = saved
        return _backward(ring, _join(floats, others), results[:2], cotangents[:2])

    results = first_order(
        "ring", lambda *given: forward(*given)[0], forward, backward, floats, others
    )
    found = finish(arguments, *results)
    return {name: found[name] for name in ("output", *arguments.returning)}


@dataclass(frozen=True)
class _Ring:
    """The devices along a mesh axis."""

    axis_name: AxisName
    size: int
    platform: str

    def rotate(self, tree: Tree) -> Tree:
        """Send the arrays of each device to the next one."""
        pairs = [(n, (n + 1) % self.size) for n in range(self.size)]
        return jax.lax.ppermute(tree, self.axis_name, pairs)

    def layout(
        self, arguments: Arguments, moving: dict[str, Array], step: Array
    ) -> tuple[Arguments, Settings, Plan, Head]:
        """Return the arguments for the block of keys that is here at a step, and its tiles."""
        allowed, num_keys = arguments.allowed, arguments.key.shape[-3]
        if allowed is not None and allowed.shape[-1] > 1:
            owner = (jax.lax.axis_index(self.axis_name) - step) % self.size
            allowed = jax.lax.dynamic_slice_in_dim(allowed, owner * num_keys, num_keys, axis=-1)
        here = replace(arguments, allowed=allowed, **moving)
        return here, *layout_of(here, self.platform)


def _forward(ring: _Ring, arguments: Arguments) -> Results:
    """Return output, logsumexp and largest score over the keys of all devices."""

    def step(carry: tuple[Results, Tree], number: Array) -> tuple[tuple[Results, Tree], None]:
        results, moving = carry
        _, settings, plan, head = ring.layout(arguments, moving, number)

        def combined() -> Results:
            output, logsumexp, largest = attention(settings, plan, head.inputs, head[1:])
            both = combine((results[0], output), (results[1], logsumexp))
            return *both, jnp.maximum(results[2], largest)

        return (_unless_empty(head.pattern, combined, results), ring.rotate(moving)), None

    def of_one_block() -> Results:
        settings, plan, head = layout_of(arguments, ring.platform)
        return attention(settings, plan, head.inputs, head[1:])

    moving = {name: getattr(arguments, name) for name in MOVING}
    shapes = jax.eval_shape(of_one_block)
    fill = 0, -jnp.inf, -jnp.inf
    empty = [jnp.full(x.shape, y, x.dtype) for x, y in zip(shapes, fill, strict=True)]
    _, *empty = varying_alike([arguments.query, *empty])
    (results, _), _ = jax.lax.scan(step, (tuple(empty), moving), jnp.arange(ring.size))
    return results


def _backward(
    ring: _Ring, arguments: Arguments, results: tuple[Array, Array], cotangents: tuple[Array, Array]
) -> Arguments:
    """Return the gradients of all floating-point arrays of the arguments.

    Those of keys and values move with their block, and are back on their device after all steps.
    """

    def step(carry: tuple[Arguments, Tree], number: Array) -> tuple[tuple[Arguments, Tree], None]:
        total, moving = carry
        here, settings, plan, head = ring.layout(arguments, moving, number)
        given, fixed = _split(here)
        constant = _split(head.inputs)[1]

        def inputs_of(given: Arguments) -> Inputs:
            return _split(layout_of(_join(given, fixed), ring.platform)[2].inputs)[0]

        inputs, to_arguments = jax.vjp(inputs_of, given)

        def gradient() -> Inputs:
            def function(inputs: Inputs) -> tuple[Array, Array]:
                return _results_by_block(settings, plan, _join(inputs, constant), head[1:], results)

            return jax.vjp(function, inputs)[1](cotangents)[0]

        (more,) = to_arguments(_unless_empty(head.pattern, gradient, _zeros_like(inputs)))
        total = jax.tree.map(lambda x, y: x + y.astype(x.dtype), total, more)
        total = replace(total, key=ring.rotate(total.key), value=ring.rotate(total.value))
        return (total, ring.rotate(moving)), None

    floats = _split(arguments)[0]
    moving = {name: getattr(arguments, name) for name in MOVING}
    wide = jax.tree.map(lambda x: x.astype(score_dtype(x)), floats)
    start = _zeros_like(wide), moving
    (total, _), _ = jax.lax.scan(step, start, jnp.arange(ring.size))
    return jax.tree.map(lambda x, y: x.astype(y.dtype), total, floats)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _results_by_block(
    settings: Settings,
    plan: Plan,
    inputs: Inputs,
    fixed: tuple[Context, Pattern | None],
    results: tuple[Array, Array],
) -> tuple[Array, Array]:
    """Return output and logsumexp of all blocks, to differentiate them by the inputs of one."""
    return results


@partial(_results_by_block.defjvp, symbolic_zeros=True)
def _results_by_block_jvp(
    settings: Settings, plan: Plan, primals: Tree, tangents: Tree
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    inputs, fixed, results = primals
    return results, derivative(settings, plan, Head(inputs, *fixed), *results, tangents[0])


def _unless_empty(pattern: Pattern | None, function: Callable[[], Tree], otherwise: Tree) -> Tree:
    """Call a function, or return `otherwise` if the mask leaves no tile of the block."""
    if pattern is None:
        return function()
    return jax.lax.cond((pattern.stop > pattern.start).any(), function, lambda: otherwise)


def _zeros_like(tree: Tree) -> Tree:
    """Return zeros that vary over the same mesh axes."""
    return jax.tree.map(lambda x: varying_alike([x, jnp.zeros(x.shape, x.dtype)])[1], tree)


def _split(tree: Tree) -> tuple[Tree, Tree]:
    """Return the floating-point arrays of a tree, and the others; None in place of the rest."""

    def is_float(x: Array) -> bool:
        return jnp.issubdtype(x.dtype, jnp.floating)

    return (
        jax.tree.map(lambda x: x if is_float(x) else None, tree),
        jax.tree.map(lambda x: None if is_float(x) else x, tree),
    )


def _join(floats: Tree, others: Tree) -> Tree:
    """Return the tree that `_split` split."""
    return jax.tree.map(
        lambda x, y: y if x is None else x, floats, others, is_leaf=lambda x: x is None
    )
