"""Softmax over the keys, in which masked keys have score -inf and every key may be masked."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.scores import AttentionSinks


@jax.custom_jvp
def softmax(scores: Array) -> tuple[Array, Array]:
    """Normalize exp(scores) over the last axis, in the dtype of the scores.

    A row of -inf alone has weights 0, logsumexp -inf, and all its derivatives are 0.

    Args:
        scores: `[..., S]`, -inf = masked.

    Returns:
        Weights `[..., S]` and logsumexp `[...]`.
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

    A sink is a key with value 0: output and weights shrink by the same factor.

    Args:
        results: "output" `[..., T, N, Hv]`, "logsumexp" `[..., N, T]` and perhaps "weights"
            `[..., N, T, S]`, without sinks.
        sinks: any number.
    """
    results = dict(results)
    for sink in sinks:
        before = results["logsumexp"]
        empty = jnp.isneginf(before)
        visible = jnp.where(empty, 0, before)
        logit = jnp.broadcast_to(sink.logits[..., None], before.shape).astype(before.dtype)
        after = jnp.logaddexp(visible, logit)
        share = jnp.exp(visible - after)
        results["logsumexp"] = jnp.where(empty, before, after)
        output = results["output"]
        factor = jnp.swapaxes(share, -1, -2)[..., None]
        results["output"] = (output.astype(before.dtype) * factor).astype(output.dtype)
        if "weights" in results:
            weights = results["weights"]  # those of masked keys stay 0 beside a share that is NaN
            results["weights"] = jnp.where(weights == 0, 0, weights * share[..., None])
    return results
