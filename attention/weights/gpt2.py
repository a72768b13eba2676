"""GPT-2 (Radford et al. 2019), which stores matrices as `[inputs, outputs]`."""

from dataclasses import replace

from attention.modules import LanguageModel, TransformerConfig
from attention.weights import rules


def _config(settings: rules.Settings) -> TransformerConfig:
    settings.require("scale_attn_by_inverse_layer_idx", False)
    settings.require("add_cross_attention", False)
    width = settings["n_embd"]
    return TransformerConfig(
        width=width,
        num_heads=settings["n_head"],
        hidden=settings.get("n_inner") or 4 * width,
        activation=settings.activation("activation_function", "gelu_new"),
        norm_epsilon=settings.get("layer_norm_epsilon", 1e-5),
        positions="learned",
        max_length=settings["n_positions"],
        decoder_layers=settings["n_layer"],
        tie="output" if settings.get("tie_word_embeddings", True) else "none",
        attention_scale=None if settings.get("scale_attn_weights", True) else 1.0,
        embedding_scale=1.0,
        dropout=settings.get("resid_pdrop", 0.1),
        attention_dropout=settings.get("attn_pdrop", 0.1),
    )


def _rules(_: rules.Settings) -> list[rules.Rule]:
    ours, theirs = "decoder.layers.{i}", "transformer.h.{i}"
    attention, feed_forward = f"{ours}.self_attention.sublayer", f"{ours}.feed_forward.sublayer"
    projections = [
        replace(rule, axis=-1)
        for name in ("query", "key", "value")
        for rule in rules.linear(f"{attention}.{name}", f"{theirs}.attn.c_attn", rules.matrix())
    ]
    return [
        rules.Rule("embedding.tokens", "transformer.wte.weight"),
        rules.Rule("embedding.positions.table", "transformer.wpe.weight"),
        *projections,
        *rules.linear(f"{attention}.output", f"{theirs}.attn.c_proj", rules.matrix(2)),
        *rules.norm(f"{ours}.self_attention.norm", f"{theirs}.ln_1"),
        *rules.linear(f"{feed_forward}.up", f"{theirs}.mlp.c_fc", rules.matrix()),
        *rules.linear(f"{feed_forward}.down", f"{theirs}.mlp.c_proj", rules.matrix()),
        *rules.norm(f"{ours}.feed_forward.norm", f"{theirs}.ln_2"),
        *rules.norm("decoder.norm", "transformer.ln_f"),
        *rules.linear("output", "lm_head"),
    ]


GPT2 = rules.Family(
    _config,
    rules.from_config(LanguageModel, "vocab_size"),
    _rules,
    copies={"lm_head.weight": "transformer.wte.weight"},
    ignored=("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"),
    renames=((r"^(h\.|wte\.|wpe\.|ln_f\.)", r"transformer.\1"),),
)
