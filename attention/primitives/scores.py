"""Scores: pure functions that change a score, knowing its query position, key position and head.

`score(scores, query_position, key_position, head) -> scores`, elementwise over arrays that
broadcast. `attend(..., score=...)` applies one, or several in the order of a tuple, between the
product of query and key and the mask. A score is a frozen pytree like a mask, and the arrays it
carries receive gradients.

Arrays inside a score may have leading batch axes.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from attention.primitives.carrier import array_field, carrier, static


class Score:
    """A function of (score, query position, key position, head)."""

    def __call__(
        self,
        scores: Array,
        query_position: ArrayLike,
        key_position: ArrayLike,
        head: ArrayLike,
    ) -> Array:
        """The new scores, from arrays that broadcast."""
        raise NotImplementedError

    def extent(self) -> tuple[int | None, int | None, int | None]:
        """How many heads, queries and keys it describes; None where it describes them all."""
        return None, None, None


def alibi(slopes: ArrayLike) -> Score:
    """Lowers scores by the distance of query and key times a slope (Press et al. 2022).

    Args:
        slopes: `[..., N]`, of each head; `alibi_slopes(N)` are those of the paper.
    """
    return _Alibi(_floats("slopes", slopes, 1))


def alibi_slopes(num_heads: int) -> Array:
    """2^(-8/N), 2^(-16/N), ... for N heads, a power of two; in between for other N.

    Where N is no power of two, the slopes of the next smaller power come first and then every other
    one of those of the next larger (the authors' rule).
    """
    if num_heads < 1:
        raise ValueError(f"num_heads must be at least 1, got {num_heads}")
    below = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (n + 1) / below) for n in range(below)]
    between = [2 ** (-4 * (2 * n + 1) / below) for n in range(num_heads - below)]
    return jnp.array(slopes + between)


@carrier
class _Alibi(Score):
    slopes: Array = array_field(rank=1)

    def __call__(
        self, scores: Array, query_position: ArrayLike, key_position: ArrayLike, head: ArrayLike
    ) -> Array:
        distance = jnp.abs(jnp.subtract(query_position, key_position))
        return scores - _at(self.slopes, scores.dtype, head) * distance.astype(scores.dtype)

    def extent(self) -> tuple[int, None, None]:
        return self.slopes.shape[-1], None, None


def relative_bias(table: ArrayLike, *, max_distance: int = 128, causal: bool = False) -> Score:
    """Adds a learned number for each bucket of distances (Raffel et al. 2020, section 2.1).

    Half of the buckets hold one distance each; the rest grow geometrically up to `max_distance`,
    and the last holds whatever is farther. Unless `causal`, half of all the buckets are for keys
    behind the query and half for keys ahead of it; with it, all keys ahead share bucket 0.

    Args:
        table: `[..., N, buckets]`.
        max_distance: in positions.
        causal: whether no key ahead of the query will be seen.

    Raises:
        ValueError: an odd number of buckets or fewer than 4, or a `max_distance` that leaves none
            of them to grow.
    """
    table = _floats("table", table, 2)
    if table.shape[-1] < 4 or table.shape[-1] % 2:
        raise ValueError(f"relative_bias needs an even number of 4 or more buckets: {table.shape}")
    exact = table.shape[-1] // (2 if causal else 4)
    if max_distance <= exact:
        raise ValueError(
            f"max_distance must be above the {exact} distances that have a bucket each, got "
            f"{max_distance}"
        )
    return _RelativeBias(table, max_distance, causal)


@carrier
class _RelativeBias(Score):
    table: Array = array_field(rank=2)
    max_distance: int = static()
    causal: bool = static()

    def __call__(
        self, scores: Array, query_position: ArrayLike, key_position: ArrayLike, head: ArrayLike
    ) -> Array:
        distance = jnp.subtract(query_position, key_position)
        buckets = relative_buckets(
            distance, self.table.shape[-1], max_distance=self.max_distance, causal=self.causal
        )
        return scores + _at(self.table, scores.dtype, head, buckets)

    def extent(self) -> tuple[int, None, None]:
        return self.table.shape[-2], None, None


def relative_buckets(
    distance: Array, num_buckets: int, *, max_distance: int, causal: bool
) -> Array:
    """The bucket of each distance, query position minus key position: int32, elementwise."""
    ahead = jnp.zeros_like(distance)
    if not causal:
        num_buckets //= 2
        ahead = jnp.where(distance < 0, num_buckets, 0)
        distance = jnp.abs(distance)
    distance = jnp.maximum(distance, 0)
    exact = num_buckets // 2
    # As fractions of the way from `exact` to `max_distance`, in logarithms.
    way = jnp.log(jnp.maximum(distance, 1) / exact) / math.log(max_distance / exact)
    far = exact + (way * (num_buckets - exact)).astype(jnp.int32)
    far = jnp.minimum(far, num_buckets - 1)
    return ahead + jnp.where(distance < exact, distance, far)


def softcap(limit: float) -> Score:
    """Bends scores into (-limit, limit): limit · tanh(score / limit) (Gemma 2, 2024, section 2)."""
    if not 0 < limit < math.inf:
        raise ValueError(f"softcap needs a finite limit above 0, got {limit}")
    return _Softcap(float(limit))


@carrier
class _Softcap(Score):
    limit: float = static()

    def __call__(
        self, scores: Array, query_position: ArrayLike, key_position: ArrayLike, head: ArrayLike
    ) -> Array:
        del query_position, key_position, head
        return self.limit * jnp.tanh(scores / self.limit)


def bias_array(array: ArrayLike) -> Score:
    """Adds a number for each head and pair, at [head, query position, key position].

    The one score whose memory grows with T·S, as the array itself does. Positions outside it are
    an error of the caller that cannot be seen here: the nearest entry is taken.

    Args:
        array: `[..., N, T, S]`, where N may be 1.
    """
    return BiasArray(_floats("bias_array", array, 3))


@carrier
class BiasArray(Score):
    """The score that `bias_array` makes, known by name so that tiles can cut it like a matrix."""

    array: Array = array_field(rank=3)

    def __call__(
        self, scores: Array, query_position: ArrayLike, key_position: ArrayLike, head: ArrayLike
    ) -> Array:
        """Adds the entries of the array."""
        head = head if self.array.shape[-3] > 1 else jnp.zeros_like(head)
        return scores + _at(self.array, scores.dtype, head, query_position, key_position)

    def extent(self) -> tuple[int | None, int, int]:
        """As in `Score`; one head is for all heads."""
        num_heads, num_queries, num_keys = self.array.shape[-3:]
        return (num_heads if num_heads > 1 else None), num_queries, num_keys

    def aligned(self, query_positions: Array, key_positions: Array) -> Array:
        """Its rows and columns in the order of queries `[T]` and keys `[S]`: `[N or 1, T, S]`."""
        rows = self.array.at[..., query_positions, :].get(mode="clip")
        return rows.at[..., key_positions].get(mode="clip")


def attention_sinks(logits: ArrayLike) -> Score:
    """Gives each head a place to look at nothing: a key of this score, whose value is 0.

    It takes its share in the sum of the softmax, so the weights of a row add up to less than 1
    (Xiao et al. 2024, section 3; learned logits as in OpenAI 2025, gpt-oss). It changes no score,
    and may stand anywhere in a tuple; a logsumexp includes it. Who may see nothing stays empty.

    Args:
        logits: `[..., N]`, compared with scores that are scaled.
    """
    return AttentionSinks(_floats("logits", logits, 1))


@carrier
class AttentionSinks(Score):
    """The score that `attention_sinks` makes, known by name since it acts on sums."""

    logits: Array = array_field(rank=1)

    def __call__(
        self, scores: Array, query_position: ArrayLike, key_position: ArrayLike, head: ArrayLike
    ) -> Array:
        """Changes no score."""
        del query_position, key_position, head
        return scores

    def extent(self) -> tuple[int, None, None]:
        """As in `Score`."""
        return self.logits.shape[-1], None, None


def from_function(function: Callable[[Array, Array, Array, Array], Array]) -> Score:
    """What a function of (scores, query position, key position, head) returns.

    The function is elementwise and hashable. Arrays that should receive gradients are given to it
    by `jax.tree_util.Partial(function, arrays)`, not by a closure.
    """
    if not callable(function):
        raise TypeError(f"a score function must be callable, got {type(function).__name__}")
    if not isinstance(function, jax.tree_util.Partial):
        function = jax.tree_util.Partial(function)
    return _FromFunction(function)


@carrier
class _FromFunction(Score):
    function: jax.tree_util.Partial

    def __call__(
        self, scores: Array, query_position: ArrayLike, key_position: ArrayLike, head: ArrayLike
    ) -> Array:
        operands = jnp.broadcast_arrays(query_position, key_position, head)
        changed = jnp.asarray(self.function(scores, *operands))
        if changed.shape != scores.shape or changed.dtype != scores.dtype:
            raise TypeError(
                f"a score function must return scores as it got them, {scores.dtype}"
                f"{scores.shape}, but returned {changed.dtype}{changed.shape}"
            )
        return changed


def _floats(name: str, given: ArrayLike, rank: int) -> Array:
    array = jnp.asarray(given)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"{name} must be floating point, got {array.dtype}")
    if array.ndim < rank:
        raise ValueError(f"{name} needs at least {rank} axes, got shape {array.shape}")
    return array


def _at(array: Array, dtype: jnp.dtype, *places: ArrayLike) -> Array:
    return array.at[places].get(mode="clip").astype(dtype)
