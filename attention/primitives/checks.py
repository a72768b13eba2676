"""One clear sentence for the person whose arrays do not fit."""

from collections.abc import Collection, Sequence

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from attention.primitives.batch import check_broadcasts, to_batch
from attention.primitives.carrier import arrays
from attention.primitives.choice import one_of
from attention.primitives.scores import Score


def shapes(query: Array, key: Array, value: Array) -> None:
    """Checks query `[..., T, N, H]`, key `[..., S, K, H]` and value `[..., S, K, Hv]`.

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

    def same(axis: str, ours: object, owner: str, theirs: object, other: str) -> None:
        if ours != theirs:
            raise ValueError(
                f"{axis} differ: {ours} in {owner} but {theirs} in {other}; got query "
                f"{query.shape}, key {key.shape}, value {value.shape} for "
                "[..., T, N, H], [..., S, K, H], [..., S, K, Hv]"
            )

    same("batch axes", query.shape[:-3], "query", key.shape[:-3], "key")
    same("batch axes", query.shape[:-3], "query", value.shape[:-3], "value")
    same("head widths H", query.shape[-1], "query", key.shape[-1], "key")
    same("key lengths S", key.shape[-3], "key", value.shape[-3], "value")
    same("numbers of key/value heads K", key.shape[-2], "key", value.shape[-2], "value")
    num_heads, num_kv_heads = query.shape[-2], key.shape[-2]
    if num_kv_heads == 0 or num_heads % num_kv_heads:
        raise ValueError(
            f"{num_heads} query heads (axis N) cannot be shared evenly by {num_kv_heads} "
            "key/value heads (axis K): K must divide N"
        )


def positions(
    positions: tuple[ArrayLike, ArrayLike] | None,
    batch: Sequence[int],
    num_queries: int,
    num_keys: int,
) -> tuple[Array, Array]:
    """The int32 positions of queries `[..., T]` and keys `[..., S]`, from 0 where none are given.

    Raises:
        TypeError: not a pair of integer arrays.
        ValueError: lengths or batch axes that do not fit.
    """
    if positions is None:
        return jnp.arange(num_queries, dtype=jnp.int32), jnp.arange(num_keys, dtype=jnp.int32)
    if not (isinstance(positions, tuple | list) and len(positions) == 2):
        raise TypeError("positions must be a pair (query_positions, key_positions)")
    checked = []
    for name, given, size in zip(
        ("query_positions", "key_positions"), positions, (num_queries, num_keys), strict=True
    ):
        array = jnp.asarray(given)
        if not jnp.issubdtype(array.dtype, jnp.integer):
            raise TypeError(f"{name} must be integers, got {array.dtype}")
        if array.ndim == 0 or array.shape[-1] != size:
            raise ValueError(f"{name} must end in an axis of {size}, got shape {array.shape}")
        checked.append(to_batch(name, array.astype(jnp.int32), batch, rank=1))
    return checked[0], checked[1]


def scores(
    given: Score | Collection[Score],
    batch: Sequence[int],
    sizes: tuple[int, int, int],
    *,
    counted: bool,
) -> tuple[Score, ...]:
    """Checks scores for N heads, T queries and S keys (`sizes`); returns them as a tuple.

    Raises:
        TypeError: something that is no `Score`.
        ValueError: arrays for other numbers of heads, or of positions that count from 0.
    """
    given = (given,) if isinstance(given, Score) or not isinstance(given, tuple | list) else given
    for part in given:
        if not isinstance(part, Score):
            hint = (
                "wrap a function in scores.from_function"
                if callable(part)
                else "wrap an array that is added in scores.bias_array"
            )
            kind = type(part).__name__
            raise TypeError(f"score takes a scores.Score or a tuple of them, got {kind}: {hint}")
        axes = ("heads (N)", "queries (T)", "keys (S)")
        for axis, ours, theirs in zip(axes, part.extent(), sizes, strict=True):
            if ours not in (None, theirs) and (counted or axis == axes[0]):
                raise ValueError(f"a score describes {ours} {axis}, but there are {theirs}")
        for array, rank in arrays(part):
            check_broadcasts("score", array.shape[: array.ndim - rank], batch)
    return tuple(given)


def scale(scale: float | Array | None) -> None:
    """Checks that the scale is one number.

    Raises:
        ValueError: an array with axes.
    """
    if jnp.ndim(0 if scale is None else scale):
        raise ValueError(f"scale is one number for all scores, got shape {jnp.shape(scale)}")


def broken(given: ArrayLike | None, shape: tuple[int, ...]) -> Array | None:
    """The marks of keys that are not finite, for keys `[..., S, K, H]`.

    Raises:
        TypeError: marks that are not bool.
        ValueError: marks of another shape than `[..., S, K]`.
    """
    if given is None:
        return None
    marks = jnp.asarray(given)
    if marks.dtype != bool:
        raise TypeError(f"broken must be bool, True where a key was not finite, got {marks.dtype}")
    if marks.shape != shape:
        raise ValueError(f"broken must have the shape {shape} of [..., S, K], got {marks.shape}")
    return marks


def names(argument: str, given: Collection[str], known: Sequence[str]) -> None:
    """Checks that a collection of names holds known ones only.

    Raises:
        TypeError: a bare string, whose letters would be taken for names.
        ValueError: an unknown name.
    """
    if isinstance(given, str):
        raise TypeError(f"{argument} takes a collection of names: write ({given!r},)")
    for name in given:
        one_of(f"each name in {argument}", name, known)
