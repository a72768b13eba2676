"""Functions of one tile inside a kernel: mask, score functions, dropout, products."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from attention.primitives.dropout import keep_pairs
from attention.primitives.gpu.inputs import Layout
from attention.primitives.gpu.tile_mask import mask_axes
from attention.primitives.masks import Mask
from attention.primitives.scores import Score

Refs = dict[str, Any]


class Tokens(NamedTuple):
    """The queries or the keys of a tile, as a column or a row that broadcasts to the tile."""

    indices: Array
    positions: Array
    mask: list[Array]


@dataclass(frozen=True)
class TileFunctions:
    """Mask, score functions and dropout of a tile, from the operands of one example.

    Attributes:
        refs: references to the operands.
        layout: the sizes.
        query_axis: the axis of a tile along which the queries lie, 0 or 1.
    """

    refs: Refs
    layout: Layout
    query_axis: int = 0

    @property
    def mask_axes(self) -> Mask | None:
        """The mask with the axis of each array instead of the array, None if there is no mask."""
        return mask_axes(self.refs["mask"]) if "mask" in self.refs else None

    def queries(self, row: Array) -> Tokens:
        """Return the queries of one tile."""
        return self._tokens("query_positions", "row", row, self.layout.size.rows, self.query_axis)

    def keys(self, column: Array) -> Tokens:
        """Return the keys of one tile."""
        size = self.layout.size.columns
        return self._tokens("key_positions", "column", column, size, 1 - self.query_axis)

    def _tokens(self, name: str, along: str, tile: Array, size: int, axis: int) -> Tokens:
        def expand(vector: Array) -> Array:
            return jnp.expand_dims(vector, 1 - axis)

        here, mask = pl.ds(tile * size, size), (self.refs.get("mask"), self.mask_axes)
        arrays = [
            expand(ref[here])
            for ref, mask_axis in zip(*map(jax.tree.leaves, mask), strict=True)
            if mask_axis == along
        ]
        indices = tile * size + jax.lax.broadcasted_iota(jnp.int32, (size,), 0)
        return Tokens(expand(indices), expand(self.refs[name][here]), arrays)

    def allowed(self, query: Tokens, key: Tokens) -> Array:
        """Return the mask: bool, broadcasts to the tile."""
        layout, allowed = self.layout, jnp.bool_(True)
        if "mask" in self.refs:
            arrays = {"row": iter(query.mask), "column": iter(key.mask)}
            mask = jax.tree.map(
                lambda axis, ref: ref[0] if axis == "scalar" else next(arrays[axis]),
                self.mask_axes,
                self.refs["mask"],
            )
            allowed = mask(query.positions, key.positions)
        if layout.num_keys < layout.padded_keys:
            allowed = allowed & (key.indices < layout.num_keys)
        return allowed

    def drop(self, weights: Array, head: Array | None, query: Tokens, key: Tokens) -> Array:
        """Return the weights times the factors of dropout."""
        if not self.layout.dropout_rate:
            return weights
        words = [self.refs["words"][n] for n in range(self.refs["words"].shape[0])]
        positions = query.positions, key.positions
        factor = keep_pairs(words, self.layout.dropout_rate, head, *positions)
        return weights * factor.astype(weights.dtype)

    def head(self, *group: Array) -> Array | None:
        """Return the global number of the query head, or of one of the group, for dropout."""
        return self.refs["heads"][*group, 0] if self.layout.dropout_rate else None

    def head_entries(self, *group: Array) -> list[Array]:
        """Return the arrays of the score functions for the query head, or for one of the group."""
        return [ref[*group, 0] for ref in jax.tree.leaves(self.refs["scores"])]

    def score(self, query: Tokens, key: Tokens) -> Callable[..., Array]:
        """Return the score functions as a function of (products, *head_entries)."""
        scores: tuple[Score, ...] = self.refs["scores"]
        structure = jax.tree.structure(scores)

        def apply(products: Array, *entries: Array) -> Array:
            for score in jax.tree.unflatten(structure, entries):
                # Only functions that do not depend on the head are left.
                products = score(products, query.positions, key.positions, None)
            return products

        return apply


def dot(left: Array, right: Array, precision: str, *, transpose: bool = False) -> Array:
    """Return the product with `right` or its transpose, accumulated in float32."""
    contracted = (1,), (1 if transpose else 0,)
    return jax.lax.dot_general(
        left,
        right,
        (contracted, ((), ())),
        precision=precision,
        preferred_element_type=jnp.float32,
    )


_LOG2_E = 1.4426950408889634


def exp(exponents: Array) -> Array:
    """Return the exponential, computed as a power of two: a GPU has an instruction for it."""
    return jnp.exp2(exponents * _LOG2_E)
