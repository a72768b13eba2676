"""The arrays of one head in tiles, made from the arguments of `attend`: axes and padding."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from attention.primitives.arguments import Arguments
from attention.primitives.batch import over_batch, to_batch
from attention.primitives.masks import Mask
from attention.primitives.nonfinite import nan_where, replace_nonfinite
from attention.primitives.pytree_dataclass import map_arrays
from attention.primitives.scores import BiasArray, Score


class Inputs(NamedTuple):
    """What has derivatives, for one head, or cut to one tile.

    query `[T, H]`, key `[H, S]`, value `[S, Hv]`, scale; score functions, with None in place of a
    bias array; bias arrays `[T or 1, S or 1]`, with None elsewhere.
    """

    query: Array
    key: Array
    value: Array
    scale: Array
    scores: tuple[Score | None, ...]
    biases: tuple[Array | None, ...]


class Constants(NamedTuple):
    """What has no derivatives, for one head, or cut to one tile; None where absent.

    query_positions `[T]`; key_positions `[S]`; query_nan `[T]` and key_nan `[S]`, NaN where the
    query or key was not finite and else 0; is_key `[S]`, False where S was padded; mask; allowed
    bool `[T or 1, S or 1]`; head, its global number; rng `[words]`.
    """

    query_positions: Array
    key_positions: Array
    query_nan: Array
    key_nan: Array
    is_key: Array | None
    mask: Mask | None
    allowed: Array | None
    head: Array
    rng: Array | None


# The axes of the arrays: "T" is cut into rows of tiles, "S" into columns. Keys are transposed, so
# that the product for their derivative needs no transposed copy of a tile of scores.
INPUT_AXES = Inputs("TH", "HS", "SH", "", "", "TS")
CONSTANT_AXES = Constants("T", "S", "T", "S", "S", "", "TS", "", "")


@dataclass(frozen=True)
class Lifted:
    """An array and its leading axes: "B" all batch axes, "K" key/value heads, "G" their queries."""

    array: Array
    axes: str


def of_batch(array: Array, rank: int, batch: tuple[int, ...]) -> Lifted:
    """Give an array all batch axes, or none if several examples share it."""
    array = to_batch(array, rank, batch)
    return Lifted(array, "B" if array.ndim > rank else "")


@dataclass(frozen=True)
class _Lift:
    """Bring arrays to the axes of `Lifted`, with whole tiles of queries and keys.

    Attributes:
        batch: sizes of the batch axes.
        num_kv_heads: K.
        num_queries: of all tiles.
        num_keys: of all tiles.
    """

    batch: tuple[int, ...]
    num_kv_heads: int
    num_queries: int
    num_keys: int

    def of_heads(self, array: Array, axis: int, axes: str = "") -> Lifted:
        """Split N into K and G: query head n reads key head n // G."""
        shape = array.shape
        array = array.reshape(*shape[:axis], self.num_kv_heads, -1, *shape[axis + 1 :])
        return Lifted(array, axes + "KG")

    def of_queries(self, array: Array) -> Lifted:
        """Bring `[..., T, N, *]` to `[..., K, G, T, *]`."""
        return self.of_heads(self._heads_first(array, self.num_queries), len(self.batch), "B")

    def of_keys(self, array: Array) -> Lifted:
        """Bring `[..., S, K, *]` to `[..., K, S, *]`."""
        return Lifted(self._heads_first(array, self.num_keys), "BK")

    def _heads_first(self, array: Array, length: int) -> Array:
        rank = len(self.batch)
        return pad(jnp.swapaxes(array, rank, rank + 1), rank + 1, length)

    def of_pairs(self, array: Array) -> Lifted:
        """Bring `[..., N or 1, T or 1, S or 1]` to `[..., K, G, T or 1, S or 1]`."""
        lifted = of_batch(array, 3, self.batch)
        array, axes = lifted.array, lifted.axes
        for axis, size in ((array.ndim - 2, self.num_queries), (array.ndim - 1, self.num_keys)):
            array = pad(array, axis, size) if array.shape[axis] > 1 else array
        if array.shape[-3] == 1:
            return Lifted(array.squeeze(-3), axes)
        return self.of_heads(array, array.ndim - 3, axes)

    def of_positions(self, array: Array, length: int) -> Lifted:
        """Repeat the last position up to a length."""
        widths = [(0, 0)] * (array.ndim - 1) + [(0, length - array.shape[-1])]
        return of_batch(jnp.pad(array, widths, mode="edge"), 1, self.batch)

    def of_fields(self, tree: Mask | Score | None) -> Mask | Score | None:
        """Give the arrays of a mask or score function, which all heads share, to `of_batch`."""
        return map_arrays(tree, lambda x, rank: of_batch(x, rank, self.batch))

    def of_score(self, score: Score) -> Score:
        """Bring the arrays of a score function to the axes of `Lifted`; N becomes K and G."""

        def own_of_heads(array: Array, rank: int) -> Lifted:
            lifted = of_batch(array, rank + 1, self.batch)
            return self.of_heads(lifted.array, lifted.array.ndim - rank - 1, lifted.axes)

        own = score.by_head()
        return self.of_fields(score) if own is None else map_arrays(own, own_of_heads)


