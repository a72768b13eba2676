"""Softmax over the keys, where hidden keys are scores of -inf and a row may be hidden whole."""

import jax
import jax.numpy as jnp
from jax import Array


@jax.custom_jvp
def softmax(scores: Array) -> tuple[Array, Array]:
    """Normalises exp(scores) over the last axis, in the dtype of the scores.

    A row of -inf alone has nothing to normalise: its weights are 0 (no NaN, no average), its
    logsumexp is -inf, and so are 0 its derivatives of every order.

    Args:
        scores: `[..., S]`, -inf = hidden.

    Returns:
        Weights `[..., S]` and logsumexp `[...]`.
    """
    # The largest score is subtracted for range only: it cancels.
    peak = jnp.max(scores, axis=-1, keepdims=True, initial=jnp.finfo(scores.dtype).min)
    exponentials = jnp.exp(scores - peak)
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    empty = total == 0
    weights = exponentials / jnp.where(empty, 1, total)
    logsumexp = jnp.where(empty, -jnp.inf, jnp.log(jnp.where(empty, 1, total)) + peak)
    return weights, logsumexp[..., 0]


@softmax.defjvp
def _derivative(
    primals: tuple[Array], tangents: tuple[Array]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """With weights p, scores s and logsumexp L: dL = Σ p ds and dp = p (ds - dL).

    Written out, because what JAX derives from the steps above passes over `[..., S]` more often;
    and so that a weight of 0 has no part in it, not even with 0 · NaN.
    """
    (scores,), (d_scores,) = primals, tangents
    weights, logsumexp = softmax(scores)

    def weighted(array: Array) -> Array:
        return jnp.where(weights == 0, 0, weights * array)

    d_logsumexp = jnp.sum(weighted(d_scores), axis=-1)
    d_weights = weighted(d_scores - d_logsumexp[..., None])
    return (weights, logsumexp), (d_weights, d_logsumexp)
