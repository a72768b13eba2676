"""Ring attention: queries, keys and values sharded along the sequence over a mesh axis.

Each device keeps its queries. Blocks of keys and values move around the ring of devices; each step
adds one block, in tiles, to the results over the blocks before it, by their logsumexp (Liu et al.
2023). Masks, scores and dropout are functions of positions, which move with the keys. The backward
pass moves keys and values once more, together with their gradients: the derivative that JAX would
derive keeps the blocks of all steps in memory.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.arguments import Arguments, check_arguments
from attention.primitives.attend import available_platforms
from attention.primitives.block_mask import Pattern
from attention.primitives.first_order import (
    first_order,
    is_float,
    join_floats,
    split_floats,
)
from attention.primitives.lift import Plan, lift, over_kv_heads, rank_of
from attention.primitives.precision import score_dtype
from attention.primitives.tile_inputs import Inputs
from attention.primitives.tile_layout import Head, Settings, layout_of
from attention.primitives.tiled import finish, known_results
from attention.primitives.tiled_head import Results, forward
from attention.primitives.varying import varying_alike

Tree = Any
AxisName = str | tuple[str, ...]

RETURNING = ("logsumexp", "largest_score")


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
    ring = _Ring(axis_name, jax.lax.axis_size(axis_name))
    whole = replace(arguments, counted=False, block_mask=None, sinks=(), returning=())
    leaves, structure = jax.tree.flatten(whole)
    # All arrays vary over the mesh axis, so that JAX sums the gradients of those that do not.
    _, *leaves = varying_alike([jax.lax.axis_index(axis_name), *map(jnp.asarray, leaves)])
    settings, plan, head = ring.layout(jax.tree.unflatten(structure, leaves), platform)
    axes = _axes(plan, head)
    gradient_axes = jax.tree.map(lambda x, y: y if is_float(x) else None, head.inputs, axes.inputs)
    floats, others = split_floats(head.inputs)

    def run(floats: Inputs, undifferentiated: Tree) -> tuple[Results, Tree]:
        others, fixed = undifferentiated
        head = Head(join_floats(floats, others), *fixed)
        function = partial(_forward, ring, settings)
        results = over_kv_heads(plan, function, (head,), (axes,), ("BKG",) * 3)
        return results, (floats, results)

    def pull(saved: Tree, undifferentiated: Tree, cotangents: Results) -> Inputs:
        (floats, results), (others, fixed) = saved, undifferentiated
        head = Head(join_floats(floats, others), *fixed)
        function = partial(_backward, ring, settings)
        operands = head, results, cotangents
        rows = ("BKG",) * 3
        return over_kv_heads(plan, function, operands, (axes, rows, rows), gradient_axes)

    results = first_order(
        "ring", lambda *given: run(*given)[0], run, pull, floats, (others, head[1:])
    )
    found = finish(arguments, *results)
    return {name: found[name] for name in ("output", *arguments.returning)}


@dataclass(frozen=True)
class _Ring:
    """The devices along a mesh axis; at step n, a device has the keys of the n-th one before it."""

    axis_name: AxisName
    size: int

    def rotate(self, tree: Tree) -> Tree:
        """Send the arrays of each device to the next one."""
        pairs = [(n, (n + 1) % self.size) for n in range(self.size)]
        return jax.lax.ppermute(tree, self.axis_name, pairs)

    def layout(self, arguments: Arguments, platform: str) -> tuple[Settings, Plan, Head]:
        """Return the heads of a device; `_pairs` of them have an axis of steps after "BKG"."""
        device, num_keys = jax.lax.axis_index(self.axis_name), arguments.key.shape[-3]

        def at_step(key_positions: Array, step: Array) -> tuple[Array, Tree]:
            allowed = arguments.allowed
            if allowed is not None and allowed.shape[-1] > 1:
                start = (device - step) % self.size * num_keys
                allowed = jax.lax.dynamic_slice_in_dim(allowed, start, num_keys, axis=-1)
            here = replace(arguments, key_positions=key_positions, allowed=allowed)
            return self.rotate(key_positions), _pairs(layout_of(here, platform)[2])

        steps = jnp.arange(self.size, dtype=jnp.int32)
        _, pairs = jax.lax.scan(at_step, arguments.key_positions, steps)
        if arguments.allowed is not None and arguments.allowed.shape[-1] > 1:
            arguments = replace(arguments, allowed=arguments.allowed[..., :num_keys])
        settings, plan, head = layout_of(arguments, platform)
        axes = _pairs(_axes(plan, head))
        pairs = jax.tree.map(lambda x, y: jnp.moveaxis(x, 0, rank_of(plan, y)), pairs, axes)
        return settings, plan, _with_pairs(head, pairs)

    def at(self, plan: Plan, head: Head, moving: tuple[Array, ...], step: Array) -> Head:
        """Return heads with the keys that are on this device at a step."""

        def index(x: Array, axes: str) -> Array:
            return jax.lax.dynamic_index_in_dim(x, step, rank_of(plan, axes), keepdims=False)

        key, value, key_positions, key_nan = moving
        head = _with_pairs(head, jax.tree.map(index, _pairs(head), _pairs(_axes(plan, head))))
        return head._replace(
            inputs=head.inputs._replace(key=key, value=value),
            constants=head.constants._replace(key_positions=key_positions, key_nan=key_nan),
        )


def _forward(ring: _Ring, settings: Settings, plan: Plan, head: Head) -> Results:
    """Return the results of `tiled_head.forward` over the keys of all devices."""

    def step(carry: tuple[Results, Tree], number: Array) -> tuple[tuple[Results, Tree], None]:
        results, moving = carry
        here = ring.at(plan, head, moving, number)

        def added() -> Results:
            return lift(plan, partial(forward, settings), (here, plan.axes), (results, "BKG"))

        return (unless_empty(here.pattern, added, results), ring.rotate(moving)), None

    rows = head.inputs.query.shape[:-1]
    output = jnp.zeros((*rows, head.inputs.value.shape[-1]), settings.dtype)
    masked = jnp.full(rows, -jnp.inf, settings.dtype)
    _, *start = varying_alike([head.inputs.query, output, masked, masked])
    carry = tuple(start), _moving(head)
    return jax.lax.scan(step, carry, jnp.arange(ring.size, dtype=jnp.int32))[0][0]


def _backward(
    ring: _Ring,
    settings: Settings,
    plan: Plan,
    head: Head,
    results: Results,
    cotangents: Results,
) -> Inputs:
    """Return the gradients of all floating-point inputs.

    Those of keys and values move with them, and are back on their device after all steps.
    """
    floats, others = split_floats(head.inputs)

    def step(carry: tuple[Inputs, Tree], number: Array) -> tuple[tuple[Inputs, Tree], None]:
        total, moving = carry
        here = ring.at(plan, head, moving, number)

        def function(floats: Inputs) -> Results:
            inputs = join_floats(floats, others)
            block = floats.key, floats.value, *moving[2:]
            inputs = ring.at(plan, head._replace(inputs=inputs), block, number).inputs
            return known_results(settings, plan, inputs, here[1:], results)

        def added() -> Inputs:
            block = floats._replace(key=moving[0], value=moving[1])
            (more,) = jax.vjp(function, block)[1](cotangents)
            return jax.tree.map(lambda x, y: x + y.astype(x.dtype), total, more)

        total = unless_empty(here.pattern, added, total)
        total = total._replace(key=ring.rotate(total.key), value=ring.rotate(total.value))
        return (total, ring.rotate(moving)), None

    def zeros(x: Array) -> Array:
        return varying_alike([x, jnp.zeros(x.shape, score_dtype(x))])[1]

    carry = jax.tree.map(zeros, floats), _moving(head)
    (total, _), _ = jax.lax.scan(step, carry, jnp.arange(ring.size, dtype=jnp.int32))
    return jax.tree.map(lambda x, y: x.astype(y.dtype), total, floats)


def unless_empty(pattern: Pattern | None, function: Callable[[], Tree], otherwise: Tree) -> Tree:
    """Call a function, or return `otherwise` if the mask leaves no tile of the block."""
    if pattern is None:
        return function()
    return jax.lax.cond((pattern.stop > pattern.start).any(), function, lambda: otherwise)


def _axes(plan: Plan, head: Head) -> Head:
    """Return the leading axes of each array of heads."""
    return jax.tree.unflatten(jax.tree.structure(head), plan.axes)


def _moving(head: Head) -> tuple[Array, Array, Array, Array]:
    return head.inputs.key, head.inputs.value, head.constants.key_positions, head.constants.key_nan


def _pairs(head: Head) -> Tree:
    """Return what has an entry for pairs of a query and a key, or of their tiles."""
    return head.inputs.biases, head.constants.allowed, head.pattern


def _with_pairs(head: Head, pairs: Tree) -> Head:
    biases, allowed, pattern = pairs
    inputs, constants = (
        head.inputs._replace(biases=biases),
        head.constants._replace(allowed=allowed),
    )
    return Head(inputs, constants, pattern)
