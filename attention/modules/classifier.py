"""An encoder that scores classes of a whole input."""

from collections.abc import Callable, Collection
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from attention.modules.config import TransformerConfig
from attention.modules.context import Context, Output, apply_layer
from attention.modules.dropout import split_rng
from attention.modules.linear import linear, named
from attention.modules.table import table
from attention.modules.transformer import Encoder, MakeLayer


class MeanPooling(nnx.Module):
    """The mean of the features of the valid tokens."""

    def before(self, vectors: Array, lengths: Array | None) -> tuple[Array, Array | None]:
        """Return the inputs of the encoder as they are."""
        return vectors, lengths

    def __call__(self, features: Array, lengths: Array | None) -> Array:
        """Map `[..., S, D]` to `[..., D]`; 0 for rows without a token."""
        return mean(features, lengths)


class ClassToken(nnx.Module):
    """The features of a learned vector in front of the inputs.

    "[CLS]" of Devlin et al. 2019, section 3; Dosovitskiy et al. 2021, equation 4.
    """

    def __init__(self, width: int, *, param_dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs) -> None:
        """Make the vector, with entries of unit variance."""
        init = nnx.initializers.normal(1.0)
        self.vector = table((1, width), (None, "embed"), init=init, dtype=param_dtype, rngs=rngs)

    def before(self, vectors: Array, lengths: Array | None) -> tuple[Array, Array | None]:
        """Prepend the vector to `[..., S, D]`: `[..., 1 + S, D]`."""
        shape = (*vectors.shape[:-2], 1, vectors.shape[-1])
        front = jnp.broadcast_to(self.vector[...], shape).astype(vectors.dtype)
        lengths = None if lengths is None else lengths + 1
        return jnp.concatenate([front, vectors], axis=-2), lengths

    def __call__(self, features: Array, lengths: Array | None) -> Array:
        """Map `[..., 1 + S, D]` to `[..., D]`."""
        del lengths
        return features[..., 0, :]


# name -> f(width, *, param_dtype, rngs). Add your own.
POOLINGS: dict[str, Callable[..., Any]] = {
    "mean": lambda width, *, param_dtype, rngs: MeanPooling(),
    "class_token": ClassToken,
}


class Classifier(nnx.Module):
    """Embed inputs, encode them, pool the features, and score classes."""

    def __init__(
        self,
        embedding: Callable[..., Array],
        encoder: Encoder,
        pooling: MeanPooling | ClassToken,
        output: Callable[[Array], Array],
    ) -> None:
        """Assemble a classifier.

        Args:
            embedding: `embedding(inputs, rng=...)` to `[..., S, D]`, such as `Embedding` or
                `PatchEmbedding`.
            encoder: maps `[..., S, D]` to `[..., S, D]`.
            pooling: a module with the methods of `ClassToken`.
            output: maps pooled features `[..., D]` to scores `[..., C]`.
        """
        self.embedding = embedding
        self.encoder = encoder
        self.pooling = pooling
        self.output = output

    @classmethod
    def from_config(
        cls,
        config: TransformerConfig,
        embedding: Callable[..., Array],
        *,
        num_classes: int,
        pooling: str | Callable[..., Any] = "mean",
        rngs: nnx.Rngs,
        make_layer: MakeLayer | None = None,
    ) -> "Classifier":
        """Make the encoder of a config and a linear output.

        Args:
            config: of the encoder.
            embedding: as in `__init__`.
            num_classes: C.
            pooling: a name in `POOLINGS`, or a function like those.
            rngs: source of the initial parameters.
            make_layer: as in `Encoder.from_config`.

        Raises:
            ValueError: an unknown pooling.
        """
        make_pooling = named("pooling", pooling, "POOLINGS", POOLINGS)
        kinds = {"param_dtype": config.param_dtype, "rngs": rngs}
        return cls(
            embedding,
            Encoder.from_config(config, rngs=rngs, make_layer=make_layer),
            make_pooling(config.width, **kinds),
            linear({"embed": config.width}, {"classes": num_classes}, dtype=config.dtype, **kinds),
        )

    def __call__(
        self,
        inputs: Array,
        *,
        lengths: Array | None = None,
        rng: Array | None = None,
        returning: Collection[str] = (),
        **options: Callable[..., Any],
    ) -> Output:
        """Score the classes: an output with logits `[..., C]`.

        Args:
            inputs: what the embedding takes, such as ids `[..., S]`.
            lengths: `[...]`, number of valid tokens per row; S if None.
            rng: random key of dropout; None turns dropout off.
            returning: as in `Context`.
            options: `constrain` and `attend`, as in `Context`.

        Raises:
            ValueError: as the embedding.
        """
        embedding_rng, layers_rng = split_rng(rng, 2)
        vectors = self.embedding(inputs, rng=embedding_rng)
        vectors, lengths = self.pooling.before(vectors, lengths)
        context = Context(lengths=lengths, rng=layers_rng, returning=returning, **options)
        output = apply_layer(self.encoder, vectors, context)
        logits = self.output(self.pooling(output.features, lengths))
        return output._replace(logits=context.shard(logits, "classes"))


def mean(features: Array, lengths: Array | None) -> Array:
    """Return the mean of the first `lengths` `[...]` features of `[..., S, D]`; 0 of none."""
    if lengths is None:
        return features.mean(axis=-2)
    counts = jnp.broadcast_to(jnp.arange(features.shape[-2]), features.shape[:-1])
    counts = counts < lengths[..., None]
    total = jnp.sum(features, axis=-2, where=counts[..., None])
    number = jnp.maximum(counts.sum(axis=-1, keepdims=True), 1)
    return total / number.astype(total.dtype)
