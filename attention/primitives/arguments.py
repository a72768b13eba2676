"""Validated arguments of one `attend` call."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, AxisType
from jax.typing import ArrayLike

from attention.primitives.cache import CacheView
from attention.primitives.choice import one_of
from attention.primitives.dropout import Dropout, key_words
from attention.primitives.masks import (
    FromArray,
    Mask,
    PairMask,
    causal,
    leaves_of,
    pair_mask,
    to_int32,
)
from attention.primitives.numerics import score_dtype
from attention.primitives.pytree_dataclass import (
    array_field,
    arrays_of,
    pytree_dataclass,
    static,
)
from attention.primitives.scores import AttentionSinks, Score, bias_array
from attention.primitives.vectorize import check_broadcasts, to_batch

RETURNING = ("weights", "logsumexp", "largest_score")
PRECISIONS = ("default", "high", "highest")


@pytree_dataclass
class Arguments:
    """The arguments of `attend`; shapes fit, names are known, defaults are filled in.

    Attributes:
        query: `[..., T, N, H]`.
        key: `[..., S, K, H]`.
        value: `[..., S, K, Hv]`.
        mask: a predicate on positions, or None.
        scores: applied in this order; the arrays that they use are fields, of these heads alone.
        sinks: added to the softmax denominator.
        query_positions: int32 `[T]` or `[..., T]`.
        key_positions: int32 `[S]` or `[..., S]`.
        heads: int32 `[N]`, the global number of each query head.
        scale: factor of the products.
        dropout: with the data of its key, uint32 `[..., words]`, or None.
        nonfinite_queries: bool `[..., T, N]`, or None if the query was not searched for them.
        nonfinite_keys: bool `[..., S, K]`, or None if key and value were not searched for them.
        counted: whether both positions count from 0 because none were given.
        returning: names of what to return beside the output.
        precision: of products of float32.
        tile_sizes: queries and keys per tile, or None.
    """

    query: Array = array_field("TNh")
    key: Array = array_field("SKh")
    value: Array = array_field("SKh")
    mask: Mask | None
    scores: tuple[Score, ...]
    sinks: tuple[AttentionSinks, ...]
    query_positions: Array = array_field("T")
    key_positions: Array = array_field("S")
    heads: Array = array_field("N")
    scale: Array = array_field("")
    dropout: Dropout | None
    nonfinite_queries: Array | None = array_field("TN")
    nonfinite_keys: Array | None = array_field("SK")
    counted: bool = static()
    returning: tuple[str, ...] = static()
    precision: str = static()
    tile_sizes: tuple[int, int] | None = static()

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch axes."""
        return self.query.shape[:-3]

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of scores and softmax: float32, or float64 if an input is float64."""
        return score_dtype(self.query, self.key, self.value)

    def by_index(self) -> "Arguments":
        """Return the arguments of one example, with mask and bias arrays indexed by row and column.

        They are indexed by position before. Both are the same where positions count from 0.
        """
        positions = None if self.counted else (self.query_positions, self.key_positions)
        mask = None if self.mask is None else self.mask.by_index(positions)
        scores = tuple(score.by_index(positions) for score in self.scores)
        return replace(self, mask=mask, scores=scores)


def check_arguments(
    query: Array,
    key: Array | CacheView,
    value: Array | None = None,
    *,
    mask: Mask | ArrayLike | None = None,
    is_causal: bool = False,
    bias: ArrayLike | None = None,
    score: Score | Collection[Score] | None = None,
    positions: tuple[ArrayLike, ArrayLike] | None = None,
    heads: ArrayLike | None = None,
    scale: float | Array | None = None,
    dropout: Dropout | None = None,
    returning: Collection[str] | None = None,
    precision: str | None = None,
    tile_sizes: tuple[int, int] | None = None,
) -> Arguments:
    """Validate the arguments of `attend`.

    Raises:
        TypeError: an argument of another type.
        ValueError: shapes that do not fit, unknown names.
    """
    nonfinite_keys = None
    if isinstance(key, CacheView):
        if value is not None or positions is not None:
            raise ValueError("a CacheView contains the value and the positions: pass neither")
        _, value, view_mask, positions, nonfinite_keys = key
        key = key.key
        if view_mask is not None:
            mask = view_mask if mask is None else view_mask & mask
    check_shapes(query, key, value)
    *batch, num_queries, num_heads, head_width = query.shape
    num_keys = key.shape[-3]
    if jnp.ndim(0 if scale is None else scale):
        raise ValueError(f"scale is one number for all scores, got shape {jnp.shape(scale)}")
    returning = () if returning is None else returning
    check_names("returning", returning, RETURNING)
    precision = "highest" if precision is None else str(precision).lower()
    if precision not in PRECISIONS:
        one_of("precision", precision, PRECISIONS)
    _check_tile_sizes(tile_sizes)
    if mask is not None and not isinstance(mask, Mask):
        mask = pair_mask(mask)
    if is_causal:
        mask = causal() if mask is None else causal() & mask
    counted = positions is None
    query_positions, key_positions = _check_positions(positions, batch, num_queries, num_keys)
    sizes = {"N": num_heads, "T": num_queries, "S": num_keys}
    sizes |= {"t": num_queries, "s": num_keys} if counted else {}
    if mask is not None:
        _check_mask(mask, batch, sizes, counted)
    dtype = score_dtype(query, key, value)
    score = () if score is None else score if isinstance(score, tuple | list) else (score,)
    score = score if bias is None else (bias_array(bias), *score)
    if heads is not None:
        del sizes["N"]  # the arrays of score functions contain all heads
    _check_scores(score, batch, sizes)
    score = [part.for_dtype(dtype) for part in score]
    numbers = _check_heads(heads, num_heads)
    if heads is not None:
        score = [part.for_heads(numbers) for part in score]
    scale = head_width**-0.5 if scale is None else scale
    return Arguments(
        query=query,
        key=key,
        value=value,
        mask=mask,
        scores=tuple(part for part in score if not isinstance(part, AttentionSinks)),
        sinks=tuple(part for part in score if isinstance(part, AttentionSinks)),
        query_positions=query_positions,
        key_positions=key_positions,
        heads=numbers,
        scale=scale.astype(dtype) if isinstance(scale, Array) else np.asarray(scale, dtype),
        dropout=_check_dropout(dropout, batch),
        nonfinite_queries=None,
        nonfinite_keys=nonfinite_keys,
        counted=counted,
        returning=tuple(returning),
        precision=precision,
        tile_sizes=None if tile_sizes is None else tuple(tile_sizes),
    )


def explicit_mesh(arguments: Arguments) -> AbstractMesh | None:
    """Return the mesh with Explicit axes of query, key or value; None if there is none."""
    inputs = arguments.query, arguments.key, arguments.value
    meshes = (jax.typeof(array).sharding.mesh for array in inputs)
    return next((mesh for mesh in meshes if AxisType.Explicit in mesh.axis_types), None)


def check_shapes(query: Array, key: Array, value: Array) -> None:
    """Check query `[..., T, N, H]`, key `[..., S, K, H]` and value `[..., S, K, Hv]`.

    Raises:
        TypeError: an input that is not floating point.
        ValueError: axes that do not agree, with both sizes.
    """
    named = {
        "query [..., T, N, H]": query,
        "key [..., S, K, H]": key,
        "value [..., S, K, Hv]": value,
    }
    for name, array in named.items():
        if not hasattr(array, "dtype"):
            raise TypeError(f"{name} must be an array, got {type(array).__name__}")
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(f"{name} must be floating point, got {array.dtype}")
        if array.ndim < 3:
            raise ValueError(f"{name} needs at least 3 axes, got shape {array.shape}")

    if query.shape[-1] == 0:
        raise ValueError(f"the head width H must be at least 1, got query {query.shape}")

    for axis, ours, theirs in (
        ("batch axes of query and key", query.shape[:-3], key.shape[:-3]),
        ("batch axes of query and value", query.shape[:-3], value.shape[:-3]),
        ("head widths H of query and key", query.shape[-1], key.shape[-1]),
        ("key lengths S of key and value", key.shape[-3], value.shape[-3]),
        ("numbers of heads K of key and value", key.shape[-2], value.shape[-2]),
    ):
        if ours != theirs:
            raise ValueError(
                f"the {axis} differ, {ours} and {theirs}: got query {query.shape}, key {key.shape},"
                f" value {value.shape} for [..., T, N, H], [..., S, K, H], [..., S, K, Hv]"
            )
    num_heads, num_kv_heads = query.shape[-2], key.shape[-2]
    if num_kv_heads == 0 or num_heads % num_kv_heads:
        raise ValueError(
            f"{num_heads} query heads (axis N) cannot be shared evenly by {num_kv_heads} "
            "key/value heads (axis K): K must divide N"
        )


def check_names(argument: str, given: Collection[str], known: Sequence[str]) -> None:
    """Check that a collection contains known names only.

    Raises:
        TypeError: a bare string: its letters would be taken for names.
        ValueError: an unknown name.
    """
    if isinstance(given, str):
        raise TypeError(f"{argument} takes a collection of names: write ({given!r},)")
    for name in given:
        if name not in known:
            one_of(f"each name in {argument}", name, known)


def _check_mask(mask: Mask, batch: Sequence[int], sizes: dict[str, int], counted: bool) -> None:
    for leaf in leaves_of(mask):
        is_array = isinstance(leaf, FromArray | PairMask)
        if is_array and batch and leaf.array.ndim == 3 and leaf.array.shape[0] > 1:
            raise ValueError(
                f"a mask array of shape {leaf.array.shape} beside the batch axes {tuple(batch)}: "
                "write array[:, None] for a mask of each example, [B, 1, T, S], and array[None] "
                "for a mask of each head, [1, N, T, S]"
            )
        _check_fits("mask", leaf, batch, sizes)
        if leaf.compares_positions and counted and sizes["T"] != sizes["S"]:
            raise ValueError(
                f"{sizes['T']} queries and {sizes['S']} keys do not determine the positions of the "
                "queries among the keys, which this mask compares: pass "
                "positions=(query_positions, key_positions)"
            )


def _check_fits(name: str, part: Mask | Score, batch: Sequence[int], sizes: dict[str, int]) -> None:
    """Check the axes of arrays whose letter has a size; 1 serves any size, but for segments."""
    words = {"N": "heads (N)", "T": "queries (T)", "S": "keys (S)"}
    for array, axes in arrays_of(part):
        check_broadcasts(name, array.shape[: array.ndim - len(axes)], batch)
        for letter, ours in zip(axes, array.shape[array.ndim - len(axes) :], strict=True):
            theirs = sizes.get(letter, ours)
            if ours != theirs and (ours > 1 or axes in ("t", "s")):
                axis = words[letter.upper()]
                raise ValueError(f"the {name} describes {ours} {axis}, but there are {theirs}")


def _check_positions(
    positions: tuple[ArrayLike, ArrayLike] | None,
    batch: Sequence[int],
    num_queries: int,
    num_keys: int,
) -> tuple[Array, Array]:
    if positions is None:
        return _counted(num_queries), _counted(num_keys)
    if not (isinstance(positions, tuple | list) and len(positions) == 2):
        raise TypeError("positions must be a pair (query_positions, key_positions)")
    checked = []
    for name, given, size in zip(
        ("query_positions", "key_positions"), positions, (num_queries, num_keys), strict=True
    ):
        array = to_int32(name, given, 0)
        if array.ndim == 0 or array.shape[-1] != size:
            raise ValueError(f"{name} must end in an axis of {size}, got shape {array.shape}")
        checked.append(to_batch(array, 1, batch, name))
    return checked[0], checked[1]


def _counted(size: int) -> Array:
    """Return int32 0 to `size` - 1, known when tracing so that tiles can be decided then.

    They are copied from NumPy: `jnp.arange` would compile a program for each size. A symbolic size
    (`jax.export`) is only known when the program runs.
    """
    if not isinstance(size, int):
        return jnp.arange(size, dtype=jnp.int32)
    with jax.ensure_compile_time_eval():
        return jax.device_put(np.arange(size, dtype=np.int32))


def _check_heads(heads: ArrayLike | None, num_heads: int) -> Array:
    if heads is None:
        return _counted(num_heads)
    heads = to_int32("heads", heads, 1)
    if heads.shape != (num_heads,):
        raise ValueError(f"heads must have one number for each of N={num_heads}, got {heads.shape}")
    return heads


def _check_scores(given: Sequence[Score], batch: Sequence[int], sizes: dict[str, int]) -> None:
    for part in given:
        if not isinstance(part, Score):
            raise TypeError(
                "score takes a scores.Score or a tuple of them, got "
                f"{type(part).__name__}: wrap a function in scores.from_function, and an array "
                "that is added in scores.bias_array"
            )
        _check_fits("score", part, batch, sizes)


def _check_dropout(dropout: Dropout | None, batch: Sequence[int]) -> Dropout | None:
    if dropout is None:
        return None
    if not isinstance(dropout, Dropout):
        raise TypeError(f"dropout must be Dropout(rng, rate), got {type(dropout).__name__}")
    dtype = getattr(dropout.rng, "dtype", type(dropout.rng).__name__)
    is_key = hasattr(dropout.rng, "dtype") and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    words = key_words(dropout.rng) if is_key or dtype == jnp.uint32 else None
    if words is None or words.ndim == 0 or words.shape[-1] not in (2, 4):  # of those in JAX
        raise TypeError(f"dropout rng must be a jax.random.key, got {dtype}")
    check_broadcasts("dropout.rng", words.shape[:-1], batch)
    return replace(dropout, rng=words)


def _check_tile_sizes(tile_sizes: tuple[int, int] | None) -> None:
    if tile_sizes is not None and not (
        isinstance(tile_sizes, tuple | list)
        and len(tile_sizes) == 2
        and all(isinstance(size, int) and size >= 1 for size in tile_sizes)
    ):
        raise ValueError(
            f"tile_sizes must be (queries, keys), two integers of at least 1, got {tile_sizes}"
        )
