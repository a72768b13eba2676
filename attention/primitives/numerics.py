"""Precision, non-finite numbers and the softmax, for all implementations.

NaN and infinities in the inputs reach the queries that may attend to them, and no others. A weight
of 0 does not remove a NaN: 0 · NaN is NaN in the sum over values, and again in the products of the
backward pass. So the products use inputs whose non-finite numbers are replaced by 0, and a NaN is
added to the score of every pair with a non-finite query, key or value, before the mask. The softmax
spreads it over the visible pairs of that query, forward and backward.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.scores import AttentionSinks


def score_dtype(*arrays: Array) -> jnp.dtype:
    """Return float64 if any array is float64, else float32."""
    is_double = any(array.dtype == jnp.float64 for array in arrays)
    return jnp.dtype(jnp.float64 if is_double else jnp.float32)


def wide(*arrays: Array) -> tuple[Array, ...]:
    """Return the arrays in float32, or all in float64 if one of them is float64."""
    return tuple(array.astype(score_dtype(*arrays)) for array in arrays)


def product(equation: str, left: Array, right: Array, dtype: jnp.dtype, precision: str) -> Array:
    """Multiply in the dtype of the factors (`dtype` if they differ), and accumulate in `dtype`."""
    factors = left.dtype if left.dtype == right.dtype else dtype
    left, right = left.astype(factors), right.astype(factors)
    return jnp.einsum(equation, left, right, precision=precision, preferred_element_type=dtype)


@jax.custom_jvp
def derive_as(value: Array, other: Array) -> Array:
    """Return `value`, whose derivatives are those of `other`, computed in another way."""
    return value


derive_as.defjvp(lambda primals, tangents: (derive_as(*primals), tangents[1]))


def replace_nonfinite(array: Array) -> tuple[Array, Array]:
    """Replace non-finite numbers of `[..., H]` by 0; return also which rows `[...]` had one.

    Tangents pass through, so that a visible NaN gets the gradient of its pair, which is NaN.
    """
    is_finite = jnp.isfinite(array)
    # No stop_gradient: where jax 0.10 drops the rule of `derive_as`, finite numbers keep theirs.
    return derive_as(jnp.where(is_finite, array, 0), array), ~is_finite.all(axis=-1)


def replace_nonfinite_keys(key: Array, value: Array) -> tuple[Array, Array, Array]:
    """Replace them in both by 0; return also in which rows `[..., S]` one was not finite."""
    (key, of_key), (value, of_value) = replace_nonfinite(key), replace_nonfinite(value)
    return key, value, of_key | of_value


def nan_where(flags: Array, dtype: jnp.dtype) -> Array:
    """Return NaN where a flag is True and 0 elsewhere: the number to add to scores."""
    return jnp.where(flags, jnp.nan, 0.0).astype(dtype)


def nan_rows(output: Array, logsumexp: Array) -> Array:
    """Set the output `[..., Hv]` to NaN where the logsumexp is NaN, and block its cotangent there.

    That cotangent is NaN too, and 0 · NaN would reach the values of masked keys.
    """
    return jnp.where(jnp.isnan(logsumexp)[..., None], jnp.nan, output)


@jax.custom_jvp
def softmax(scores: Array) -> tuple[Array, Array]:
    """Normalize exp(scores) over the last axis, in the dtype of the scores.

    Returns weights `[..., S]` and logsumexp `[...]`. A score of -inf is masked; a row of them has
    weights 0, logsumexp -inf, and all its derivatives are 0.
    """
    peak = jnp.max(scores, axis=-1, keepdims=True, initial=jnp.finfo(scores.dtype).min)
    # A compiler may round scores differently here than in the maximum: huge ones then exceed it.
    exponentials = jnp.exp(jnp.minimum(scores - peak, 0))
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    empty = total == 0
    weights = exponentials / jnp.where(empty, 1, total)
    logsumexp = jnp.where(empty, -jnp.inf, jnp.log(jnp.where(empty, 1, total)) + peak)
    return weights, logsumexp[..., 0]


@softmax.defjvp
def _softmax_jvp(
    primals: tuple[Array], tangents: tuple[Array]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """With weights p, scores s and logsumexp L: dL = Σ p ds and dp = p (ds - dL).

    Written by hand because the rule that JAX derives passes over `[..., S]` more often, and so
    that a masked key has no part in it: 0 · NaN would be NaN.
    """
    (scores,), (d_scores,) = primals, tangents
    weights, logsumexp = softmax(scores)
    masked = jnp.isneginf(scores)

    def weighted(array: Array) -> Array:
        return jnp.where(masked | (weights == 0), 0, weights * array)

    d_logsumexp = jnp.sum(weighted(d_scores), axis=-1)
    d_weights = weighted(d_scores - d_logsumexp[..., None])
    return (weights, logsumexp), (d_weights, d_logsumexp)


def share_with_sinks(
    results: Mapping[str, Array], sinks: Sequence[AttentionSinks]
) -> dict[str, Array]:
    """Add attention sinks to the softmax denominator of finished results.

    A sink is a key with value 0: output `[..., T, N, Hv]` and weights `[..., N, T, S]`, if they
    are in the results, shrink by the same factor.
    """
    results = dict(results)
    for sink in sinks:
        before = results["logsumexp"]
        empty = jnp.isneginf(before)
        visible = jnp.where(empty, 0, before)
        logit = jnp.where(empty, 0, sink.logits[..., None].astype(before.dtype))
        after = jnp.logaddexp(visible, logit)
        share = jnp.where(empty, 1, jnp.exp(visible - after))
        results["logsumexp"] = jnp.where(empty, before, after)
        output, factor = results["output"], jnp.swapaxes(share, -1, -2)[..., None]
        results["output"] = (output.astype(before.dtype) * factor).astype(output.dtype)
        if "weights" in results:
            weights = results["weights"]  # those of masked keys stay 0 beside a share that is NaN
            results["weights"] = jnp.where(weights == 0, 0, weights * share[..., None])
    return results
