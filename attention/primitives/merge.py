"""Exact combination of attention over disjoint sets of keys."""

from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.numerics import nan_rows


def merge(partials: Iterable[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Combine attention of the same queries over disjoint sets of keys.

    Each output is weighted by its share of the softmax denominator, exp(logsumexp - total)
    (Rabe and Staats 2021, section 2; Liu et al. 2023, ring attention). Differentiable.

    Args:
        partials: pairs of output `[..., T, N, Hv]` and logsumexp `[..., N, T]`, as `attend`
            returns them with `returning=("logsumexp",)`.

    Returns:
        The output and logsumexp over all keys. A query for which every set is masked gets 0 and
        -inf.

    Raises:
        ValueError: no partial results, or results of different shapes.

    >>> from attention import attend
    >>> query, key, value = (jax.random.normal(jax.random.key(n), (6, 2, 4)) for n in range(3))
    >>> partials = []
    >>> for part in (slice(0, 2), slice(2, 6)):
    ...     output, more = attend(query, key[part], value[part], returning=("logsumexp",))
    ...     partials.append((output, more["logsumexp"]))
    >>> bool(jnp.allclose(merge(partials)[0], attend(query, key, value), atol=1e-6))
    True
    """
    partials = list(partials)
    shapes = [
        tuple(getattr(array, "shape", type(array).__name__) for array in pair)
        if isinstance(pair, tuple | list)
        else type(pair).__name__
        for pair in partials
    ]
    if not _fit(shapes):
        raise ValueError(
            "merge takes one or more pairs of output [..., T, N, Hv] and logsumexp [..., N, T] of "
            f"equal shapes, got {', '.join(map(str, shapes)) or 'none'}"
        )
    outputs, logsumexps = (jnp.stack(arrays) for arrays in zip(*partials, strict=True))
    largest = jax.lax.stop_gradient(jnp.max(logsumexps, axis=0, keepdims=True))
    empty = jnp.isneginf(largest)
    largest = jnp.where(empty, 0, largest)
    parts = jnp.exp(logsumexps - largest)
    total = jnp.sum(parts, axis=0, keepdims=True)
    logsumexp = jnp.where(empty, -jnp.inf, jnp.log(jnp.where(empty, 1, total)) + largest)
    # A share that is NaN would reach the masked keys of every set in the backward pass.
    unused = empty | jnp.isnan(logsumexp)
    shares = jnp.where(unused, 0, parts / jnp.where(unused, 1, total))
    shares = jnp.swapaxes(shares, -1, -2)[..., None]
    output = jnp.sum(shares * outputs.astype(shares.dtype), axis=0).astype(outputs.dtype)
    logsumexp = logsumexp[0]
    return nan_rows(output, jnp.swapaxes(logsumexp, -1, -2)), logsumexp


def _fit(shapes: Sequence[object]) -> bool:
    """Return whether all are the shapes of output and logsumexp of one size."""
    match shapes:
        case [((*batch, num_queries, num_heads, _), logsumexp), *_]:
            fits = logsumexp == (*batch, num_heads, num_queries)
            return fits and all(pair == shapes[0] for pair in shapes)
    return False
