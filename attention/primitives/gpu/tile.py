"""What a kernel knows of the pairs of a tile: who may attend to whom, scores, dropped pairs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from attention.primitives.dropout import keep_pairs
from attention.primitives.kernels.layout import Fixed, Layout
from attention.primitives.kernels.tile_mask import cuts, for_tiles
from attention.primitives.masks import Mask
from attention.primitives.scores import Score

Refs = dict[str, Any]


class Side(NamedTuple):
    """The queries or the keys of a tile, as a column or a row that broadcasts to its pairs."""

    indices: Array
    positions: Array
    mask: list[Array]


@dataclass(frozen=True)
class Pairs:
    """Reads the sides of tiles and evaluates on a pair of sides.

    Attributes:
        refs: of the arrays of `layout.fixed_operands` for one example.
        cuts: along what each array of the mask is cut, a tree like the mask.
        layout: the sizes.
        dropout_rate: 0 for no dropout.
        query_axis: the axis of a tile along which the queries lie, 0 or 1.
    """

    refs: Refs
    cuts: Mask | None
    layout: Layout
    dropout_rate: float
    query_axis: int = 0

    @classmethod
    def of(cls, refs: Refs, fixed: Fixed, layout: Layout, query_axis: int = 0) -> "Pairs":
        """For the references of one program."""
        tile_mask = None if fixed.mask is None else cuts(for_tiles(fixed.mask))
        rate = 0.0 if fixed.dropout is None else fixed.dropout.rate
        return cls(refs, tile_mask, layout, rate, query_axis)

    def queries(self, row: Array) -> Side:
        """Those of one tile."""
        return self._side("query_positions", "row", row, self.layout.size.rows, self.query_axis)

    def keys(self, column: Array) -> Side:
        """Those of one tile."""
        size = self.layout.size.columns
        return self._side("key_positions", "column", column, size, 1 - self.query_axis)

    def _side(self, name: str, along: str, tile: Array, size: int, axis: int) -> Side:
        def spread(vector: Array) -> Array:
            return jnp.expand_dims(vector, 1 - axis)

        here = pl.ds(tile * size, size)
        arrays = [
            spread(ref[here])
            for ref, cut in zip(self._mask_refs(), jax.tree.leaves(self.cuts), strict=True)
            if cut == along
        ]
        indices = tile * size + jax.lax.broadcasted_iota(jnp.int32, (size,), 0)
        return Side(spread(indices), spread(self.refs[name][here]), arrays)

    def _mask_refs(self) -> list[Any]:
        return jax.tree.leaves(self.refs.get("mask"))

    def allowed(self, query: Side, key: Side) -> Array:
        """Bool, of the shape of a tile or one that broadcasts to it."""
        allowed = None
        if "mask" in self.refs:
            sides = {"row": iter(query.mask), "column": iter(key.mask)}
            leaves, structure = jax.tree.flatten(self.cuts)
            arrays = [
                ref[0] if cut == "whole" else next(sides[cut])
                for ref, cut in zip(self._mask_refs(), leaves, strict=True)
            ]
            mask = jax.tree.unflatten(structure, arrays)
            allowed = mask(query.positions, key.positions)
        if self.layout.ragged:
            is_key = key.indices < self.layout.num_keys
            allowed = is_key if allowed is None else allowed & is_key
        return jnp.bool_(True) if allowed is None else allowed

    def kept(self, weights: Array, head: Array, query: Side, key: Side) -> Array:
        """The weights times what dropout multiplies them by."""
        if not self.dropout_rate:
            return weights
        words = [self.refs["words"][n] for n in range(self.refs["words"].shape[0])]
        positions = query.positions, key.positions
        factor = keep_pairs(words, self.dropout_rate, head, *positions)
        return weights * factor.astype(weights.dtype)

    def change(
        self, scores: tuple[Score, ...], head: Array, query: Side, key: Side
    ) -> Callable[..., Array]:
        """The function of (products, numbers of the scores for this head) that changes products."""
        structure = jax.tree.structure(scores)

        def change(products: Array, *numbers: Array) -> Array:
            for score in jax.tree.unflatten(structure, numbers):
                products = score(products, query.positions, key.positions, head)
            return products

        return change


def dot(left: Array, right: Array, *, transpose: bool = False) -> Array:
    """The product with the right side or its transpose, summed in float32 and never in TF32."""
    contracted = (1,), (1 if transpose else 0,)
    return jax.lax.dot_general(
        left,
        right,
        (contracted, ((), ())),
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )


LOG2_E = 1.4426950408889634


def exp(exponents: Array) -> Array:
    """By powers of two, which is what a GPU has an instruction for."""
    return jnp.exp2(exponents * LOG2_E)
