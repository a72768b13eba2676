"""An encoder with one answer for all it has read: which class."""

from collections.abc import Callable

import jax.numpy as jnp
from flax import nnx
from jax import Array

from attention.modules.config import TransformerConfig
from attention.modules.dropout import split_key
from attention.modules.linear import Linear
from attention.modules.table import table
from attention.modules.transformer import Encoder
from attention.primitives import masks
from attention.primitives.choice import one_of

POOLINGS = ("mean", "first")


class Classifier(nnx.Module):
    """Embeds inputs, reads them on both sides, makes one vector of them, and scores the classes.

    The vector is the mean of what was read, or that of a learned vector put in front, which
    belongs to no input and so is free to gather what matters ("[CLS]" of Devlin et al. 2019,
    section 3; Dosovitskiy et al. 2021, equation 4). What it is made from does not matter: an
    `Embedding` reads words, a `PatchEmbedding` images.
    """

    def __init__(
        self,
        config: TransformerConfig,
        embedding: Callable[..., Array],
        *,
        num_classes: int,
        pooling: str = "mean",
        rngs: nnx.Rngs,
    ) -> None:
        """Makes the encoder, the output layer and, if pooling is "first", the vector in front.

        Args:
            config: of the encoder.
            embedding: a module that maps inputs to `[..., S, D]` and takes a `key`.
            num_classes: C.
            pooling: "mean" or "first".
            rngs: source of the initial parameters.

        Raises:
            ValueError: an unknown pooling.
        """
        one_of("pooling", pooling, POOLINGS)
        self.embedding = embedding
        self.encoder = Encoder(config, rngs=rngs)
        self.first = (
            table((1, config.width), config.width, rngs=rngs) if pooling == "first" else None
        )
        self.output = Linear(config.width, num_classes, rngs=rngs)

    def __call__(
        self, inputs: Array, *, lengths: Array | None = None, key: Array | None = None
    ) -> Array:
        """Maps inputs to scores of the classes `[..., C]`.

        Args:
            inputs: what the embedding takes, as ids `[..., S]`.
            lengths: `[...]`, how many of the S vectors of each row are no padding; all by default.
            key: random key for dropout, none without.

        Raises:
            ValueError: as the embedding.
        """
        embed_key, layer_key = split_key(key, 2)
        vectors = self.embedding(inputs, key=embed_key)
        if self.first is not None:
            vectors = _behind(self.first[...] * vectors.shape[-1] ** 0.5, vectors)
            lengths = None if lengths is None else lengths + 1
        mask = None if lengths is None else masks.lengths(lengths)
        features, _ = self.encoder(vectors, mask=mask, key=layer_key)
        pooled = features[..., 0, :] if self.first is not None else mean(features, lengths)
        return self.output(pooled)


def mean(features: Array, lengths: Array | None) -> Array:
    """The mean of the first `lengths` `[...]` of the features `[..., S, D]`; 0 of none."""
    if lengths is None:
        return features.mean(axis=-2)
    counts = jnp.broadcast_to(jnp.arange(features.shape[-2]), features.shape[:-1])
    counts = counts < lengths[..., None]
    total = jnp.sum(features, axis=-2, where=counts[..., None])
    number = jnp.maximum(counts.sum(axis=-1, keepdims=True), 1)
    return total / number.astype(total.dtype)


def _behind(first: Array, vectors: Array) -> Array:
    """Vectors `[..., S, D]` behind one `[1, D]`: `[..., 1 + S, D]`."""
    front = jnp.broadcast_to(first, (*vectors.shape[:-2], *first.shape))
    return jnp.concatenate([front, vectors], axis=-2)
