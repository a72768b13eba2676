"""GPT-2 (Radford et al. 2019)."""

from attention.modules import TransformerConfig
from attention.weights.rules import (
    FLAT,
    Family,
    Rule,
    Settings,
    language_model,
    matrix,
    norm,
    transposed,
)


def config(settings: Settings) -> TransformerConfig:
    """Return the config of a checkpoint."""
    for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        settings.require(name, False)
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


def rules(settings: Settings) -> list[Rule]:
    """Return the rules of a checkpoint: matrices are stored as `[inputs, outputs]`."""
    width = settings["n_embd"]
    ours, theirs = "decoder.layers.{i}", "transformer.h.{i}"
    attention = f"{ours}.self_attention.sublayer"
    projections = []
    for number, name in enumerate(("query", "key", "value")):
        part = {"start": number * width, "size": 3 * width}
        weight, bias = f"{theirs}.attn.c_attn.weight", f"{theirs}.attn.c_attn.bias"
        projections += [
            Rule(f"{attention}.{name}.kernel", weight, matrix(), axis=1, **part),
            Rule(f"{attention}.{name}.bias", bias, FLAT, axis=0, **part),
        ]
    return [
        Rule("embedding.tokens", "transformer.wte.weight"),
        Rule("embedding.positions.table", "transformer.wpe.weight"),
        *projections,
        Rule(f"{attention}.output.kernel", f"{theirs}.attn.c_proj.weight", matrix(2)),
        Rule(f"{attention}.output.bias", f"{theirs}.attn.c_proj.bias"),
        *norm(f"{ours}.self_attention.norm", f"{theirs}.ln_1"),
        Rule(f"{ours}.feed_forward.sublayer.up.kernel", f"{theirs}.mlp.c_fc.weight"),
        Rule(f"{ours}.feed_forward.sublayer.up.bias", f"{theirs}.mlp.c_fc.bias"),
        Rule(f"{ours}.feed_forward.sublayer.down.kernel", f"{theirs}.mlp.c_proj.weight"),
        Rule(f"{ours}.feed_forward.sublayer.down.bias", f"{theirs}.mlp.c_proj.bias"),
        *norm(f"{ours}.feed_forward.norm", f"{theirs}.ln_2"),
        *norm("decoder.norm", "transformer.ln_f"),
        Rule("output.kernel", "lm_head.weight", transposed()),
    ]


GPT2 = Family(
    config,
    language_model,
    rules,
    ignored=("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias", "lm_head.weight"),
    renames=((r"^(h\.|wte\.|wpe\.|ln_f\.)", r"transformer.\1"),),
)
