"""Score functions: pure functions that change the scaled products of query and key.

`score(scores, query_position, key_position, head) -> scores`, elementwise over arrays that
broadcast. `attend(..., score=...)` applies one, or several in the order of a tuple, between the
product of query and key and the mask. A score function is a frozen pytree like a mask, and its
arrays receive gradients. They may have leading batch axes.
"""

import math
from bisect import bisect_left
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import AxisType, PartitionSpec
from jax.typing import ArrayLike

from attention.primitives.functions import Closure, hoist
from attention.primitives.pytree_dataclass import array_field, map_arrays, pytree_dataclass, static


class Score:
    """A function of (score, query position, key position, head).

    An array field with an axis of heads declares it by an N: `array_field("N")`. Its size is N, or
    1 if all heads share it; only such arrays may be sharded by heads. Where the function is called
    for one head, the axis has size 1.
    """

    def __call__(
        self, scores: Array, query_position: ArrayLike, key_position: ArrayLike, head: ArrayLike
    ) -> Array:
        """The new scores, from arrays that broadcast."""
        raise NotImplementedError

    def for_dtype(self, dtype: jnp.dtype) -> "Score":
        """Return the score function for scores of a dtype, with every array in a field."""
        return self

    def for_heads(self, heads: Array) -> "Score":
        """Return the score function of the heads with these global numbers.

        Its arrays contain all heads: the entry of a number outside of them is NaN.
        """
        sharding = jax.typeof(heads).sharding
        explicit_mesh = AxisType.Explicit in sharding.mesh.axis_types

        def take(array: Array, axes: str) -> Array:
            if "N" not in axes or array.shape[array.ndim - len(axes)] == 1:
                return array
            axis, own = array.ndim - len(axes), jax.typeof(array).sharding.spec
            result = PartitionSpec(*own[:axis], *sharding.spec, *own[axis + 1 :])
            at = jnp.asarray(array).at[(*[slice(None)] * axis, heads)]
            return at.get(mode="fill", out_sharding=result if explicit_mesh else None)

        return map_arrays(self, take)

    def by_index(self, positions: tuple[Array, Array] | None) -> "Score":
        """Return it with arrays of pairs indexed by query and key, as `Mask.by_index`."""
        return self


def alibi(slopes: ArrayLike) -> Score:
    """Subtract the distance of query and key times a slope per head (ALiBi, Press et al. 2022).

    Args:
        slopes: `[..., N]`, of each head; `alibi_slopes(N)` are those of the paper.
    """
    return Alibi(_floats("slopes", slopes, 1))


def alibi_slopes(num_heads: int) -> Array:
    """Return the slopes 2^(-8/N), 2^(-16/N), ... of the paper for N heads, a power of two.

    For other N: the slopes of the next smaller power of two, then every other slope of the next
    larger one (the authors' rule).
    """
    if num_heads < 1:
        raise ValueError(f"num_heads must be at least 1, got {num_heads}")
    below = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (n + 1) / below) for n in range(below)]
    between = [2 ** (-4 * (2 * n + 1) / below) for n in range(num_heads - below)]
    return jnp.array(slopes + between)


@pytree_dataclass
class Alibi(Score):
    """The score function that `alibi` makes."""

    slopes: Array = array_field("N")

    def __call__(
        self, scores: Array, query_position: ArrayLike, key_position: ArrayLike, head: ArrayLike
    ) -> Array:
        distance = jnp.abs(jnp.subtract(query_position, key_position))
        return scores - _at(self.slopes, scores.dtype, head) * distance.astype(scores.dtype)


