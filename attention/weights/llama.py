"""Llama 2 and 3 (Dubey et al. 2024), Mistral (Jiang et al. 2023) and Qwen 2 (Yang et al. 2024)."""

from typing import Any

from attention.modules import Rotary, TransformerConfig
from attention.primitives.choice import one_of
from attention.weights.rules import (
    Family,
    Rule,
    Settings,
    attention,
    language_model,
    linear,
    norm,
    transposed,
)


def config(settings: Settings) -> TransformerConfig:
    """Return the config of a checkpoint."""
    attention_bias = settings.get("attention_bias", False)
    settings.require("mlp_bias", attention_bias)
    return TransformerConfig(
        width=settings["hidden_size"],
        num_heads=settings["num_attention_heads"],
        num_kv_heads=settings.get("num_key_value_heads"),
        head_width=settings.get("head_dim"),
        hidden=settings["intermediate_size"],
        activation=settings.activation("hidden_act", "silu"),
        gated=True,
        norm="rms",
        norm_epsilon=settings.get("rms_norm_eps", 1e-6),
        positions="rotary",
        rotary=rotary(settings),
        max_length=settings["max_position_embeddings"],
        decoder_layers=settings["num_hidden_layers"],
        tie="output" if settings.get("tie_word_embeddings", False) else "none",
        use_bias=attention_bias,
        qkv_bias=attention_bias or settings["model_type"] == "qwen2",
        embedding_scale=1.0,
        attention_dropout=settings.get("attention_dropout", 0.0),
        per_layer=windows(settings),
    )


def rotary(settings: Settings) -> Rotary:
    """Return the rotary positions, from the fields of old and of new versions of transformers.

    Raises:
        ValueError: a scaling that is not supported, or without one of its fields.
    """
    given = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    base = settings.get("rope_theta", 10_000.0)
    fields = Settings({"rope_theta": base, **given}, model_type=settings["model_type"])
    for each in (settings, fields):
        each.require("partial_rotary_factor", 1.0, None)
    kind = fields.get("rope_type", fields.get("type", "default"))
    one_of("rope_type", kind, ("default", "linear", "llama3"))
    base = fields["rope_theta"]
    if kind == "default":
        return Rotary(base=base)
    if kind == "linear":
        return Rotary(base=base, scaling=kind, factor=fields["factor"])
    for name, value in (("low_freq_factor", 1), ("high_freq_factor", 4)):
        if fields[name] != value:
            raise ValueError(f"rope_type 'llama3' needs {name}={value}, got {fields[name]}")
    length = fields["original_max_position_embeddings"]
    return Rotary(base=base, scaling=kind, factor=fields["factor"], original_length=length)


def windows(settings: Settings) -> list[dict[str, Any]]:
    """Return the window of each layer, as `TransformerConfig.per_layer`."""
    is_mistral = settings["model_type"] == "mistral"
    window = settings.get("sliding_window", 4096 if is_mistral else None)
    kinds = settings.get("layer_types")
    if window is None or not (is_mistral or settings.get("use_sliding_window")):
        return []
    if kinds is None:
        full = 0 if is_mistral else settings.get("max_window_layers", 28)
        kinds = [
            "full_attention" if index < full else "sliding_attention"
            for index in range(settings["num_hidden_layers"])
        ]
    return [{"window": window if kind == "sliding_attention" else None} for kind in kinds]


def rules(settings: Settings) -> list[Rule]:
    """Return the rules of a checkpoint."""
    del settings
    ours, theirs = "decoder.layers.{i}", "model.layers.{i}"
    feed_forward = f"{ours}.feed_forward.sublayer"
    projections = ("q_proj", "k_proj", "v_proj", "o_proj")
    return [
        Rule("embedding.tokens", "model.embed_tokens.weight"),
        *attention(f"{ours}.self_attention.sublayer", f"{theirs}.self_attn", projections),
        *norm(f"{ours}.self_attention.norm", f"{theirs}.input_layernorm"),
        *linear(f"{feed_forward}.gate", f"{theirs}.mlp.gate_proj"),
        *linear(f"{feed_forward}.up", f"{theirs}.mlp.up_proj"),
        *linear(f"{feed_forward}.down", f"{theirs}.mlp.down_proj"),
        *norm(f"{ours}.feed_forward.norm", f"{theirs}.post_attention_layernorm"),
        *norm("decoder.norm", "model.norm"),
        Rule("output.kernel", "lm_head.weight", transposed()),
    ]


LLAMA = Family(
    config,
    language_model,
    rules,
    ignored=("lm_head.weight", "model.layers.*.self_attn.rotary_emb.inv_freq"),
)
