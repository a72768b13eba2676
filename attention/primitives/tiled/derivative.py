"""The derivative of attention along a direction, as one sum over tiles."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero

from attention.primitives.tiled.cuts import Output
from attention.primitives.tiled.sweep import tile_sum
from attention.primitives.tiled.tile import (
    Fixed,
    Given,
    einsum,
    keep_in,
    products_in,
    scores_in,
    scores_of,
    split,
    weighted_sum,
)
from attention.primitives.tiled.tiling import Tiling
from attention.primitives.touched import Touched

Tiles = dict[str, Any]


def derivative(
    given: Given,
    direction: Given,
    fixed: Fixed,
    output: Array,
    logsumexp: Array,
    visits: Touched | None,
    cut: Tiling,
    dropout_rate: float,
) -> tuple[Array, Array]:
    """How output and logsumexp move as what is given moves.

    With weights p = exp(s - L), scores s and logsumexp L: dL = Σ p ds, and for the output
    do = Σ p (ds v + dv) - dL o.

    Args:
        given: where.
        direction: where to, with symbolic zeros for what holds still.
        fixed: positions and mask.
        output: `[B, T, K, G, Hv]`.
        logsumexp: `[B, T, K, G]`.
        visits: the tiles that matter.
        cut: the sizes.
        dropout_rate: 0 without dropout.

    Returns:
        The derivatives, `[B, T, K, G, Hv]` and `[B, T, K, G]`.
    """
    moves = jax.tree.map(lambda leaf: None if _is_zero(leaf) else leaf, direction, is_leaf=_is_zero)
    along = {name: along for name, (along, _) in given.cuts().items()}
    dtype = output.dtype

    def weights_in(scores: Array, tiles: Tiles) -> tuple[Array, Array]:
        """The weights of a tile, and what dropout leaves of them."""
        weights = jnp.exp(scores - tiles["logsumexp"][..., None])
        keep = keep_in(split(tiles)[1], dropout_rate)
        return weights, weights if keep is None else keep.astype(dtype) * weights

    def summand(tiles: Tiles, masked: bool) -> dict[str, Array]:
        given, fixed = split(tiles)
        moves = Given(*(tiles[f"d {name}"] for name in Given._fields))
        scores, d_scores = _jvp(lambda given: scores_in(given, fixed, masked), given, moves)
        weights, kept = weights_in(scores, tiles)
        d_output = weighted_sum(kept * d_scores, given.value)
        if moves.value is not None:
            d_output = d_output + weighted_sum(kept, moves.value)
        return {"logsumexp": jnp.sum(weights * d_scores, axis=-1), "output": d_output}

    def transposed(tiles: Tiles, back: dict[str, Array], masked: bool) -> Tiles:
        """What JAX makes of `summand`, in products that need no tile turned around."""
        given, fixed = split(tiles)
        scores, pull = jax.vjp(
            lambda products, scores, biases: scores_of(
                products, given._replace(scores=scores, biases=biases), fixed, masked
            ),
            products_in(given),
            given.scores,
            given.biases,
        )
        weights, kept = weights_in(scores, tiles)
        from_output = einsum("TGV,VS->TGS", back["output"], given.value)
        from_both = weights * back["logsumexp"][..., None] + kept * from_output
        products, scores, biases = pull(from_both)
        found = Given(
            query=einsum("TGS,HS->TGH", products, given.key),
            key=einsum("TGH,TGS->HS", given.query, products),
            value=einsum("TGV,TGS->VS", back["output"], kept),
            scores=scores,
            biases=biases,
        )
        wanted = _where_moving(found, moves)
        return {f"d {name}": getattr(wanted, name) for name in Given._fields}

    operands = {
        **given.cuts(),
        **fixed.cuts(),
        **{f"d {name}": (along[name], getattr(moves, name)) for name in Given._fields},
        "logsumexp": ("row", jnp.where(jnp.isneginf(logsumexp), 0, logsumexp)),
    }
    outputs = {
        "logsumexp": Output("row", logsumexp.shape, dtype),
        "output": Output("row", output.shape, dtype),
    }
    sums = tile_sum(summand, operands, outputs, visits, cut, transposed)
    return sums["output"] - sums["logsumexp"][..., None] * output, sums["logsumexp"]


def _is_zero(leaf: object) -> bool:
    return isinstance(leaf, SymbolicZero)


def _jvp(function: Callable[[Given], Array], given: Given, moves: Given) -> tuple[Array, Array]:
    """`jax.jvp` where some leaves hold still: those for which `moves` has None."""
    leaves, structure = jax.tree.flatten(given)
    directions = structure.flatten_up_to(moves)
    moving = [n for n, direction in enumerate(directions) if direction is not None]

    def of_moving(*moved: Array) -> Array:
        now = list(leaves)
        for n, leaf in zip(moving, moved, strict=True):
            now[n] = leaf
        return function(jax.tree.unflatten(structure, now))

    points = tuple(leaves[n] for n in moving)
    return jax.jvp(of_moving, points, tuple(directions[n] for n in moving))


def _where_moving(tree: Given, moves: Given) -> Given:
    leaves, structure = jax.tree.flatten(tree)
    directions = structure.flatten_up_to(moves)
    pairs = zip(leaves, directions, strict=True)
    return jax.tree.unflatten(structure, [None if move is None else leaf for leaf, move in pairs])