def inputs_and_constants(
    arguments: Arguments, sizes: tuple[int, int], tiles: tuple[int, int], platform: str
) -> tuple[Inputs, Constants]:
    """Return trees of `Lifted`."""
    num_rows, num_columns = (size * count for size, count in zip(sizes, tiles, strict=True))
    lift = _Lift(arguments.batch, arguments.key.shape[-2], num_rows, num_columns)
    query, key, value, *nonfinite = replace_nonfinite(
        arguments.query, arguments.key, arguments.value, arguments.nonfinite_keys
    )
    # Products of bfloat16 are exact in float32, and in bfloat16 they took 1.2 (forward) and 1.3
    # (backward) times as long on a CPU, even one with AVX512-BF16.
    if platform == "cpu":
        query, key, value = (array.astype(arguments.dtype) for array in (query, key, value))
    inputs = Inputs(
        query=lift.of_queries(query),
        key=Lifted(jnp.swapaxes(lift.of_keys(key).array, -1, -2), "BK"),
        value=lift.of_keys(value),
        scale=Lifted(jnp.asarray(arguments.scale, arguments.dtype), ""),
        scores=tuple(None if _is_bias(x) else lift.of_score(x) for x in arguments.scores),
        biases=tuple(
            lift.of_pairs(_aligned(x, arguments)) if _is_bias(x) else None for x in arguments.scores
        ),
    )
    num_keys, allowed = arguments.key.shape[-3], arguments.allowed
    rng = None if arguments.dropout is None else arguments.dropout.rng
    is_key = Lifted(jnp.arange(num_columns) < num_keys, "")
    constants = Constants(
        query_positions=lift.of_positions(arguments.query_positions, num_rows),
        key_positions=lift.of_positions(arguments.key_positions, num_columns),
        query_nan=lift.of_queries(nan_where(nonfinite[0], arguments.dtype)),
        key_nan=lift.of_keys(nan_where(nonfinite[1], arguments.dtype)),
        is_key=None if num_columns == num_keys else is_key,
        mask=lift.of_fields(arguments.mask),
        allowed=None if allowed is None else lift.of_pairs(allowed),
        head=lift.of_heads(arguments.heads, 0),
        rng=None if rng is None else of_batch(rng, 1, arguments.batch),
    )
    return inputs, constants


def _is_bias(score: Score) -> bool:
    return isinstance(score, BiasArray)


def _aligned(score: BiasArray, arguments: Arguments) -> Array:
    """Return the entries of a bias array at the positions of queries and keys."""
    array = score.array.astype(arguments.dtype)
    if arguments.counted:
        return array
    positions = arguments.query_positions, arguments.key_positions
    batched = array.ndim > 3 or any(x.ndim > 1 for x in positions)
    batch = arguments.batch if batched else ()
    return over_batch(
        lambda array, *at: BiasArray(array).aligned(*at), (array, *positions), (3, 1, 1), batch
    )


def pad(array: Array, axis: int, size: int) -> Array:
    """Pad one axis with zeros to a size."""
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, size - array.shape[axis])
    return jnp.pad(array, widths) if size > array.shape[axis] else array
