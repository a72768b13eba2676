"""Arguments of `attend` as operands of kernels: one batch axis, whole tiles, padded widths."""

from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.arguments import Arguments
from attention.primitives.dropout import Dropout
from attention.primitives.gpu.sizes import KernelSize, power_of_two
from attention.primitives.gpu.tile_lists import tile_bounds
from attention.primitives.gpu.tile_mask import mask_axes, to_tile_mask
from attention.primitives.gpu.tile_score import to_head_score
from attention.primitives.masks import Mask, TileBounds
from attention.primitives.pytree_dataclass import map_arrays
from attention.primitives.scores import Score


class Inputs(NamedTuple):
    """Arrays that receive gradients; shapes as in `Arguments`."""

    query: Array
    key: Array
    value: Array
    scale: Array
    scores: tuple[Score, ...]


class Constants(NamedTuple):
    """Arrays that do not receive gradients; shapes as in `Arguments`.

    `query_nan` float32 `[..., T, N]` and `key_nan` `[..., S, K]` are added to the scores: NaN for
    queries and keys that were not finite, 0 for all others; None = all finite.
    """

    mask: Mask | None
    query_positions: Array
    key_positions: Array
    heads: Array
    dropout: Dropout | None
    query_nan: Array | None = None
    key_nan: Array | None = None


def split(arguments: Arguments) -> tuple[Inputs, Constants]:
    """Return the arrays of the arguments, without sinks."""
    scale = jnp.asarray(arguments.scale, jnp.float32)
    return (
        Inputs(arguments.query, arguments.key, arguments.value, scale, arguments.scores),
        Constants(
            arguments.mask,
            arguments.query_positions,
            arguments.key_positions,
            arguments.heads,
            arguments.dropout,
        ),
    )


def common_dtype(query: Array, key: Array, value: Array) -> jnp.dtype:
    """Return the dtype of all products: that of the inputs, or float32 if theirs differ."""
    dtypes = {query.dtype, key.dtype, value.dtype}
    return dtypes.pop() if len(dtypes) == 1 else jnp.dtype(jnp.float32)


@dataclass(frozen=True)
class Layout:
    """Sizes of a call.

    Attributes:
        batch: the batch axes.
        num_queries: T.
        num_keys: S.
        num_heads: N.
        num_kv_heads: K.
        width: H as a power of two.
        value_width: Hv as a power of two.
        dtype: of the factors of all products.
        precision: of products of float32.
        dropout_rate: 0 = no dropout.
        size: of the tiles.
    """

    batch: tuple[int, ...]
    num_queries: int
    num_keys: int
    num_heads: int
    num_kv_heads: int
    width: int
    value_width: int
    dtype: jnp.dtype
    precision: str
    dropout_rate: float
    size: KernelSize

    @classmethod
    def of(cls, inputs: Inputs, constants: Constants, precision: str, size: KernelSize) -> "Layout":
        """Return the sizes for inputs, with tiles no larger than needed."""
        *batch, num_queries, num_heads, width = inputs.query.shape
        num_keys, num_kv_heads, value_width = inputs.value.shape[-3:]
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
            common_dtype(inputs.query, inputs.key, inputs.value),
            precision,
            0.0 if constants.dropout is None else constants.dropout.rate,
            size,
        )

    @property
    def examples(self) -> int:
        """B, the product of all batch axes."""
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
    def padded_queries(self) -> int:
        """Number of queries in all tiles."""
        return self.rows * self.size.rows

    @property
    def padded_keys(self) -> int:
        """Number of keys in all tiles."""
        return self.columns * self.size.columns

    def one_batch_axis(self, array: Array, rank: int) -> Array:
        """Return `[E, ...]` with `rank` further axes: E = 1 for an array without batch axes."""
        core = array.shape[array.ndim - rank :]
        if array.ndim > rank:
            array = jnp.broadcast_to(array, (*self.batch, *core))
        return array.reshape(-1, *core)


def padded(array: Array, axis: int, size: int, **mode: str | float) -> Array:
    """Return the array with one axis padded to a size, with zeros by default."""
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, size - array.shape[axis])
    return jnp.pad(array, widths, **mode) if any(widths[axis]) else array


def input_operands(inputs: Inputs, layout: Layout) -> dict[str, Any]:
    """Return query `[B, T, N, H]`, key `[B, S, K, H]`, value, scale `[1]` and score functions.

    T and S are padded to whole tiles. Differentiable: the gradients of the operands pass back
    through it.
    """

    def whole_tiles(array: Array, tokens: int, width: int) -> Array:
        array = layout.one_batch_axis(array.astype(layout.dtype), 3)
        return padded(padded(array, 1, tokens), 3, width)

    return {
        "query": whole_tiles(inputs.query, layout.padded_queries, layout.width),
        "key": whole_tiles(inputs.key, layout.padded_keys, layout.width),
        "value": whole_tiles(inputs.value, layout.padded_keys, layout.value_width),
        "scale": inputs.scale.reshape(1),
        "scores": tuple(
            to_head_score(score, layout.batch, layout.num_heads) for score in inputs.scores
        ),
    }


def constant_operands(
    constants: Constants, layout: Layout
) -> tuple[dict[str, Any], TileBounds | None]:
    """Return positions, mask and dropout as operands, and which tiles are empty or full.

    Arrays are `[E, T]`, `[E, S]`, `[E, words]`, or `[E, 1]` for one number; E is 1 for an array
    that all examples share, else B.
    """
    rows, columns = layout.padded_queries, layout.padded_keys
    # Padding repeats the last position, which keeps the bounds of the tile.
    positions = {
        name: padded(layout.one_batch_axis(array, 1), 1, size, mode="edge")
        for name, array, size in (
            ("query_positions", constants.query_positions, rows),
            ("key_positions", constants.key_positions, columns),
        )
    }
    mask = constants.mask
    mask = None if mask is None else map_arrays(mask, layout.one_batch_axis)
    bounds = tile_bounds(
        mask, *positions.values(), layout.num_keys, layout.size.rows, layout.size.columns
    )
    operands = dict(positions)
    if mask is not None:
        sizes = {"row": rows, "column": columns}
        mask = to_tile_mask(mask, layout.num_queries, layout.num_keys)
        operands["mask"] = jax.tree.map(
            lambda array, axis: (
                array[:, None] if axis == "scalar" else padded(array, 1, sizes[axis], mode="edge")
            ),
            mask,
            mask_axes(mask),
        )
    if constants.dropout is not None:
        operands["words"] = layout.one_batch_axis(constants.dropout.rng, 1)
        operands["heads"] = constants.heads[None, :, None]
    return operands, bounds


def nan_operands(constants: Constants, layout: Layout) -> dict[str, Array]:
    """Return the NaN and 0 that are added to scores: `[B, N, T]` and `[B, K, S]`."""
    arrays = {
        "query_nan": (constants.query_nan, layout.padded_queries),
        "key_nan": (constants.key_nan, layout.padded_keys),
    }
    return {
        name: padded(jnp.swapaxes(layout.one_batch_axis(array, 2), 1, 2), 2, size)
        for name, (array, size) in arrays.items()
        if array is not None
    }
