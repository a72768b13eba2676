"""Llama 2 and 3 (Dubey et al. 2024), Mistral (Jiang et al. 2023) and Qwen 2 (Yang et al. 2024)."""

from typing import Any

from attention.modules import LanguageModel, Rotary, TransformerConfig
from attention.primitives.choice import one_of
from attention.weights import rules

FULL, SLIDING = "full_attention", "sliding_attention"  # layer_types
ROPE_FIELDS = (
    *("rope_theta", "factor", "low_freq_factor", "high_freq_factor"),
    *("original_max_position_embeddings", "partial_rotary_factor"),
)


def _config(settings: rules.Settings) -> TransformerConfig:
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
        rotary=_rotary(settings),
        max_length=settings["max_position_embeddings"],
        decoder_layers=settings["num_hidden_layers"],
        tie="output" if settings.get("tie_word_embeddings", False) else "none",
        use_bias=attention_bias,
        qkv_bias=attention_bias or settings["model_type"] == "qwen2",
        embedding_scale=1.0,
        attention_dropout=settings.get("attention_dropout", 0.0),
        per_layer=_windows(settings),
    )


def _rotary(settings: rules.Settings) -> Rotary:
    """Return the rotary positions; as in transformers, rope_scaling replaces rope_parameters."""
    given = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
    given = {"rope_theta": settings.get("rope_theta", 10_000.0)} | given
    kind = given.pop("rope_type", given.pop("type", "default"))
    if kind == "yarn":
        raise ValueError(
            "rope_type='yarn' is not supported: released models interpolate by the index of a "
            "frequency, and yarn_scaling by its number of rotations"
        )
    one_of("rope_type", kind, ("default", "linear", "llama3"))
    for name in given:
        one_of("fields of rope_parameters", name, ROPE_FIELDS)
    fields = rules.Settings(given, model_type=settings["model_type"])
    settings.require("partial_rotary_factor", 1.0, None)
    fields.require("partial_rotary_factor", 1.0, None)
    fields.require("low_freq_factor", 1)
    fields.require("high_freq_factor", 4)
    scaling = {} if kind == "default" else {"scaling": kind, "factor": fields["factor"]}
    if kind == "llama3":
        scaling["original_length"] = fields["original_max_position_embeddings"]
    return Rotary(base=fields["rope_theta"], **scaling)


def _windows(settings: rules.Settings) -> list[dict[str, Any]]:
    """Return the window of each layer, as `TransformerConfig.per_layer`.

    Mistral has one for all layers, and Qwen 2 for some of them with `use_sliding_window`.
    """
    family, number = settings["model_type"], settings["num_hidden_layers"]
    window = settings.get("sliding_window", 4096)
    is_used = family == "mistral" or (family == "qwen2" and settings.get("use_sliding_window"))
    if window is None or not is_used:
        return []
    full = 0 if family == "mistral" else settings.get("max_window_layers", 28)
    types = [FULL if index < full else SLIDING for index in range(number)]
    if family == "mistral":
        settings.require("layer_types", types, None)
    types = settings.get("layer_types") or types
    if len(types) != number or not {*types} <= {FULL, SLIDING}:
        raise ValueError(f"layer_types must be {number} times {FULL!r} or {SLIDING!r}, got {types}")
    # Theirs counts the query too.
    return [{"window": window - 1 if each == SLIDING else None} for each in types]


def _rules(_: rules.Settings) -> list[rules.Rule]:
    ours, theirs = "decoder.layers.{i}", "model.layers.{i}"
    attention = [f"self_attn.{name}_proj" for name in "qkvo"]
    dense = [f"mlp.{name}_proj" for name in ("up", "down", "gate")]
    return [
        rules.Rule("embedding.tokens", "model.embed_tokens.weight"),
        *rules.residual(f"{ours}.self_attention", theirs, "input_layernorm", attention),
        *rules.residual(f"{ours}.feed_forward", theirs, "post_attention_layernorm", dense),
        *rules.norm("decoder.norm", "model.norm"),
        *rules.linear("output", "lm_head"),
    ]


LLAMA = rules.Family(
    _config,
    rules.from_config(LanguageModel, "vocab_size"),
    _rules,
    copies={"lm_head.weight": "model.embed_tokens.weight"},
    ignored=("model.layers.*.self_attn.rotary_emb.inv_freq",),
)