def relative_bias(table: ArrayLike, *, max_distance: int = 128, causal: bool = False) -> Score:
    """Add a learned number for each bucket of distances (T5, Raffel et al. 2020, section 2.1).

    Half of the buckets contain one distance each; the others grow geometrically up to
    `max_distance`, and the last contains all larger distances. Unless `causal`, half of all buckets
    are for keys before the query and half for keys after it; if `causal`, all keys after it share
    bucket 0.

    Args:
        table: `[..., N, buckets]`.
        max_distance: in positions.
        causal: whether keys after the query are masked.

    Raises:
        ValueError: an odd number of buckets or fewer than 4, or a `max_distance` below the number
            of buckets of one distance.
    """
    table = _floats("table", table, 2)
    if table.shape[-1] < 4 or table.shape[-1] % 2:
        raise ValueError(f"relative_bias needs an even number of 4 or more buckets: {table.shape}")
    exact = table.shape[-1] // (2 if causal else 4)
    if max_distance <= exact:
        raise ValueError(f"{max_distance=} must be above the {exact} distances of one bucket each")
    return RelativeBias(table, max_distance, causal)


@pytree_dataclass
class RelativeBias(Score):
    """The score function that `relative_bias` makes."""

    table: Array = array_field("Np")
    max_distance: int = static()
    causal: bool = static()

    def __call__(
        self, scores: Array, query_position: ArrayLike, key_position: ArrayLike, head: ArrayLike
    ) -> Array:
        distance = jnp.subtract(query_position, key_position)
        buckets = relative_buckets(distance, self.table.shape[-1], self.max_distance, self.causal)
        return scores + _at(self.table, scores.dtype, head, buckets)


def relative_buckets(distance: Array, num_buckets: int, max_distance: int, causal: bool) -> Array:
    """Return the bucket of each distance, query minus key position: int32, elementwise."""
    offset = jnp.zeros_like(distance)
    if not causal:
        num_buckets //= 2
        offset = jnp.where(distance < 0, num_buckets, 0)
        distance = jnp.abs(distance)
    exact = num_buckets // 2
    bucket = jnp.clip(distance, 0, exact)
    for start in _bucket_starts(exact, num_buckets - exact, max_distance):
        bucket += (distance >= start).astype(bucket.dtype)
    return offset + bucket


def _bucket_starts(exact: int, number: int, max_distance: int) -> list[int]:
    """Return the first distance of each growing bucket but the first, in exact arithmetic.

    Bucket b starts at the smallest d with (d / exact)^number >= (max_distance / exact)^b. A
    logarithm may be rounded to the bucket before.
    """
    distances = range(exact, max_distance + 1)
    powers = [max_distance**b * exact ** (number - b) for b in range(1, number)]
    return [distances[bisect_left(distances, power, key=lambda d: d**number)] for power in powers]


def softcap(limit: float) -> Score:
    """Squash scores into (-limit, limit): limit · tanh(score / limit) (Gemma 2, section 2)."""
    if not 0 < limit < math.inf:
        raise ValueError(f"softcap needs a finite limit above 0, got {limit}")
    return Softcap(float(limit))


@pytree_dataclass
class Softcap(Score):
    """The score function that `softcap` makes."""

    limit: float = static()

    def __call__(self, scores: Array, *_: ArrayLike) -> Array:
        return self.limit * jnp.tanh(scores / self.limit)


def bias_array(array: ArrayLike) -> Score:
    """Add the entry [head, query position, key position] of an array to each score.

    The only score function whose memory grows with T·S, as the array itself does. A position
    outside the array uses the nearest entry.

    Args:
        array: `[..., N, T, S]` or `[T, S]`, where N, T and S may be 1.
    """
    array = _floats("bias_array", array, 2)
    return BiasArray(array[None] if array.ndim == 2 else array)


@pytree_dataclass
class BiasArray(Score):
    """The score function that `bias_array` makes."""

    array: Array = array_field("Nts")

    def __call__(
        self, scores: Array, query_position: ArrayLike, key_position: ArrayLike, head: ArrayLike
    ) -> Array:
        return scores + _at(self.array, scores.dtype, head, query_position, key_position)

    def by_index(self, positions: tuple[Array, Array] | None) -> Score:
        array = self.array
        for axis, at in zip((1, 2), positions or (), strict=False):
            array = jnp.take(array, at, axis, mode="clip") if array.shape[axis] > 1 else array
        return PairBias(array)


