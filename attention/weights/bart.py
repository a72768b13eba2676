"""BART (Lewis et al. 2020) and Marian (Junczys-Dowmunt et al. 2018)."""

from dataclasses import replace

import jax.numpy as jnp
from flax import nnx
from jax import Array

from attention.modules import EncoderDecoder, LearnedPositions, TransformerConfig
from attention.primitives.positions import sinusoidal
from attention.weights import rules

OFFSET = 2  # rows of the table of positions of BART that no token uses


class OffsetPositions(LearnedPositions):
    """Learned positions in a table whose first rows are not used."""

    def __call__(self, positions: Array, width: int) -> Array:
        """Return the vectors `[..., T, D]` of positions `[..., T]`."""
        return super().__call__(positions + OFFSET, width)


def sines_then_cosines(positions: Array, width: int) -> Array:
    """Return the numbers of `sinusoidal` with all sines in front of all cosines."""
    pairs = sinusoidal(positions, width)
    return jnp.concatenate([pairs[..., 0::2], pairs[..., 1::2]], axis=-1)


def _config(settings: rules.Settings) -> TransformerConfig:
    is_bart = settings["model_type"] == "bart"
    settings.require("decoder_attention_heads", settings["encoder_attention_heads"])
    settings.require("decoder_ffn_dim", settings["encoder_ffn_dim"])
    settings.require("normalize_before", False)
    settings.require("add_final_layer_norm", False)
    settings.require("share_encoder_decoder_embeddings", True)
    settings.require("tie_word_embeddings", True)
    return TransformerConfig(
        width=settings["d_model"],
        num_heads=settings["encoder_attention_heads"],
        hidden=settings["encoder_ffn_dim"],
        activation=settings.activation("activation_function", "gelu"),
        norm_placement="post",
        norm_epsilon=1e-5,
        positions="learned" if is_bart else "sinusoidal",
        max_length=settings["max_position_embeddings"],
        encoder_layers=settings["encoder_layers"],
        decoder_layers=settings["decoder_layers"],
        tie="all",
        output_bias=True,
        embedding_scale="sqrt_width" if settings.get("scale_embedding", False) else 1.0,
        embedding_norm=is_bart,
        dropout=settings.get("dropout", 0.1),
        attention_dropout=settings.get("attention_dropout", 0.0),
    )


def _build(settings: rules.Settings, config: TransformerConfig, rngs: nnx.Rngs) -> EncoderDecoder:
    model = rules.encoder_decoder(settings, config, rngs)
    for embedding in (model.source_embedding, model.target_embedding):
        embedding.positions = sines_then_cosines
        if settings["model_type"] == "bart":
            options = {"scale": 1.0, "param_dtype": config.param_dtype, "rngs": rngs}
            length = config.max_length
            embedding.positions = OffsetPositions(length + OFFSET, config.width, **options)
            embedding.positions.max_length = length
    return model


def _rules(_: rules.Settings) -> list[rules.Rule]:
    listed = [
        rules.Rule("target_embedding.tokens", "model.shared.weight"),
        rules.Rule("target_embedding.bias", "final_logits_bias", rules.LEADING_AXIS, default=0.0),
    ]
    for stack, embedding in (("encoder", "source_embedding"), ("decoder", "target_embedding")):
        ours, theirs = f"{stack}.layers.{{i}}", f"model.{stack}.layers.{{i}}"
        listed += [
            rules.Rule(f"{embedding}.positions.table", f"model.{stack}.embed_positions.weight"),
            *rules.norm(f"{embedding}.norm", f"model.{stack}.layernorm_embedding"),
            *rules.residual(f"{ours}.feed_forward", theirs, "final_layer_norm", ("fc1", "fc2")),
        ]
        for name, short in (("self_attention", "self_attn"), ("cross_attention", "encoder_attn")):
            names = [f"{short}.{each}_proj" for each in ("q", "k", "v", "out")]
            listed += rules.residual(f"{ours}.{name}", theirs, f"{short}_layer_norm", names)
    return listed


BART = rules.Family(
    _config,
    _build,
    _rules,
    copies={
        "lm_head.weight": "model.shared.weight",
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
    },
    ignored=("model.encoder.version", "model.decoder.version"),
    renames=((r"^(shared|encoder|decoder)\.", r"model.\1."),),
)
MARIAN = replace(
    BART,
    ignored=(*BART.ignored, "model.*.embed_positions.weight"),  # sinusoidal
)
