"""Exact combination of attention over disjoint sets of keys."""

from collections.abc import Iterable

import jax.numpy as jnp
from jax import Array

from attention.primitives.numerics import nan_rows, softmax


def merge_attention(partials: Iterable[tuple[Array, Array]]) -> tuple[Array, Array]:
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

    >>> import jax
    >>> from attention import attend
    >>> query, key, value = (jax.random.normal(jax.random.key(n), (6, 2, 4)) for n in range(3))
    >>> parts = slice(0, 2), slice(2, 6)
    >>> found = [attend(query, key[p], value[p], returning=("logsumexp",)) for p in parts]
    >>> partials = [(output, more["logsumexp"]) for output, more in found]
    >>> bool(jnp.allclose(merge_attention(partials)[0], attend(query, key, value), atol=1e-6))
    True
    """
    try:
        outputs, logsumexps = (jnp.stack(arrays) for arrays in zip(*partials, strict=True))
        *batch, num_queries, num_heads, _ = outputs.shape
        if logsumexps.shape != (*batch, num_heads, num_queries):
            raise ValueError(f"got {outputs.shape} and {logsumexps.shape} with an axis of pairs")
    except (TypeError, ValueError) as error:
        raise ValueError(
            "merge_attention takes one or more pairs of output [..., T, N, Hv] and logsumexp "
            "[..., N, T] of equal shapes"
        ) from error
    shares, logsumexp = softmax(jnp.moveaxis(logsumexps, 0, -1))
    # A share that is NaN would reach the masked keys of every set in the backward pass.
    shares = jnp.where(jnp.isnan(shares), 0, shares)
    shares = jnp.swapaxes(jnp.moveaxis(shares, -1, 0), -1, -2)[..., None]
    output = jnp.sum(shares * outputs.astype(shares.dtype), axis=0).astype(outputs.dtype)
    return nan_rows(output, jnp.swapaxes(logsumexp, -1, -2)), logsumexp
