"""`attend` in tiles, with memory linear in T and S: `tiled_head.py` for all heads and examples.

The functions of one head are lifted by `vmap` and loops. The rules for derivatives are given output
and logsumexp, so that the forward pass is not computed again.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero

from attention.primitives.arguments import Arguments
from attention.primitives.batch import over_batch
from attention.primitives.block_mask import Pattern
from attention.primitives.lift import Plan, lift, one_at_a_time
from attention.primitives.nonfinite import nan_rows
from attention.primitives.pytree_dataclass import replace_leaves
from attention.primitives.softmax import share_with_sinks
from attention.primitives.tile_inputs import Constants, Inputs
from attention.primitives.tile_layout import (
    Head,
    Settings,
    laid_out_by_example,
    layout_of,
    tile_sizes_of,
)
from attention.primitives.tiled_head import Results, all_weights, forward, forward_jvp

Tree = Any


def _lifted_jvp(
    settings: Settings,
    plan: Plan,
    head: Head,
    results: Results,
    tangents: Inputs,
) -> Results:
    """Lift `forward_jvp`: the derivatives of `results`, in which the largest score is constant.

    Args:
        settings: sizes.
        plan: how to lift.
        head: all heads.
        results: of these keys and any others, shaped as in `_attention`.
        tangents: of `head.inputs`, with symbolic zeros.
    """
    tangents = _nonzero(tangents)
    leaves = jax.tree.structure(head.inputs).flatten_up_to(tangents)
    input_axes = plan.axes[: len(leaves)]
    tangent_axes = [axes for axes, x in zip(input_axes, leaves, strict=True) if x is not None]
    output, *logsumexp = results
    derivatives = lift(
        plan,
        partial(forward_jvp, settings),
        (head, plan.axes),
        (output, "BKG"),
        (tuple(logsumexp), ("BKG", "BKG")),
        (tangents, tangent_axes),
        remat=True,
    )
    return *derivatives, jnp.zeros_like(logsumexp[1])


def _nonzero(tangents: Tree) -> Tree:
    """Return tangents with None in place of symbolic zeros."""

    def is_zero(leaf: Any) -> bool:  # noqa: ANN401 - an array or a symbolic zero
        return isinstance(leaf, SymbolicZero) or leaf.dtype == jax.dtypes.float0

    return jax.tree.map(
        lambda leaf: None if is_zero(leaf) else leaf,
        tangents,
        is_leaf=lambda leaf: isinstance(leaf, SymbolicZero),
    )


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def known_results(
    settings: Settings,
    plan: Plan,
    inputs: Inputs,
    fixed: tuple[Constants, Pattern | None],
    results: Results,
) -> Results:
    """Return the results of `_attention` as given; their derivative is that by `inputs`.

    Tangents of `results` are ignored: the results already depend on `inputs`. In a ring they are
    those over the keys of all devices.
    """
    return results


@partial(known_results.defjvp, symbolic_zeros=True)
def _known_results_jvp(
    settings: Settings, plan: Plan, primals: Tree, tangents: Tree
) -> tuple[Results, Results]:
    inputs, fixed, results = primals
    return results, _lifted_jvp(settings, plan, Head(inputs, *fixed), results, tangents[0])


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _attention(
    settings: Settings, plan: Plan, inputs: Inputs, fixed: tuple[Constants, Pattern | None]
) -> Results:
    """Lift `forward`: output `[..., K, G, T, Hv]`, and terms of the logsumexp `[..., K, G, T]`."""
    return lift(plan, partial(forward, settings), (Head(inputs, *fixed), plan.axes))


@partial(_attention.defjvp, symbolic_zeros=True)
def _attention_jvp(
    settings: Settings,
    plan: Plan,
    primals: tuple[Inputs, tuple[Constants, Pattern | None]],
    tangents: tuple[Inputs, tuple[Constants, Pattern | None]],
) -> tuple[Results, Results]:
    inputs, fixed = primals
    results = _attention(settings, plan, inputs, fixed)
    return results, _lifted_jvp(settings, plan, Head(inputs, *fixed), results, tangents[0])


def finish(
    arguments: Arguments, output: Array, logarithm: Array, largest: Array
) -> dict[str, Array]:
    """Convert the results of `_attention` to those of `attend`.

    The gradient of the rows that are NaN is blocked here, and attention sinks are added.
    """
    output, logsumexp = nan_rows(output, logarithm), _without_gradient_of_nan(logarithm) + largest
    results = {
        "output": jnp.swapaxes(_by_head(arguments, output), -2, -3),
        "logsumexp": _by_head(arguments, logsumexp),
        "largest_score": jax.lax.stop_gradient(_by_head(arguments, largest)),
    }
    results = share_with_sinks(results, arguments.sinks)
    return results | {"output": results["output"].astype(arguments.query.dtype)}


def _without_gradient_of_nan(logarithm: Array) -> Array:
    return nan_rows(logarithm[..., None], logarithm)[..., 0]


def _by_head(arguments: Arguments, array: Array) -> Array:
    """Return `[..., N, T, *]` from `[..., K, G, padded T, *]`."""
    rank = len(arguments.batch)
    array = array.reshape(*array.shape[:rank], -1, *array.shape[rank + 2 :])
    return jax.lax.slice_in_dim(array, 0, arguments.query.shape[-3], axis=rank + 1)


def _by_group(arguments: Arguments, rows: Array, length: int) -> Array:
    """Return `[..., K, G, length]` from `[..., N, T]`, padded with zeros."""
    rows = jnp.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, length - rows.shape[-1])])
    return rows.reshape(*arguments.batch, arguments.key.shape[-2], -1, length)


@partial(jax.jit, static_argnums=1, inline=True)
def attend_in_tiles(arguments: Arguments, platform: str = "cpu") -> dict[str, Array]:
    """`attend` with memory linear in T and S: "output" and what `arguments.returning` names.

    Args:
        arguments: with at least one query and one key.
        platform: for the default tile sizes.
    """
    if laid_out_by_example(arguments, platform):
        sizes = tile_sizes_of(arguments, platform)
        return _by_example(platform, replace(arguments, tile_sizes=sizes))[0]
    return _in_tiles(platform, arguments)[0]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _by_example(platform: str, arguments: Arguments) -> tuple[dict[str, Array], Results]:
    """Lift `_in_tiles` over examples that skip their own tiles, in a loop.

    The arrays that are laid out for tiles are then those of one example.
    """
    function = partial(_in_tiles, platform)
    return over_batch(function, (arguments,), (None,), arguments.batch, one_at_a_time)


@partial(_by_example.defjvp, symbolic_zeros=True)
def _by_example_jvp(
    platform: str, primals: tuple[Arguments], tangents: tuple[Arguments]
) -> tuple[Tree, Tree]:
    """Differentiate the loop given its results; else it would compute them again."""
    (arguments,) = primals
    returned, results = _by_example(platform, arguments)
    leaves, structure = jax.tree.flatten(arguments)
    directions = structure.flatten_up_to(_nonzero(tangents[0]))
    varied = [n for n, leaf in enumerate(directions) if leaf is not None]

    def with_known_results(*values: Array) -> tuple[dict[str, Array], Results]:
        operands = replace_leaves(arguments, varied, values), *results
        ranks = None, 4, 3, 3  # the arguments, [K, G, T, Hv], and twice [K, G, T]
        function = partial(_in_tiles, platform)
        return over_batch(function, operands, ranks, arguments.batch, one_at_a_time)

    at, along = [leaves[n] for n in varied], [directions[n] for n in varied]
    return (returned, results), jax.jvp(with_known_results, at, along)[1]


def _in_tiles(
    platform: str, arguments: Arguments, *known: Array
) -> tuple[dict[str, Array], Results]:
    """Return what `attend` returns, and the results of `_attention`, unless they are known."""
    settings, plan, head = layout_of(arguments, platform)
    if known:
        results = known_results(settings, plan, head.inputs, head[1:], known)
    else:
        results = _attention(settings, plan, head.inputs, head[1:])
    returned = finish(arguments, *results)
    if "weights" in arguments.returning:
        rows = _without_gradient_of_nan(results[1]), results[2]
        if arguments.sinks:
            length = settings.tile_sizes[0] * settings.tiles[0]
            before = _by_head(arguments, rows[0] + rows[1])
            added = jnp.where(jnp.isneginf(before), 0, returned["logsumexp"] - before)
            rows = rows[0] + _by_group(arguments, added, length), rows[1]
        function = partial(all_weights, settings)
        weights = lift(plan, function, (head, plan.axes), (rows, ("BKG", "BKG")))
        returned["weights"] = _by_head(arguments, weights)[..., : arguments.key.shape[-3]]
    return returned, results
