"""Validated arguments of one `attend` call."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, AxisType
from jax.typing import ArrayLike

from attention.primitives import masks
from attention.primitives.cache import CacheView
from attention.primitives.choice import one_of
from attention.primitives.dropout import Dropout, key_words
from attention.primitives.numerics import score_dtype
from attention.primitives.pytree_dataclass import array_field, arrays_of, pytree_dataclass, static
from attention.primitives.scores import AttentionSinks, PairBias, Score, bias_array
from attention.primitives.vectorize import check_broadcasts, to_batch

RETURNING = ("weights", "logsumexp", "largest_score")
PRECISIONS = ("default", "high", "highest")


@pytree_dataclass
class Arguments:
    """The arguments of `attend`; shapes fit, names are known, defaults are filled in.

    Attributes:
        scores: applied in this order; the arrays that they use are fields, of these heads alone.
        sinks: those of the score functions that change the softmax denominator instead.
        dropout: with the data of its key, uint32 `[..., words]`, or None.
        nonfinite_queries: bool `[..., T, N]`, or None if the query was not searched for them.
        nonfinite_keys: bool `[..., S, K]`, or None if key and value were not searched for them.
        counted: whether both positions count from 0 because none were given.
    """

    query: Array = array_field("TNh")
    key: Array = array_field("SKh")
    value: Array = array_field("SKh")
    mask: masks.Mask | None
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
        mask = self.mask
        if mask is not None:
            mask = masks.map_leaves(mask, lambda leaf: leaf.by_index(positions))
        scores = tuple(score.by_index(positions) for score in self.scores)
        return replace(self, mask=mask, scores=scores)


def check_arguments(
    query: Array,
    key: Array | CacheView,
    value: Array | None = None,
    *,
    mask: masks.Mask | ArrayLike | None = None,
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
    """Validate the arguments of `attend`, and raise its errors."""
    nonfinite_keys = None
    if isinstance(key, CacheView):
        if value is not None or positions is not None:
            raise ValueError("a CacheView contains the value and the positions: pass neither")
        key, value, view_mask, positions, nonfinite_keys = key
        if view_mask is not None:
            mask = view_mask if mask is None else view_mask & mask
    _check_shapes(query, key, value)
    batch, (num_queries, num_heads, head_width) = query.shape[:-3], query.shape[-3:]
    scale = head_width**-0.5 if scale is None else scale
    if jnp.ndim(scale):
        raise ValueError(f"scale is one number for all scores, got shape {jnp.shape(scale)}")
    returning = () if returning is None else returning
    check_collection("returning", returning, RETURNING)
    precision = "highest" if precision is None else str(precision).lower()
    if precision not in PRECISIONS:
        one_of("precision", precision, PRECISIONS)
    match tile_sizes:
        case None:
            pass
        case [int(rows), int(columns)] if min(rows, columns) >= 1:
            tile_sizes = rows, columns
        case _:
            raise ValueError(
                f"tile_sizes must be (queries, keys), two integers of at least 1, got {tile_sizes}"
            )
    match positions:
        case None:
            query_positions, key_positions = _counted(num_queries), _counted(key.shape[-3])
        case [query_positions, key_positions]:
            query_positions = _numbers("query_positions", query_positions, num_queries, batch)
            key_positions = _numbers("key_positions", key_positions, key.shape[-3], batch)
        case _:
            raise TypeError("positions must be a pair (query_positions, key_positions)")
    numbers = _counted(num_heads) if heads is None else _numbers("heads", heads, num_heads, ())
    if is_causal:
        mask = masks.causal() if mask is None else masks.causal() & mask
    mask = None if mask is None else masks.map_leaves(masks.as_mask(mask), _as_pairs)
    dtype = score_dtype(query, key, value)
    score = () if score is None else score if isinstance(score, tuple | list) else (score,)
    score = score if bias is None else (PairBias(bias_array(bias).array), *score)
    for part in score:
        if not isinstance(part, Score):
            raise TypeError(
                f"score takes a scores.Score or a tuple of them, got {type(part).__name__}: wrap a "
                "function in scores.from_function, and an array that is added in scores.bias_array"
            )
    score = [part.for_dtype(dtype) for part in score]
    if heads is not None:
        score = [part.for_heads(numbers) for part in score]
    if dropout is not None:
        if not isinstance(dropout, Dropout):
            raise TypeError(f"dropout must be Dropout(rng, rate), got {type(dropout).__name__}")
        if not hasattr(dropout.rng, "dtype"):
            kind = type(dropout.rng).__name__
            raise TypeError(f"dropout rng must be a jax.random.key, got {kind}")
        dropout = replace(dropout, rng=key_words(dropout.rng))
        check_broadcasts("dropout.rng", dropout.rng.shape[:-1], batch)
    arguments = Arguments(
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
        dropout=dropout,
        nonfinite_queries=None,
        nonfinite_keys=nonfinite_keys,
        counted=positions is None,
        returning=tuple(returning),
        precision=precision,
        tile_sizes=tile_sizes,
    )
    _check_mask(arguments)
    for part in score:
        _check_fits(arguments, "score", part)
    return arguments


def explicit_mesh(arguments: Arguments) -> AbstractMesh | None:
    """Return the mesh with Explicit axes of query, key or value; None if there is none."""
    inputs = arguments.query, arguments.key, arguments.value
    meshes = (jax.typeof(array).sharding.mesh for array in inputs)
    return next((mesh for mesh in meshes if AxisType.Explicit in mesh.axis_types), None)


def _check_shapes(query: Array, key: Array, value: Array) -> None:
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


def check_collection(argument: str, given: Collection[str], known: Sequence[str]) -> None:
    """Check that a collection contains known names only.

    Raises:
        TypeError: a bare string: its letters would be taken for names.
        ValueError: an unknown name.
    """
    if isinstance(given, str):
        raise TypeError(f"{argument} takes a collection of names: write ({given!r},)")
    for name in given:
        one_of(f"each name in {argument}", name, known)


def _counted(size: int) -> Array:
    """Return int32 0 to `size` - 1, known when tracing so that tiles can be decided then.

    They are copied from NumPy: `jnp.arange` would compile a program for each size. A symbolic size
    (`jax.export`) is only known when the program runs.
    """
    if not isinstance(size, int):
        return jnp.arange(size, dtype=jnp.int32)
    with jax.ensure_compile_time_eval():
        return jax.device_put(np.arange(size, dtype=np.int32))


def _numbers(name: str, given: ArrayLike, size: int, batch: Sequence[int]) -> Array:
    """Return given integers as int32 `[..., size]`."""
    array = masks.to_int32(name, given, 0)
    if array.ndim == 0 or array.shape[-1] != size:
        raise ValueError(f"{name} must end in an axis of {size}, got shape {array.shape}")
    return to_batch(array, 1, batch, name)


def _as_pairs(leaf: masks.Mask) -> masks.Mask:
    """Return an array that is indexed by query and key as a `PairMask`, other masks as they are."""
    is_pairs = isinstance(leaf, masks.FromArray) and not leaf.by_position
    return masks.PairMask(leaf.array) if is_pairs else leaf


def _check_mask(arguments: Arguments) -> None:
    num_queries, num_keys = arguments.query.shape[-3], arguments.key.shape[-3]
    for leaf in () if arguments.mask is None else masks.leaves_of(arguments.mask):
        is_array, rank = isinstance(leaf, masks.FromArray | masks.PairMask), arguments.query.ndim
        if is_array and leaf.array.ndim < rank and max(leaf.array.shape[:-2]) > 1:
            raise ValueError(
                f"a mask array of shape {leaf.array.shape} beside the batch axes "
                f"{arguments.batch}: write array[:, None] for a mask of each example, "
                "[B, 1, T, S], and array[None] for a mask of each head, [1, N, T, S]"
            )
        _check_fits(arguments, "mask", leaf)
        if leaf.compares_positions and arguments.counted and num_queries != num_keys:
            raise ValueError(
                f"{num_queries} queries and {num_keys} keys do not determine the positions of the "
                "queries among the keys, which this mask compares: pass "
                "positions=(query_positions, key_positions)"
            )


def _check_fits(arguments: Arguments, name: str, part: masks.Mask | Score) -> None:
    """Check the axes of arrays whose letter has a size; 1 serves any size, but for segments."""
    num_queries, num_heads = arguments.query.shape[-3:-1]
    sizes = {"N": num_heads, "T": num_queries, "S": arguments.key.shape[-3]}
    if arguments.counted:  # positions are indices
        sizes |= {"t": sizes["T"], "s": sizes["S"]}
    words = {"N": "heads (N)", "T": "queries (T)", "S": "keys (S)"}
    for array, axes in arrays_of(part):
        rank = array.ndim - len(axes)
        check_broadcasts(name, array.shape[:rank], arguments.batch)
        for letter, own in zip(axes, array.shape[rank:], strict=True):
            size = sizes.get(letter, own)
            if own != size and (own > 1 or axes in ("t", "s")):
                axis = words[letter.upper()]
                is_pairs = axes == "NTS" and array.shape[0] == 1 and arguments.batch
                hint = ": a padding array [B, S] is array[:, None, None, :]" if is_pairs else ""
                raise ValueError(f"the {name} describes {own} {axis}, but there are {size}{hint}")
