"""From a request to what the kernels read: one batch axis, whole tiles, widths in powers of two."""

from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.pytree_dataclass import array_field, pytree_dataclass, static
from attention.primitives.dropout import Dropout
from attention.primitives.kernels.sizes import KernelSize, power_of_two
from attention.primitives.kernels.tile_mask import cuts, for_tiles
from attention.primitives.kernels.tile_score import for_heads
from attention.primitives.kernels.visits import touched_tiles
from attention.primitives.masks import Mask, Touched
from attention.primitives.request import Request
from attention.primitives.scores import Score


class Learned(NamedTuple):
    """What receives gradients; shapes as in `Request`."""

    query: Array
    key: Array
    value: Array
    scale: Array
    scores: tuple[Score, ...]


class Fixed(NamedTuple):
    """What does not; shapes as in `Request`."""

    mask: Mask | None
    query_positions: Array
    key_positions: Array
    dropout: Dropout | None


def split(request: Request) -> tuple[Learned, Fixed]:
    """The arrays of a request. Sinks stay behind."""
    scale = jnp.asarray(request.scale, jnp.float32)
    positions = request.query_positions, request.key_positions
    return (
        Learned(request.query, request.key, request.value, scale, request.scores),
        Fixed(request.mask, *positions, request.dropout),
    )


def joined(learned: Learned, fixed: Fixed, counted: bool) -> Request:
    """The request of `split`, which wants its logsumexp."""
    return Request(
        **learned._asdict(),
        **fixed._asdict(),
        sinks=(),
        broken=None,
        counted=counted,
        returning=("logsumexp",),
        num_strongest=1,
    )


def common_dtype(query: Array, key: Array, value: Array) -> jnp.dtype:
    """Of the factors of all products: that of the inputs if they agree, else float32."""
    dtypes = {query.dtype, key.dtype, value.dtype}
    return dtypes.pop() if len(dtypes) == 1 else jnp.dtype(jnp.float32)


@dataclass(frozen=True)
class Layout:
    """The sizes of a call: the letters of the legend, and how T and S are cut into tiles.

    `width` and `value_width` are H and Hv in powers of two.
    """

    batch: tuple[int, ...]
    num_queries: int
    num_keys: int
    num_heads: int
    num_kv_heads: int
    width: int
    value_width: int
    dtype: jnp.dtype
    size: KernelSize

    @classmethod
    def of(cls, learned: Learned, size: KernelSize) -> "Layout":
        """Tiles are no larger than needed."""
        *batch, num_queries, num_heads, width = learned.query.shape
        num_keys, num_kv_heads, value_width = learned.value.shape[-3:]
        size = KernelSize(
            min(size.rows, power_of_two(num_queries)),
            min(size.columns, power_of_two(num_keys)),
            size.warps,
            size.stages,
        )
        return cls(
            tuple(batch),
            num_queries,
            num_keys,
            num_heads,
            num_kv_heads,
            power_of_two(width),
            power_of_two(value_width),
            common_dtype(*learned[:3]),
            size,
        )

    @property
    def examples(self) -> int:
        """B, all leading axes together."""
        return prod(self.batch)

    @property
    def groups(self) -> int:
        """G."""
        return self.num_heads // self.num_kv_heads

    @property
    def rows(self) -> int:
        """Number of tiles of queries."""
        return -(-self.num_queries // self.size.rows)

    @property
    def columns(self) -> int:
        """Number of tiles of keys."""
        return -(-self.num_keys // self.size.columns)

    @property
    def ragged(self) -> bool:
        """Whether the last tile of keys is filled up with keys that nobody may see."""
        return self.num_keys % self.size.columns != 0


def padded(array: Array, axis: int, size: int, **mode: str | float) -> Array:
    """The array with one axis filled up to a size, with zeros by default."""
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, size - array.shape[axis])
    return jnp.pad(array, widths, **mode) if any(widths[axis]) else array


def learned_operands(learned: Learned, layout: Layout) -> dict[str, Any]:
    """Query `[B, T, N, H]`, key `[B, S, K, H]` and value in whole tiles, scale `[1]`, scores.

    Differentiable, so that gradients of what the kernels read go back through it.
    """
    num_rows, num_columns = layout.rows * layout.size.rows, layout.columns * layout.size.columns

    def filled(array: Array, tokens: int, width: int) -> Array:
        array = array.astype(layout.dtype).reshape(layout.examples, *array.shape[-3:])
        return padded(padded(array, 1, tokens), 3, width)

    return {
        "query": filled(learned.query, num_rows, layout.width),
        "key": filled(learned.key, num_columns, layout.width),
        "value": filled(learned.value, num_columns, layout.value_width),
        "scale": learned.scale.reshape(1),
        "scores": tuple(for_heads(score, layout.batch) for score in learned.scores),
    }


def fixed_operands(fixed: Fixed, layout: Layout) -> tuple[dict[str, Any], Touched | None]:
    """Positions, mask and words of the random key; and the tiles that are touched.

    Arrays are `[E, T]`, `[E, S]`, `[E, words]`, or `[E, 1]` for one number; E is 1 for what all
    examples have in common, else B.
    """
    num_rows, num_columns = layout.rows * layout.size.rows, layout.columns * layout.size.columns

    def entries(array: Array, rank: int) -> Array:
        core = array.shape[array.ndim - rank :]
        if array.ndim > rank:
            array = jnp.broadcast_to(array, (*layout.batch, *core))
        return array.reshape(-1, *core)

    # A query or key that only fills a tile stands where the last one does: the bounds of the tile
    # stay what they are.
    positions = {
        "query_positions": padded(entries(fixed.query_positions, 1), 1, num_rows, mode="edge"),
        "key_positions": padded(entries(fixed.key_positions, 1), 1, num_columns, mode="edge"),
    }
    mask = None if fixed.mask is None else map_arrays(fixed.mask, entries)
    touched = touched_tiles(
        mask, *positions.values(), layout.num_keys, layout.size.rows, layout.size.columns
    )
    operands = dict(positions)
    if mask is not None:
        tokens = {"row": num_rows, "column": num_columns}
        mask = for_tiles(mask)
        operands["mask"] = jax.tree.map(
            lambda array, cut: (
                array[:, None] if cut == "whole" else padded(array, 1, tokens[cut], mode="edge")
            ),
            mask,
            cuts(mask),
        )
    if fixed.dropout is not None:
        operands["words"] = entries(jax.random.key_data(fixed.dropout.key), 1)
    return operands, touched
