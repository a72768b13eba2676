"""A correct attention in NumPy; each step can be replaced by a wrong one (a mutant)."""

import functools

import jax
import numpy as np

from attention.primitives.dropout import keep_factor
from attention.primitives.masks import Mask, to_array

SUPPORTS = {
    *("mask", "predicates", "scale", "cross", "grouped", "value_width", "leading_axes"),
    *("weights", "logsumexp", "dropout", "dropout_by_position", "bfloat16", "float16"),
}


# Compiled for the largest sizes, of which smaller ones are slices.
TO_ARRAY, KEEP_FACTOR = jax.jit(to_array), jax.jit(keep_factor)
LARGEST = 272


def kv_head(num_heads, num_kv_heads):
    """Return the key/value head of each query head."""
    return np.arange(num_heads) // (num_heads // num_kv_heads)


def dense(mask, positions, T, S):
    """Return a mask as a bool array."""
    if not isinstance(mask, Mask):
        return None if mask is None else mask[..., 0, :, :]
    positions = (np.arange(T), np.arange(S)) if positions is None else positions
    padded = [
        np.pad(x, [(0, 0)] * (np.ndim(x) - 1) + [(0, LARGEST - np.shape(x)[-1])]).astype(np.int32)
        for x in positions
    ]
    return np.asarray(TO_ARRAY(mask, *padded))[..., :T, :S]


def exponentials(scores):
    """Return exponentials without overflow, and 0 for -inf."""
    peak = scores.max(axis=-1, keepdims=True)
    return np.exp(scores - np.where(np.isfinite(peak), peak, 0))


def normalise(exponentials, allowed):
    """Return weights with the sum 1, or 0 for a fully masked row."""
    total = exponentials.sum(axis=-1, keepdims=True)
    return exponentials / np.where(total == 0, 1, total)


def weighted_sum(weights, value, dtype):
    """Return the sum over keys, where a weight of 0 times NaN is 0."""
    products = weights[..., None] * np.moveaxis(value, -2, -3)[..., None, :, :]
    return np.where(weights[..., None] == 0, 0, products).sum(axis=-2)


def keep(dropout, N, T, S):
    """Return the dropout factor of each weight."""
    positions = np.arange(80, dtype=np.int32)  # more than the cases of dropout have
    return np.asarray(KEEP_FACTOR(dropout, positions[:8], positions, positions))[:N, :T, :S]


def at_positions(factor, query_positions, key_positions):
    """Return the dropout factors `[N, T, S]` at positions below T and S."""
    return factor[:, query_positions][:, :, key_positions]


def finish(output, dtype, returning):
    """Return the output in its dtype."""
    return output.astype(dtype)


@np.errstate(invalid="ignore", over="ignore")
def attention(query, key, value, *, mask=None, positions=None, scale=None, dropout=None,
              returning=(), **steps):  # fmt: skip
    """Compute softmax(q kᵀ / √d + mask) v; each keyword of `steps` replaces a step."""
    step = steps.get
    T, N, S, K = query.shape[-3], query.shape[-2], key.shape[-3], key.shape[-2]
    query, key, wide = (np.asarray(x, np.float64) for x in (query, key, value))
    heads = step("kv_head", kv_head)(N, K)
    key, wide = key[..., heads, :], wide[..., heads, :]
    scale = step("factor", lambda scale, H: H**-0.5 if scale is None else scale)(
        scale, query.shape[-1]
    )
    scores = scale * np.einsum("...TNH,...SNH->...NTS", query, key)
    scores = step("scores", lambda scores, dtype: scores)(scores, value.dtype)
    allowed = step("dense", dense)(mask, positions, T, S)
    allowed = True if allowed is None else allowed[..., None, :, :]
    scores = np.where(allowed, scores, -np.inf)
    weights = step("normalise", normalise)(step("exponentials", exponentials)(scores), allowed)
    factor = 1 if dropout is None else step("keep", keep)(dropout, N, T, S)
    if dropout is not None and positions is not None:
        factor = step("at_positions", at_positions)(factor, *positions)
    kept = weights * factor
    output = np.moveaxis(step("weighted_sum", weighted_sum)(kept, wide, value.dtype), -3, -2)
    output = step("finish", finish)(output, value.dtype, returning)
    if not returning:
        return output
    logsumexp = np.logaddexp.reduce(scores, axis=-1)
    weights = step("returned", lambda weights, kept: weights)(weights, kept)
    extras = {"weights": weights, "logsumexp": logsumexp}
    extras = {name: extras[name] for name in returning}
    return output, step("extras", lambda extras: extras)(extras)


def mutant(**steps):
    """Return `attention` with some steps replaced."""
    return functools.partial(attention, **steps)
