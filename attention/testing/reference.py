"""The equation and its derivatives in float64 NumPy, independent of the tested functions."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Score = Callable[[np.ndarray], np.ndarray]  # of the products [B, N, T, S]


class Attended(NamedTuple):
    """Output `[B, T, N, Hv]`, weights `[B, N, T, S]` before dropout, logsumexp `[B, N, T]`."""

    output: np.ndarray
    weights: np.ndarray
    logsumexp: np.ndarray


class Gradients(NamedTuple):
    """Gradients of query, key, value, and of the scores `[B, N, T, S]` before the softmax."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    scores: np.ndarray


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    mask: np.ndarray | None = None,
    *,
    scale: float | None = None,
    score: Score = lambda scores: scores,
    keep: np.ndarray | float = 1.0,
) -> Attended:
    """Compute softmax(score(scale · q kᵀ) + mask) v, where query head n reads key head n // G.

    Args:
        query: `[B, T, N, H]`.
        key: `[B, S, K, H]`.
        value: `[B, S, K, Hv]`.
        mask: bool `[B, T, S]`.
        scale: 1/√H by default.
        score: changes the products, `[B, N, T, S]`.
        keep: multiplies the weights, `[B, N, T, S]`.
    """
    groups = query.shape[2] // key.shape[2]
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    key, value = (np.repeat(array, groups, axis=2) for array in (key, value))
    scores = score(scale * np.einsum("BTNH,BSNH->BNTS", query, key))
    if mask is not None:
        scores = np.where(mask[:, None], scores, -np.inf)
    peak = scores.max(axis=-1, keepdims=True, initial=np.finfo(np.float64).min)
    exponentials = np.exp(scores - peak)
    total = exponentials.sum(axis=-1, keepdims=True)
    weights = exponentials / np.where(total == 0, 1, total)
    with np.errstate(divide="ignore"):  # the logsumexp of a fully masked row is -inf
        logsumexp = np.where(total == 0, -np.inf, np.log(total) + peak)[..., 0]
    return Attended(np.einsum("BNTS,BSNH->BTNH", keep * weights, value), weights, logsumexp)


def gradients(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    mask: np.ndarray | None = None,
    *,
    output: np.ndarray | float = 0.0,
    logsumexp: np.ndarray | float = 0.0,
    score: Score = lambda scores: scores,
    keep: np.ndarray | float = 1.0,
) -> Gradients:
    """Return the gradients for cotangents of the output and of the logsumexp.

    The scale is 1/√H. The score must be analytic: its derivative is taken by a complex step.
    """
    groups, scale = query.shape[2] // key.shape[2], query.shape[-1] ** -0.5
    weights = attention(query, key, value, mask, score=score, keep=keep).weights
    num_kv_heads = key.shape[2]
    key, value = (np.repeat(array, groups, axis=2) for array in (key, value))
    output = np.broadcast_to(output, (*query.shape[:3], value.shape[-1]))
    logsumexp = np.broadcast_to(logsumexp, weights.shape[:3])
    of_weights = keep * np.einsum("BTNH,BSNH->BNTS", output, value)
    mean = (weights * of_weights).sum(axis=-1, keepdims=True)
    of_scores = weights * (of_weights - mean + logsumexp[..., None])
    products = scale * np.einsum("BTNH,BSNH->BNTS", query, key)
    of_products = of_scores * score(products + 1e-30j).imag / 1e-30

    def of_group(array: np.ndarray) -> np.ndarray:
        return array.reshape(*array.shape[:2], num_kv_heads, groups, -1).sum(axis=3)

    return Gradients(
        query=scale * np.einsum("BNTS,BSNH->BTNH", of_products, key),
        key=of_group(scale * np.einsum("BNTS,BTNH->BSNH", of_products, query)),
        value=of_group(np.einsum("BNTS,BTNH->BSNH", keep * weights, output)),
        scores=of_scores,
    )
