"""Norms of the vectors that cross-attention adds: its weights times transformed value vectors.

A key with a large weight and a short value vector adds little (Kobayashi et al. 2020).
"""

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from attention.modules import CrossAttention


def cross_attentions(model: nnx.Module) -> dict[int, CrossAttention]:
    """Return the cross-attention of each layer of a Transformer by its number; {} of others."""
    blocks = model.decoder.layers.unstacked() if hasattr(model.decoder, "layers") else []
    sublayers = (
        getattr(getattr(block, "cross_attention", None), "sublayer", None) for block in blocks
    )
    return {
        number: each
        for number, each in enumerate(sublayers, start=1)
        if isinstance(each, CrossAttention)
    }


def value_vectors(attention: CrossAttention, source: Array) -> Array:
    """Return what each head adds for each key of weight 1: its value, projected as an output.

    Args:
        attention: of a layer.
        source: `[S, D]`, the encoder output.

    Returns:
        `[S, N, D]`.
    """
    values, projection = attention.value(source), attention.output.kernel[...]  # [S, K, Hv]
    values = jnp.repeat(values, len(projection) // values.shape[1], axis=1)
    return jnp.einsum("snh,nhd->snd", values, projection)


def affine_value_vectors(model: nnx.Module) -> dict[int, Array]:
    """Return the value vectors of an empty source vector, and of all unit vectors, by layer.

    Returns:
        `[1 + D, N, D]` for each layer. The value vectors of any source follow from them.
    """
    found = {}
    for number, attention in cross_attentions(model).items():
        width = len(attention.value.kernel[...])
        found[number] = value_vectors(attention, jnp.eye(1 + width, width, -1))
    return found


def of_source(affine: np.ndarray, source: np.ndarray) -> np.ndarray:
    """Return the value vectors `[S, N, D]` of a source `[S, D]` from `affine_value_vectors`."""
    return np.tensordot(source, affine[1:] - affine[0], axes=1) + affine[0]


def weighted_norms(weights: Array, values: Array) -> Array:
    """Return the norms of the vectors that attention adds (Kobayashi et al. 2020, equation 5).

    Args:
        weights: `[N, T, S]`, of jax or NumPy.
        values: `[S, N, D]`, of `value_vectors`.

    Returns:
        `[T, S]`, of the sum over the heads of weight times vector.
    """
    vectors = weights.transpose(2, 1, 0) @ values  # [S, T, D]
    return ((vectors**2).sum(axis=-1) ** 0.5).T
