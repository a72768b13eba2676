"""ViT as a classifier of images (Dosovitskiy et al. 2021)."""

import jax.numpy as jnp
from flax import nnx
from jax import Array

from attention.modules import Classifier, ClassToken, PatchEmbedding, TransformerConfig
from attention.weights import rules


class PositionedClassToken(ClassToken):
    """A class token with a separate learned position."""

    def __init__(self, width: int, **options: object) -> None:
        """Make the vector and its position; the options are those of `ClassToken`."""
        super().__init__(width, **options)
        self.position = nnx.Param(jnp.zeros_like(self.vector[...]), axes=(None, "embed"))

    def before(self, vectors: Array, lengths: Array | None) -> tuple[Array, Array | None]:
        """Prepend the vector to `[..., S, D]`: `[..., 1 + S, D]`."""
        vectors, lengths = super().before(vectors, lengths)
        return vectors.at[..., :1, :].add(self.position[...].astype(vectors.dtype)), lengths


def image_shape(settings: rules.Settings) -> tuple[int, int, int]:
    """Return height, width and channels of the images of a checkpoint."""
    size = settings["image_size"]
    height, width = (size, size) if isinstance(size, int) else size
    return height, width, settings.get("num_channels", 3)


def _config(settings: rules.Settings) -> TransformerConfig:
    height, width, _ = image_shape(settings)
    size = settings["patch_size"]
    return TransformerConfig(
        width=settings["hidden_size"],
        num_heads=settings["num_attention_heads"],
        hidden=settings["intermediate_size"],
        activation=settings.activation("hidden_act", "gelu"),
        norm_epsilon=settings.get("layer_norm_eps", 1e-12),
        positions="learned",
        max_length=(height // size) * (width // size),
        encoder_layers=settings["num_hidden_layers"],
        qkv_bias=settings.get("qkv_bias", True),
        embedding_scale=1.0,
        dropout=settings.get("hidden_dropout_prob", 0.0),
        attention_dropout=settings.get("attention_probs_dropout_prob", 0.0),
    )


def _build(settings: rules.Settings, config: TransformerConfig, rngs: nnx.Rngs) -> Classifier:
    """Return the model of a checkpoint; it maps images `[..., height, width, channels]`."""
    embedding = PatchEmbedding.from_config(
        config, image_shape=image_shape(settings), patch_size=settings["patch_size"], rngs=rngs
    )
    num_classes = settings.get("num_labels") or len(settings.get("id2label", (0, 1)))
    model = Classifier.from_config(config, embedding, num_classes=num_classes, rngs=rngs)
    model.pooling = PositionedClassToken(config.width, param_dtype=config.param_dtype, rngs=rngs)
    return model


def _rules(settings: rules.Settings) -> list[rules.Rule]:
    ours, theirs, first = "encoder.layers.{i}", "vit.encoder.layer.{i}", "vit.embeddings"
    names = [f"attention.attention.{name}" for name in ("query", "key", "value")]
    names.append("attention.output.dense")
    dense = ("intermediate.dense", "output.dense")
    size, channels = settings["patch_size"], image_shape(settings)[2]
    kernel = rules.Layout(  # of a PyTorch Conv2d, [D, channels, size, size]
        lambda array: array.reshape(size, size, channels, -1).transpose(3, 2, 0, 1),
        lambda tensor: tensor.transpose(2, 3, 1, 0),
    )
    patch, positions = f"{first}.patch_embeddings.projection", f"{first}.position_embeddings"
    return [
        rules.Rule("embedding.projection.kernel", f"{patch}.weight", kernel),
        rules.Rule("embedding.projection.bias", f"{patch}.bias"),
        rules.Rule("pooling.vector", f"{first}.cls_token", rules.LEADING_AXIS),
        rules.Rule("pooling.position", positions, rules.LEADING_AXIS, axis=1),
        rules.Rule("embedding.positions.table", positions, rules.LEADING_AXIS, axis=1),
        *rules.residual(f"{ours}.self_attention", theirs, "layernorm_before", names),
        *rules.residual(f"{ours}.feed_forward", theirs, "layernorm_after", dense),
        *rules.norm("encoder.norm", "vit.layernorm"),
        *rules.linear("output", "classifier"),
    ]


VIT = rules.Family(_config, _build, _rules, ignored=("vit.pooler.*",))
