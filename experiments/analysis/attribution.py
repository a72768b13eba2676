"""How much each input counts for each output: by gradients, by replacement, and from attention.

A score function maps vectors `[S, D]` to outputs `[T]`; attributions are `[T, S]`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

Score = Callable[[Array], Array]

NODES = 32  # of the quadrature in one part of a path


def occlusion(score: Score, vectors: Array, replacements: Array) -> Array:
    """Return what each output loses when one vector is replaced.

    Args:
        score: of the outputs.
        vectors: `[S, D]`.
        replacements: `[S, D]`, in place of each vector.
    """

    def loss(place: Array) -> Array:
        return score(vectors) - score(vectors.at[place].set(replacements[place]))

    return jax.lax.map(loss, jnp.arange(len(vectors))).T


def gradient_times_input(score: Score, vectors: Array, baseline: Array) -> Array:
    """Return the gradient of each output times the difference to a baseline `[S, D]`."""
    return jnp.einsum("tsd,sd->ts", jax.jacrev(score)(vectors), vectors - baseline)


def integrated_gradients(
    score: Score,
    vectors: Array,
    baseline: Array,
    parts: int = 1,
    most_parts: int = 64,
    tolerance: float = 0.01,
) -> Array:
    """Return gradients integrated from a baseline to the vectors (Sundararajan et al. 2017).

    The attributions of an output sum to the difference of its score: `completeness_error`. The
    path is divided into equal parts, each with a Gauss-Legendre quadrature. Their number is doubled
    until no error exceeds the tolerance.

    Args:
        score: of the outputs.
        vectors: `[S, D]`.
        baseline: `[S, D]`.
        parts: of the path at first.
        most_parts: of the path; errors can exceed the tolerance if this number is too small.
        tolerance: of the completeness error.
    """
    rule = np.polynomial.legendre.leggauss(NODES)
    nodes, weights = (jnp.asarray(each / 2, vectors.dtype) for each in rule)
    change = vectors - baseline

    def integral(parts: Array) -> Array:
        def add(number: Array, total: Array) -> Array:
            part, node = jnp.divmod(number, NODES)
            place = (part + 0.5 + nodes[node]) / parts
            gradient = jax.jacrev(score)(baseline + place * change)
            return total + weights[node] * jnp.einsum("tsd,sd->ts", gradient, change)

        return jax.lax.fori_loop(0, parts * NODES, add, jnp.zeros_like(unknown)) / parts

    def is_incomplete(state: tuple[Array, Array]) -> Array:
        parts, found = state
        errors = completeness_error(found, score, vectors, baseline)
        return (parts <= most_parts) & (errors > tolerance).any()

    def refine(state: tuple[Array, Array]) -> tuple[Array, Array]:
        parts, _ = state
        return 2 * parts, integral(parts)

    unknown = jnp.full((len(score(vectors)), len(vectors)), jnp.inf, vectors.dtype)
    return jax.lax.while_loop(is_incomplete, refine, (parts, unknown))[1]


def completeness_error(attributions: Array, score: Score, vectors: Array, baseline: Array) -> Array:
    """Return |sum of attributions - difference of scores| / |difference of scores|, `[T]`."""
    difference = score(vectors) - score(baseline)
    return abs(attributions.sum(axis=-1) - difference) / jnp.maximum(abs(difference), 1e-6)


def rollout(weights: Array) -> Array:
    """Return the attention of the last layer to the inputs of the first: `[T, T]`.

    Abnar and Zuidema 2020, section 3: half of each layer is the residual connection.

    Args:
        weights: means over the heads of self-attention, `[layers, T, T]`.
    """
    total = jnp.eye(weights.shape[-1], dtype=weights.dtype)
    for layer in weights:
        total = (layer + jnp.eye(len(total), dtype=total.dtype)) @ total / 2
    return total


def deletion_drops(
    score: Score, vectors: Array, baseline: Array, attributions: Array, most: int
) -> Array:
    """Return how much each output loses when its first inputs are replaced: `[T, most]`.

    Args:
        score: of the outputs.
        vectors: `[S, D]`.
        baseline: `[S, D]`, the replacements.
        attributions: `[T, S]`; each output loses its largest first. -inf is never replaced.
        most: replaced are the first 1, 2, … up to this number of inputs.
    """
    ranks = jnp.argsort(jnp.argsort(-attributions, axis=-1), axis=-1)
    ranks = jnp.where(jnp.isneginf(attributions), most, ranks)
    before = score(vectors)

    def loss(number: Array) -> Array:
        replaced = (ranks < number)[..., None]
        inputs = jnp.where(replaced, baseline, vectors)  # [T, S, D]
        return before - jnp.diagonal(jax.vmap(score)(inputs))

    return jax.lax.map(loss, jnp.arange(1, most + 1)).T


def rank_correlations(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return Spearman's correlation of each row of two maps `[T, S]`, NaN for constant rows."""
    a, b = (ranks - ranks.mean(axis=-1, keepdims=True) for ranks in map(_ranks, (first, second)))
    norms = np.sqrt((a**2).sum(axis=-1) * (b**2).sum(axis=-1))
    return np.divide((a * b).sum(axis=-1), norms, out=np.full(len(a), np.nan), where=norms > 0)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks along the last axis; equal values have the mean of their ranks."""
    below = (values[..., None, :] < values[..., None]).sum(axis=-1)
    equal = (values[..., None, :] == values[..., None]).sum(axis=-1)
    return below + (equal + 1) / 2
