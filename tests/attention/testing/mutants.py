"""A correct attention in NumPy, with a place for every mistake that a mutant makes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from attention.primitives.dense_mask import allowed_pairs
from attention.primitives.dropout import Dropout, keep_factor
from attention.primitives.masks import Mask

SUPPORTS = {
    *("mask", "predicates", "scale", "cross", "grouped", "value_width", "leading_axes"),
    *("weights", "logsumexp", "dropout", "dropout_by_position", "bfloat16", "float16"),
}


def kv_head(num_heads, num_kv_heads):
    """Of each query head."""
    return np.arange(num_heads) // (num_heads // num_kv_heads)


def dense(mask, positions, T, S):
    """A mask as a bool array."""
    if not isinstance(mask, Mask):
        return mask
    positions = (np.arange(T), np.arange(S)) if positions is None else positions
    many = [np.pad(at, (0, 272 - len(at))).astype(np.int32) for at in positions]  # one compilation
    return np.asarray(allowed_pairs(mask, *many))[..., :T, :S]


def exponentials(scores):
    """In the range of a float, and 0 for -inf."""
    peak = scores.max(axis=-1, keepdims=True)
    return np.exp(scores - np.where(np.isfinite(peak), peak, 0))


def normalise(exponentials, allowed):
    """Weights that add up to one, or to nothing."""
    del allowed
    total = exponentials.sum(axis=-1, keepdims=True)
    return exponentials / np.where(total == 0, 1, total)


def weighted_sum(weights, value):
    """Of what has a weight: 0 · NaN is 0 here."""
    products = weights[..., None] * np.moveaxis(value, -2, -3)[..., None, :, :]
    return np.where(weights[..., None] == 0, 0, products).sum(axis=-2)


def keep(dropout, N, T, S):
    """What dropout multiplies weights by."""
    words = tuple(jax.random.key_data(dropout.key).tolist())
    return _keep(words, dropout.rate)[:N, :T, :S]


@functools.lru_cache
def _keep(words, rate):
    """One compilation for all sizes, since positions alone decide."""
    key = jax.random.wrap_key_data(jnp.asarray(words, jnp.uint32))
    return np.asarray(keep_factor(Dropout(key, rate), 8, jnp.arange(128), jnp.arange(64)))


def finish(output, dtype, returning):
    """The output as it is returned."""
    del returning
    return output.astype(dtype)


@np.errstate(invalid="ignore", over="ignore")
def attention(query, key, value, *, mask=None, positions=None, scale=None, dropout=None,
              returning=(), **mistakes):  # fmt: skip
    """softmax(q kᵀ / √d + mask) v; each keyword of `mistakes` replaces a step by a wrong one."""
    step = functools.partial(mistakes.get)
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
    kept = weights if dropout is None else weights * step("keep", keep)(dropout, N, T, S)
    output = np.moveaxis(step("weighted_sum", weighted_sum)(kept, wide), -3, -2)
    output = step("finish", finish)(output, value.dtype, returning)
    if not returning:
        return output
    logsumexp = np.logaddexp.reduce(scores, axis=-1)
    extras = {"weights": weights, "logsumexp": logsumexp}
    extras = {name: extras[name] for name in returning}
    return output, step("extras", lambda extras: extras)(extras)


def mutant(**mistakes):
    """`attention` with mistakes."""
    return functools.partial(attention, **mistakes)
