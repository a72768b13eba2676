"""Masks inside a kernel, which has no gathers: their arrays come cut to the tile."""

from typing import Any

import jax
from jax import Array
from jax.typing import ArrayLike

from attention.primitives import masks
from attention.primitives.pytree_dataclass import array_field, pytree_dataclass, static
from attention.primitives.masks import Mask


@pytree_dataclass
class TileSegments(Mask):
    """`masks.segments` with the segments of the queries and keys of a tile, not of positions."""

    query: Any
    key: Any

    def _allows(self, query_position: ArrayLike, key_position: ArrayLike) -> Array:
        del query_position, key_position
        return self.query == self.key


def mask_refusal(mask: Mask | Array | None, counted: bool) -> str | None:
    """Why a kernel cannot evaluate a mask; None if it can.

    Args:
        mask: an expression, a bool array or None.
        counted: whether positions count from 0, so that position and index are the same.
    """
    match mask:
        # Of positions and numbers alone: they mean in a kernel what they mean outside.
        case None | masks._Causal() | masks._Window() | masks._Lengths() | masks._Block():
            return None
        case masks._Segments():
            why = "segments at explicit positions need a gather, which kernels do not have"
            return None if counted else why
        case masks._And() | masks._Or():
            return mask_refusal(mask.left, counted) or mask_refusal(mask.right, counted)
        case masks._Not():
            return mask_refusal(mask.inner, counted)
        case Mask():
            return "a mask that is a function or an array is not evaluated inside a kernel"
        case _:
            return "a mask that is a bool array is not read by a kernel"


def for_tiles(mask: Mask) -> Mask:
    """The expression with segments that are compared as they are, not looked up by position."""
    match mask:
        case masks._Segments():
            return TileSegments(mask.query_segments, mask.key_segments)
        case masks._And() | masks._Or():
            return type(mask)(for_tiles(mask.left), for_tiles(mask.right))
        case masks._Not():
            return masks._Not(for_tiles(mask.inner))
        case _:
            return mask


def cuts(mask: Mask) -> Mask:
    """A mask for tiles with, instead of each array, along what it is cut: a row, a column or not.

    "row" stands for an entry for each query, "column" for each key, "whole" for one number.
    """

    def cut(node: TileSegments | Array) -> TileSegments | str:
        return TileSegments("row", "column") if isinstance(node, TileSegments) else "whole"

    return jax.tree.map(cut, mask, is_leaf=lambda node: isinstance(node, TileSegments))
