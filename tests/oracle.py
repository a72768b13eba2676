"""Attention in float64 and plain loops, independent of the library.

It imports nothing from `attention` and vectorises nothing, so that it is easy to verify by reading.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Allowed = Callable[[int, int], bool] | np.ndarray | None
Score = Callable[[float, int, int, int], float]  # of (score, row, column, head)


class Attended(NamedTuple):
    """Output [..., T, N, Hv], weights [..., N, T, S] and logsumexp [..., N, T], in float64."""

    output: np.ndarray
    weights: np.ndarray
    logsumexp: np.ndarray


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    allowed: Allowed = None,
    scale: float | None = None,
    keep: np.ndarray | None = None,
    score: Score = lambda score, row, column, head: score,
    sinks: np.ndarray | None = None,
) -> Attended:
    """Compute softmax(scale · q kᵀ + mask) v, where query head n reads key head n // G.

    Args:
        query: `[..., T, N, H]`.
        key: `[..., S, K, H]`.
        value: `[..., S, K, Hv]`.
        allowed: a function of (row, column), or a bool array `[..., T, S]`; None allows all.
        scale: 1/√H by default.
        keep: `[..., N, T, S]`, multiplies the weights of the output (dropout).
        score: changes a scaled product.
        sinks: `[N]`, logits added to the softmax denominator of rows with a visible key.
    """
    query, key, value = (np.asarray(array, np.float64) for array in (query, key, value))
    if query.ndim == 3:
        return _example(query, key, value, allowed, scale, keep, score, sinks)
    examples = [
        attention(
            query[b],
            key[b],
            value[b],
            allowed[b] if isinstance(allowed, np.ndarray) and allowed.ndim > 2 else allowed,
            scale,
            None if keep is None else keep[b],
            score,
            sinks,
        )
        for b in range(len(query))
    ]
    return Attended(*(np.stack(arrays) for arrays in zip(*examples, strict=True)))


def _example(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    allowed: Allowed,
    scale: float | None,
    keep: np.ndarray | None,
    score: Score,
    sinks: np.ndarray | None,
) -> Attended:
    (T, N, H), (S, K, _), Hv = query.shape, key.shape, value.shape[-1]
    G = N // K
    scale = 1 / math.sqrt(H) if scale is None else float(scale)
    output, weights = np.zeros((T, N, Hv)), np.zeros((N, T, S))
    logsumexp = np.full((N, T), -math.inf)
    for n in range(N):
        for t in range(T):
            visible = [s for s in range(S) if _may_attend(allowed, t, s)]
            if not visible:
                continue
            products = {
                s: scale * sum(query[t, n, h] * key[s, n // G, h] for h in range(H))
                for s in visible
            }
            scores = {s: score(product, t, s, n) for s, product in products.items()}
            in_the_sum = [*scores.values(), *([] if sinks is None else [float(sinks[n])])]
            peak = max(in_the_sum)
            total = sum(math.exp(one - peak) for one in in_the_sum)
            logsumexp[n, t] = peak + math.log(total)
            for s in visible:
                weights[n, t, s] = math.exp(scores[s] - peak) / total
                kept = 1.0 if keep is None else keep[n, t, s]
                for h in range(Hv):
                    output[t, n, h] += kept * weights[n, t, s] * value[s, n // G, h]
    return Attended(output, weights, logsumexp)


def _may_attend(allowed: Allowed, row: int, column: int) -> bool:
    if allowed is None:
        return True
    return bool(allowed(row, column) if callable(allowed) else allowed[row, column])
