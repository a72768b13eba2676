"""Exact combination of attention over disjoint sets of keys."""

from collections.abc import Iterable, Sequence
from functools import reduce

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.nonfinite import nan_rows


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
    outputs, logsumexps = zip(*partials, strict=True)
    outputs = [jnp.swapaxes(output, -2, -3) for output in outputs]
    output, logsumexp = combine(outputs, logsumexps)
    return jnp.swapaxes(nan_rows(output, logsumexp), -2, -3), logsumexp


def combine(outputs: Sequence[Array], logsumexps: Sequence[Array]) -> tuple[Array, Array]:
    """Compute `merge` for outputs `[..., Hv]` and logsumexps `[...]` of equal leading axes.

    The output is finite where the logsumexp is NaN, if those of the parts are.
    """
    largest = jax.lax.stop_gradient(reduce(jnp.maximum, logsumexps))
    empty = jnp.isneginf(largest)
    largest = jnp.where(empty, 0, largest)
    parts = [jnp.exp(logsumexp - largest) for logsumexp in logsumexps]
    total = sum(parts[1:], parts[0])
    logsumexp = jnp.where(empty, -jnp.inf, jnp.log(jnp.where(empty, 1, total)) + largest)
    # A share that is NaN would reach the masked keys of every set in the backward pass.
    unused = empty | jnp.isnan(logsumexp)
    total = jnp.where(unused, 1, total)
    shares = [jnp.where(unused, 0, part / total)[..., None] for part in parts]
    shared = [
        share * output.astype(share.dtype) for share, output in zip(shares, outputs, strict=True)
    ]
    return sum(shared[1:], shared[0]).astype(outputs[0].dtype), logsumexp


def _fit(shapes: Sequence[object]) -> bool:
    """Return whether all are the shapes of output and logsumexp of one size."""
    match shapes:
        case [((*batch, num_queries, num_heads, _), logsumexp), *_]:
            fits = logsumexp == (*batch, num_heads, num_queries)
            return fits and all(pair == shapes[0] for pair in shapes)
    return False