@pytree_dataclass
class PairBias(Score):
    """Adds the entry of an array to the score of each pair, whatever its positions."""

    array: Array = array_field("NTS")

    def __call__(self, scores: Array, *_: ArrayLike) -> Array:
        return scores + self.array[0].astype(scores.dtype)


def attention_sinks(logits: ArrayLike) -> Score:
    """Add a learned logit per head to the softmax denominator (attention sink).

    The weights of a query then sum to less than 1, as if one more key had value 0 (Xiao et al.
    2024, section 3; learned logits as in OpenAI 2025, gpt-oss). Scores are unchanged, so its place
    in a tuple does not matter; the logsumexp includes it. A fully masked query keeps output 0.

    Args:
        logits: `[..., N]`, compared with scaled scores.
    """
    return AttentionSinks(_floats("logits", logits, 1))


@pytree_dataclass
class AttentionSinks(Score):
    """The score function that `attention_sinks` makes."""

    logits: Array = array_field("N")

    def __call__(self, scores: Array, *_: ArrayLike) -> Array:
        return scores


def from_function(function: Callable[..., Array], *arrays: ArrayLike) -> Score:
    """Replace each score by `function(score, query_position, key_position, head, *arrays)`.

    The function is traced here, as by `masks.from_function`: for scores of float32, and of float64
    where jax has it enabled.

    It must be finite at every pair, also at masked ones: NaN or infinity there gives NaN gradients,
    although the output is right. Choose the argument by `jnp.where`, not the result: under
    `masks.causal()`, `score - jnp.log(jnp.where(k <= q, q - k + 1, 1))`.

    Args:
        function: takes a number of the dtype of the scores (float32, or float64 for float64
            inputs), three int32 numbers and the arrays; returns the new score. A
            `jax.custom_vjp` function in it has no derivatives in tiles, which need forward mode:
            make it a `jax.custom_jvp`, or pass implementation="reference" to `attend`.
        arrays: its other arguments, without batch axes. Both kinds of arrays receive gradients.

    Raises:
        TypeError: a function that does not take these arguments, branches on them in Python, or
            returns another dtype.
    """
    arrays, closures, error = tuple(map(jnp.asarray, arrays)), [], None
    for dtype in ("float32", "float64") if jax.config.jax_enable_x64 else ("float32",):
        scalars = dict.fromkeys(("query_position", "key_position", "head"), jnp.int32)
        try:
            scalars = {"score": dtype, **scalars}
            closures.append(hoist("score", function, scalars, arrays, f"{dtype}[]"))
        except (TypeError, jax.dtypes.TypePromotionError) as refused:  # one of two suffices
            error = refused
    if not closures:
        raise error
    return FromFunction(tuple(closures))


@pytree_dataclass
class FromFunction(Score):
    """The score function that `from_function` makes, traced for one dtype or two."""

    closures: tuple[Closure, ...]

    def for_dtype(self, dtype: jnp.dtype) -> Score:
        closures = [x for x in self.closures if x.program.parts[1][0].aval.dtype == dtype]
        if not closures:
            raise TypeError(
                f"this score function takes no scores of {dtype}: it returns another dtype, or was "
                "made where jax_enable_x64 was off"
            )
        return FromFunction(tuple(closures))

    def __call__(self, scores: Array, *integers: ArrayLike) -> Array:
        (closure,) = self.for_dtype(scores.dtype).closures
        return closure(scores, *(jnp.asarray(x, jnp.int32) for x in integers))[0]


def _floats(name: str, given: ArrayLike, rank: int) -> Array:
    array = jnp.asarray(given)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"{name} must be floating point, got {array.dtype}")
    if array.ndim < rank:
        raise ValueError(f"{name} needs at least {rank} axes, got shape {array.shape}")
    return array


def _at(array: Array, dtype: jnp.dtype, head: ArrayLike, *indices: ArrayLike) -> Array:
    if array.shape[0] > 1:
        indices = head, *indices
    else:  # a gather by head would communicate where heads are sharded
        array = array[0]
    return array.at[indices].get(mode="clip", wrap_negative_indices=False).astype(dtype)
