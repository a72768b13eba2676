"""Softmax over the keys, where hidden keys are scores of -inf and a row may be hidden whole."""

import jax
import jax.numpy as jnp
from jax import Array


def softmax(scores: Array) -> tuple[Array, Array]:
    """Normalises exp(scores) over the last axis, in the dtype of the scores.

    A row of -inf alone has nothing to normalise: its weights are 0 (no NaN, no average), its
    logsumexp is -inf, and so are 0 its derivatives of every order.

    Args:
        scores: `[..., S]`, -inf = hidden.

    Returns:
        Weights `[..., S]` and logsumexp `[...]`.
    """
    # The largest score is subtracted for range only: it cancels, and so has no derivative.
    peak = jnp.max(scores, axis=-1, keepdims=True, initial=jnp.finfo(scores.dtype).min)
    peak = jax.lax.stop_gradient(peak)
    exponentials = jnp.exp(scores - peak)
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    empty = total == 0
    weights = exponentials / jnp.where(empty, 1, total)
    logsumexp = jnp.where(empty, -jnp.inf, jnp.log(jnp.where(empty, 1, total)) + peak)
    return weights, logsumexp[..., 0]
